package answers

import (
	"fmt"
	"go/format"
	"strings"
	"sync"

	"github.com/tiered-limiter/tiered-limiter/internal/test/proof"
)

// Transcript is what a player does, as Go. It writes each thing down before it does it.
type Transcript struct {
	mu   sync.Mutex
	head string
	done []string
}

// head and foot surround what was done. p has the Limiters by process and policy, d and v
// are the last Decisions of a request and of a look.
const (
	head = `// imports: context, errors, sync, sync/atomic, testing, testing/synctest, time; lua, remote, testgroup, tiered
func TestAnswers%d(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := context.Background()
		store, rules := &slow{Memory: remote.NewMemory()}, %s
		policies := []tiered.Policy{%s}
		p, rs, d, v := make([][]*tiered.Limiter, %d), []tiered.Reservation(nil), tiered.Decision{}, tiered.Decision{}
		each, every, all := make([]tiered.Decision, 3), []tiered.Decision(nil), tiered.Use{}
		var waiters, crowd sync.WaitGroup
		open := func(i int) {
			g := testgroup.New(t, store, &tiered.Options{%s}, policies...)
			p[i] = nil
			for _, x := range policies {
				p[i] = append(p[i], testgroup.Of(t, g, x.Name))
			}
		}
		for i := range p {
			open(i)
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
	var policies []string
	for i, p := range s.Policies {
		text := proof.Code(p)
		if s.Rules[i] != nil {
			text = fmt.Sprintf("%s, PerKey: func(key string) tiered.Limit { return rules[%d][key] }}", strings.TrimSuffix(text, "}"), i)
		}
		policies = append(policies, text)
	}
	trace := ""
	if s.Traced {
		trace = ", Trace: &tiered.Trace{Decision: func(tiered.Decision) {}}"
	}
	options := fmt.Sprintf("Budget: %s, MaxKeys: %d, Processes: %d, Random: func() float64 { return %v }%s",
		proof.Code(s.Budget), s.MaxKeys, s.Fleet, s.Random, trace)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.head, c.done = fmt.Sprintf(head, s.Seed, proof.Code(s.Rules), strings.Join(policies, ", "), s.Processes, options), nil
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
