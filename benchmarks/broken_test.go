package benchmarks

import (
	"context"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/fatal"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// broken are contestants that do not do the work.
var broken = map[string]struct {
	load Load
	make func(tb testing.TB, s *Server, l tiered.Limit) Decide
	says string
}{
	"refuses":  {Hot, always(0), "1 of 1 refused"},
	"fails":    {Hot, always(Admitted | Failed), "1 of 1 decisions failed"},
	"admits":   {Denied, turnsTo(0, Admitted), "of a key that was used up"},
	"alone":    {Hot, always(Admitted), "it has fallen back on itself"},
	"no keys":  {Cold, always(Admitted), "different keys were asked for, and Redis has 0"},
	"not cold": {Cold, always(Admitted), "decisions waited for Redis"},
	"not home": {Hot, turnsTo(Admitted, Admitted|Asked), "waited for Redis"},
}

// always always answers the same.
func always(a Answer) func(testing.TB, *Server, tiered.Limit) Decide { return turnsTo(a, a) }

// turnsTo answers first until it is measured.
func turnsTo(first, then Answer) func(testing.TB, *Server, tiered.Limit) Decide {
	return func(testing.TB, *Server, tiered.Limit) Decide {
		return func(context.Context, string) Answer {
			if measuring {
				return then
			}
			return first
		}
	}
}

// measuring is whether the broken contestants have settled.
var measuring bool

const brokenEnv = "BENCHMARKS_BROKEN"

// BenchmarkBroken is what TestBrokenContestantsFailTheRun runs, in a process of its own.
func BenchmarkBroken(b *testing.B) {
	name := os.Getenv(brokenEnv)
	if name == "" {
		b.Skip("only for TestBrokenContestantsFailTheRun")
	}
	c := broken[name]
	s := &Subject{Load: c.load, Server: StartServer(b), decide: c.make(b, nil, c.load.Limit), Contestant: Contestant{
		Name: name, Redis: true, Ours: strings.HasPrefix(name, "not "), Loads: []string{c.load.Name},
	}}
	if name == "alone" {
		s.Contestant.Commands = 1
	}
	s.walks = newWalks(c.load.Keys)
	if c.load.Expect.Refused {
		fatal.If(b, s.settle())
	}
	measuring = true
	decisions(b, s)
}

// A benchmark whose work was not done ends the run with an error, and says why.
func TestBrokenContestantsFailTheRun(t *testing.T) {
	for name, c := range broken {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cmd := exec.Command(os.Args[0], "-test.run=^$", "-test.bench=^BenchmarkBroken$", "-test.benchtime=1000x")
			cmd.Env = append(os.Environ(), brokenEnv+"="+name)
			out, err := cmd.CombinedOutput()
			if err == nil || !strings.Contains(string(out), c.says) {
				t.Errorf("the run ends with %v and says\n%s\nand not %q", err, out, c.says)
			}
		})
	}
}

// What is in the table can be measured: names are unique, loads exist, and each load has somebody.
func TestContestants(t *testing.T) {
	seen, played := map[string]bool{}, map[string]int{}
	for _, c := range Contestants {
		if seen[c.Name] || c.Name == "" || strings.ContainsAny(c.Name, " /=") {
			t.Errorf("%q is not a name of its own", c.Name)
		}
		seen[c.Name] = true
		for _, l := range c.Loads {
			played[l]++
		}
	}
	for _, l := range Loads {
		if played[l.Name] == 0 {
			t.Errorf("nobody takes part in %s", l.Name)
		}
		delete(played, l.Name)
	}
	for l := range played {
		t.Errorf("there is no load %q", l)
	}
}
