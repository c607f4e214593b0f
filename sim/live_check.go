//go:build unix

package sim

import (
	"errors"
	"fmt"
	"math"
	"os/exec"
	"slices"
	"time"

	"github.com/tiered-limiter/tiered-limiter/internal/redisserver"
	"github.com/tiered-limiter/tiered-limiter/sim/scenario"
)

// refusable are the words that a redis-server can be made to say: those of each error that it has, but for those of a Cluster.
var refusable = []string{
	"READONLY", "MASTERDOWN", "NOREPLICAS", "OOM", "MISCONF", "BUSY", "NOAUTH", "WRONGPASS", "NOPERM", "WRONGTYPE", "LOADING",
}

// playable reports all that keeps the engine Live from playing a scenario, each with what can be done about it.
func (p *plan) playable() error {
	var all []error
	wrong := func(format string, args ...any) { all = append(all, fmt.Errorf("sim: engine live: "+format, args...)) }
	if !hooked.Load() {
		wrong("its processes are this program, started again: call sim.Child() first of all in TestMain")
	}
	if err := redisserver.Installed(); err != nil {
		wrong("%w", err)
	}
	if offer := p.offer(); offer > MostLiveRate {
		wrong("the scenario makes up to %.0f requests per second: must be at most %d; "+
			"lower a rate, as in --set traffic.rate=%d/s, and the limit with it", offer, MostLiveRate, MostLiveRate/2)
	}
	if n := p.starts(); n > MostLiveStarts {
		wrong("the scenario starts %d processes: must be at most %d; take a smaller fleet, as in --set fleet.n=8", n, MostLiveStarts)
	}
	words := map[string]bool{}
	for i := range p.scenario.Faults {
		f := &p.scenario.Faults[i]
		at := fmt.Sprintf("at.%d, `at %v %v`", i+1, f.At, f)
		switch f.Kind {
		case "refuse":
			words[f.Error] = true
			switch {
			case !slices.Contains(refusable, f.Error):
				wrong("%s: a redis-server by itself never says %.20q: must be one of %v", at, f.Error, refusable)
			case f.Error == "WRONGTYPE" && slices.ContainsFunc(p.scenario.Traffic, func(t scenario.Traffic) bool { return t.Keys < 0 }):
				wrong("%s: keys that are new each time cannot be poisoned beforehand: traffic must have keys=0 or more", at)
			}
		case "clock":
			if _, err := exec.LookPath("cc"); err != nil {
				wrong("%s: %w", at, redisserver.ErrNoCompiler)
			}
		}
	}
	if words["NOAUTH"] && words["WRONGPASS"] {
		wrong("NOAUTH is what a client without a password hears, WRONGPASS one that has another: a scenario must have one of them")
	}
	if words["LOADING"] && words["MISCONF"] {
		wrong("LOADING needs a server that can save, MISCONF one that cannot: a scenario must have one of them")
	}
	return errors.Join(all...)
}

// password is the limiter's in Redis, none in most runs.
func (p *plan) password() string {
	if slices.ContainsFunc(p.scenario.Faults, func(f scenario.Fault) bool { return f.Error == "WRONGPASS" }) {
		return userPassword
	}
	return ""
}

// userPassword is the password of the limiter's user where it has one.
const userPassword = "of the limiter"

// offer is the most requests per second that the traffic makes, all of it together.
func (p *plan) offer() float64 {
	sum := 0.0
	for i := range p.scenario.Traffic {
		t := &p.scenario.Traffic[i]
		if t.Shape == "closed" {
			sum += float64(t.Clients) / (clientTime + time.Duration(t.Think)).Seconds()
		} else {
			sum += (&stream{what: t}).maxRate()
		}
	}
	for i := range p.scenario.Faults {
		if f := &p.scenario.Faults[i]; f.Kind == "flood" {
			sum += float64(f.Keys) / time.Duration(p.lasting(f)).Seconds()
		}
	}
	return sum
}

// lasting is how long a fault lasts.
func (p *plan) lasting(f *scenario.Fault) scenario.Duration {
	if f.For > 0 {
		return f.For
	}
	return p.scenario.Length - f.At
}

// starts is how many processes start in a run at most.
func (p *plan) starts() int {
	most := p.maxProcesses()
	n := p.scenario.Fleet.N
	for i := range p.scenario.Faults {
		f := &p.scenario.Faults[i]
		some := most
		switch {
		case f.Procs.Count > 0:
			some = min(most, f.Procs.Count)
		case f.Procs.Share > 0:
			some = int(math.Ceil(f.Procs.Share * float64(most)))
		}
		switch f.Kind {
		case "crash":
			if f.Restart > 0 {
				n += some
			}
		case "crashloop":
			n += some * int((p.lasting(f)+f.Every-1)/max(f.Every, 1))
		case "deploy", "scale":
			n += most
		}
	}
	return n
}
