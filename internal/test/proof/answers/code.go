package answers

import (
	"fmt"
	"go/format"
	"strings"
	"sync"
	"time"

	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// Transcript is what a player does, as Go. It writes each thing down before it does it.
type Transcript struct {
	mu   sync.Mutex
	head string
	done []string
}

// head, foot and store surround what was done. p has the Limiters by process and policy, d and v are the last Decisions
// of a request and of a look.
const (
	head = `// imports: context, errors, sync, sync/atomic, testing, testing/synctest, time; lua, remote, tiered
func TestAnswers%d(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := context.Background()
		store, rules := &slow{Memory: remote.NewMemory()}, []map[string]tiered.Limit{%s}
		policies := []tiered.Policy{%s}
		p, rs, d, v := make([][]*tiered.Limiter, %d), []tiered.Reservation(nil), tiered.Decision{}, tiered.Decision{}
		each, every, all := make([]tiered.Decision, 3), []tiered.Decision(nil), tiered.Use{}
		var waiters, crowd sync.WaitGroup
		open := func(i int) {
			g, err := tiered.NewGroup(store, &tiered.Options{%s})
			if err != nil {
				t.Fatal(err)
			}
			p[i] = nil
			for _, x := range policies {
				l, err := g.NewLimiter(x)
				if err != nil {
					t.Fatal(err)
				}
				p[i] = append(p[i], l)
			}
		}
		for i := range p {
			open(i)
			defer func() { _ = p[i][0].Group().Close(ctx) }()
		}
		sleep := func(d time.Duration) { time.Sleep(d); synctest.Wait() }
		_, _, _, _, _, _, _ = rs, d, v, each, every, all, rules
		crowd.Wait()
		defer waiters.Wait()
`
	foot = `
	})
}

type slow struct {
	*remote.Memory
	now, slow atomic.Bool
}

func (s *slow) Run(ctx context.Context, timeout time.Duration, calls []lua.Call, results []remote.Result) {
	if !s.now.Load() {
		if s.slow.Load() {
			time.Sleep(100 * time.Microsecond)
		}
		s.Memory.Run(ctx, timeout, calls, results)
		return
	}
	time.Sleep(timeout)
	for i := range calls {
		results[i] = remote.Result{Err: context.DeadlineExceeded}
	}
}
`
)

// begin begins the test of a sequence.
func (c *Transcript) begin(s *Sequence) {
	policies, rules := make([]string, len(s.Policies)), make([]string, len(s.Rules))
	for i, p := range s.Policies {
		policies[i] = policyCode(p, i, s.Rules[i])
	}
	options := fmt.Sprintf("Budget: %s, MaxKeys: %d, Processes: %d, Random: func() float64 { return %v }",
		dur(s.Budget), s.MaxKeys, s.Fleet, s.Random)
	if s.Traced {
		options += ", Trace: &tiered.Trace{Decision: func(tiered.Decision) {}}"
	}
	for i, r := range s.Rules {
		for key, l := range r { // one at most
			rules[i] = fmt.Sprintf("%q: %s", key, limitCode(l))
		}
		rules[i] = "{" + rules[i] + "}"
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.head, c.done = fmt.Sprintf(head, s.Seed, strings.Join(rules, ", "), strings.Join(policies, ", "), s.Processes, options), nil
}

// add writes down what is done next.
func (c *Transcript) add(format string, args ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.done = append(c.done, fmt.Sprintf(format, args...))
}

// Test returns a test of package tiered_test that does all that.
func (c *Transcript) Test() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var b strings.Builder
	b.WriteString(c.head)
	for i, n := 0, 0; i < len(c.done); i += n {
		for n = 1; i+n < len(c.done) && c.done[i+n] == c.done[i]; n++ {
		}
		if n > 1 {
			fmt.Fprintf(&b, "for range %d {\n%s\n}\n", n, c.done[i])
		} else {
			b.WriteString(c.done[i] + "\n")
		}
	}
	b.WriteString(foot)
	text, err := format.Source([]byte(b.String()))
	if err != nil {
		panic(fmt.Sprintf("answers: %v:\n%s", err, b.String()))
	}
	return string(text)
}

// dur returns a duration as Go.
func dur(d time.Duration) string {
	for _, u := range []struct {
		unit time.Duration
		name string
	}{{time.Hour, "time.Hour"}, {time.Minute, "time.Minute"}, {second, "time.Second"}, {ms, "time.Millisecond"}, {time.Microsecond, "time.Microsecond"}} {
		if d >= u.unit && d%u.unit == 0 {
			return fmt.Sprintf("%d * %s", d/u.unit, u.name)
		}
	}
	return fmt.Sprint(int64(d))
}

func limitCode(l tiered.Limit) string {
	switch l {
	case tiered.Unlimited():
		return "tiered.Unlimited()"
	case tiered.Blocked():
		return "tiered.Blocked()"
	}
	text := fmt.Sprintf("tiered.Limit{Tokens: %d, Per: %s", l.Tokens, dur(l.Per))
	if l.Burst > 0 {
		text += fmt.Sprintf(", Burst: %d", l.Burst)
	}
	if l.Precision > 0 {
		text += ", Precision: " + dur(l.Precision)
	}
	return text + "}"
}

func policyCode(p tiered.Policy, which int, r rules) string {
	text := fmt.Sprintf("{Name: %q, Limit: %s", p.Name, limitCode(p.Limit))
	if p.Also != nil {
		text += ", Also: []tiered.Limit{"
		for i, l := range p.Also {
			if i > 0 {
				text += ", "
			}
			text += limitCode(l)
		}
		text += "}"
	}
	names := []string{"TokenBucket", "FixedWindow", "SlidingLog", "SlidingWindow"}
	field := func(set bool, name, value string) {
		if set {
			text += ", " + name + ": " + value
		}
	}
	field(p.Algorithm != 0, "Algorithm", "tiered."+names[p.Algorithm])
	field(p.Calendar, "Calendar", "true")
	field(p.Shadow, "Shadow", "true")
	field(p.FailMode == tiered.FailOpen, "FailMode", "tiered.FailOpen")
	field(p.FailMode == tiered.FailClosed, "FailMode", "tiered.FailClosed")
	field(p.Lease.Size != 0, "Lease", fmt.Sprintf("tiered.Lease{Size: %d}", p.Lease.Size))
	field(p.Lease.Period != 0, "Lease", fmt.Sprintf("tiered.Lease{Period: %s}", dur(p.Lease.Period)))
	field(p.MaxDebt != 0, "MaxDebt", fmt.Sprint(p.MaxDebt))
	field(p.Standing == tiered.StandingOn, "Standing", "tiered.StandingOn")
	for name, l := range p.Plans {
		field(true, "Plans", fmt.Sprintf("map[string]tiered.Limit{%q: %s}", name, limitCode(l)))
	}
	field(r != nil, "PerKey", fmt.Sprintf("func(key string) tiered.Limit { return rules[%d][key] }", which))
	return text + "}"
}
