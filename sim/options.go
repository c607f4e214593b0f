package sim

import (
	"errors"
	"fmt"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/tiered-limiter/tiered-limiter/internal/defaults"
	"github.com/tiered-limiter/tiered-limiter/sim/scenario"
	"github.com/tiered-limiter/tiered-limiter/tiered"
	"github.com/tiered-limiter/tiered-limiter/tiered/atonce"
)

// Options say how a scenario is run. nil and the zero value are the defaults.
type Options struct {
	// Seed is what all that is random depends on; 0 means 1.
	Seed uint64

	// Policies are yours: each is run in place of that of the limit with its name; a single one
	// also in place of that of the only limit, under the limit's name. One that would replace
	// nothing is an error. The limit of the report is that of the policy. PerKey is also asked before
	// each request, for what the ideal limiter would do.
	Policies []tiered.Policy

	// AtOnce, if not nil, is yours: it is run in place of that of the scenario, which must have
	// one. Requests have no plan.
	AtOnce *atonce.Policy

	// Progress is told from time to time how far the run has come: at most 600 times. It must not
	// block. Several runs at one time call it concurrently. nil tells nobody.
	Progress func(at, of time.Duration)
}

// plan is a scenario made ready to run.
type plan struct {
	scenario *scenario.Scenario // a copy, in which no default of the network is left out
	seed     uint64
	options  tiered.Options
	policies []tiered.Policy // as Scenario.Limits
	atOnce   atonce.Policy   // without places if nothing runs
	progress func(at, of time.Duration)
}

// prepare checks a scenario and its options, and reports all problems at once.
func prepare(s *scenario.Scenario, o *Options) (*plan, error) {
	if s == nil {
		return nil, errors.New("sim: the scenario is nil")
	}
	if o == nil {
		o = &Options{}
	}
	p := &plan{seed: o.Seed, progress: o.Progress}
	if p.seed == 0 {
		p.seed = 1
	}
	if err := s.Validate(); err != nil {
		return nil, err
	}
	p.scenario = s.Clone()
	if n := &p.scenario.Net; n.RTT == 0 {
		n.RTT = scenario.DefaultRTT
	}
	f := &p.scenario.Fleet
	p.options = tiered.Options{
		Budget: time.Duration(f.Budget), Timeout: time.Duration(f.Timeout),
		Processes: f.Processes, MaxKeys: f.MaxKeys, MaxInFlight: f.InFlight,
	}
	own, err := o.policiesByName(p.scenario.Limits)
	if err := errors.Join(p.place(o.AtOnce), err); err != nil {
		return nil, err
	}
	for i := range p.scenario.Limits {
		l := &p.scenario.Limits[i]
		policy, ok := own[l.Name]
		if !ok {
			policy = PolicyOf(f, l)
		}
		l.Limit, l.Algorithm = policy.Limit, ""
		if policy.Algorithm != tiered.TokenBucket {
			l.Algorithm = policy.Algorithm.String()
		}
		p.policies, err = append(p.policies, policy), errors.Join(err, policy.Validate())
	}
	return p, err
}

// place sets what may run at the same time: by a policy of the user's, or by the scenario.
func (p *plan) place(own *atonce.Policy) error {
	s := &p.scenario.AtOnce
	p.atOnce = atonce.Policy{
		Places: s.Places, Life: time.Duration(s.Life), FailMode: failModes[p.scenario.Fleet.Mode],
	}
	if own != nil {
		if s.Places == 0 {
			return fmt.Errorf("sim: Options.AtOnce is policy %.80q: must be nil, because the scenario has no at_once", own.Name)
		}
		if err := own.Validate(); err != nil {
			return err
		}
		p.atOnce = *own
		s.Places, s.Life = own.Places, scenario.Duration(own.Life)
	}
	p.atOnce.Name = "at-once"
	return nil
}

var failModes = map[string]tiered.FailMode{
	"": tiered.FailLocal, "local": tiered.FailLocal, "open": tiered.FailOpen, "closed": tiered.FailClosed,
}

// ownFailModes returns the fail modes of policies that have another one than the fleet, by the
// names of their limits.
func (p *plan) ownFailModes() map[string]string {
	own := map[string]string{}
	for _, policy := range p.policies {
		if mode := p.ownFailMode(policy.FailMode); mode != "" {
			own[policy.Name] = mode
		}
	}
	return own
}

// ownFailMode returns a fail mode that is another one than the fleet's, and otherwise "".
func (p *plan) ownFailMode(m tiered.FailMode) string {
	if m == failModes[p.scenario.Fleet.Mode] {
		return ""
	}
	return strings.TrimPrefix(m.String(), "fail-")
}

// policiesByName returns Policies by the names of the scenario's limits.
func (o *Options) policiesByName(limits []scenario.Limit) (map[string]tiered.Policy, error) {
	own := map[string]tiered.Policy{}
	var all []error
	for i, p := range o.Policies {
		if len(o.Policies) == 1 && len(limits) == 1 {
			p.Name = limits[0].Name
		}
		_, twice := own[p.Name]
		switch {
		case !slices.ContainsFunc(limits, func(l scenario.Limit) bool { return l.Name == p.Name }):
			all = append(all, fmt.Errorf("sim: Options.Policies[%d].Name is %.80q: must be that of a limit of the scenario", i, p.Name))
		case twice:
			all = append(all, fmt.Errorf("sim: Options.Policies[%d].Name is %.80q: must be there once", i, p.Name))
		}
		own[p.Name] = p
	}
	return own, errors.Join(all...)
}

// PolicyOf returns the policy of a limit as the processes of a scenario have it.
func PolicyOf(f *scenario.Fleet, l *scenario.Limit) tiered.Policy {
	p := l.Policy()
	p.FailMode, p.Standing = failModes[f.Mode], defaults.Parts[f.Standing]
	p.Lease = tiered.Lease{Size: f.Size, Period: time.Duration(f.Period)}
	return p
}

// limitOf returns the index of a limit by its name. Without a name it is the only limit.
func (p *plan) limitOf(name string) int {
	return max(slices.IndexFunc(p.scenario.Limits, func(l scenario.Limit) bool { return l.Name == name }), 0)
}

// maxProcesses returns the largest number of processes at one time, except those that are leaving.
func (p *plan) maxProcesses() int {
	most := p.scenario.Fleet.N
	for i := range p.scenario.Faults {
		most = max(most, p.scenario.Faults[i].N)
	}
	return most
}

// Version returns that of the project and of Go, as reports have it.
func Version() string {
	project := "unknown"
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		project = info.Main.Version
	}
	return project + ", " + runtime.Version()
}
