package sim

import (
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// shortOutage is an outage of two seconds for three processes.
func shortOutage() Scenario {
	s := Outage()
	s.Processes = 3
	s.Hot.Policy.Limit = tiered.PerSecond(200)
	s.Cold.Keys = 20
	s.From, s.To, s.Length = 4*time.Second, 6*time.Second, 9*time.Second
	return s
}

func run(t *testing.T, s Scenario) *Report {
	t.Helper()
	r, err := Run(t, s)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestRun(t *testing.T) {
	r := run(t, shortOutage())
	if !r.Passed() {
		t.Errorf("\n%v", r)
	}
	for _, m := range r.Modes {
		for i, p := range m.Phases {
			seconds := (p.To - p.From).Seconds()
			if offered := float64(p.Offered) / seconds / 300; i > 0 && (offered < 0.85 || offered > 1.15) {
				t.Errorf("%v, %s: %.0f %% of the load was offered", m.Mode, p.Name, 100*offered)
			}
			if p.Within == 0 || p.Calls == 0 {
				t.Errorf("%v, %s: %+v", m.Mode, p.Name, p)
			}
			used := float64(p.Admitted) / float64(p.Limit)
			// After it debts are settled, and a breaker may take a second to close.
			if least := []float64{0.8, 0, 0.6}[i]; used < least || p.Open != []float64{0, 1, 0}[i] {
				t.Errorf("%v, %s: %.0f %% used, %.0f %% of the breakers open", m.Mode, p.Name, 100*used, 100*p.Open)
			}
		}
		during := m.Phases[1]
		switch m.Mode {
		case tiered.FailLocal:
			if during.Denied > 0 || during.Admitted < during.Limit/2 || during.Admitted > during.Limit+200 {
				t.Errorf("fail-local: %+v", during)
			}
		case tiered.FailOpen: // all but those that waited for the breaker to open
			if during.Denied > 0 || during.Admitted < during.Offered*9/10 || m.evidence.without < during.Admitted/2 {
				t.Errorf("fail-open: %+v, %d without Redis", during, m.evidence.without)
			}
		case tiered.FailClosed:
			if during.Denied < during.Within*9/10 || during.Admitted > 200 || m.evidence.without > 0 {
				t.Errorf("fail-closed: %+v, %d without Redis", during, m.evidence.without)
			}
		}
	}
}

// What fail-open admits breaks the promise of fail-closed: the judge sees it in a real run.
func TestRunFails(t *testing.T) {
	s := shortOutage()
	s.Modes, s.Hot.Load = []tiered.FailMode{tiered.FailOpen}, 3
	r := run(t, s)
	if !r.Passed() {
		t.Errorf("fail-open:\n%v", r)
	}
	e := r.Modes[0].evidence
	e.mode = tiered.FailClosed
	r.Modes[0].Checks = e.checks()
	if r.Passed() || !strings.Contains(r.String(), "\nFAIL: ") {
		t.Errorf("passed as fail-closed:\n%v", r)
	}
}

func TestRunIsReproducible(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(0))
	first := ""
	for _, processors := range []int{1, 2, 4, 2} {
		runtime.GOMAXPROCS(processors)
		text := run(t, shortOutage()).String()
		if first == "" {
			first = text
		}
		if text != first {
			t.Errorf("another report on %d processors:\n%s\nand first\n%s", processors, text, first)
		}
	}
	s := shortOutage()
	s.Seed++
	if run(t, s).String() == first {
		t.Error("the seed changes nothing")
	}
}

func TestRunRefuses(t *testing.T) {
	_, err := Run(t, Scenario{})
	if err == nil {
		t.Fatal("no error")
	}
	for _, field := range []string{
		"Processes", "Hot.Keys", "Hot.Load", "Cold.Keys", "Cold.Load", "Modes", "From", "To", "Length",
	} {
		if !strings.Contains(err.Error(), "Scenario."+field+" is ") {
			t.Errorf("nothing about %s in:\n%v", field, err)
		}
	}
	// And what the limiter itself refuses.
	for problem, spoil := range map[string]func(*Scenario){
		"Policy.Name":    func(s *Scenario) { s.Cold.Policy.Name = "not a name" },
		"a policy of":    func(s *Scenario) { s.Cold.Policy.Name = s.Hot.Policy.Name },
		"Limit.Tokens":   func(s *Scenario) { s.Hot.Policy.Limit.Tokens = -1 },
		"Options.Budget": func(s *Scenario) { s.Options.Budget = -1 },
	} {
		s := shortOutage()
		spoil(&s)
		if _, err := Run(t, s); err == nil || !strings.Contains(err.Error(), problem) {
			t.Errorf("%s: error %v", problem, err)
		}
	}
}

func TestOutage(t *testing.T) {
	if testing.Short() {
		t.Skip("three minutes of virtual time")
	}
	if r := run(t, Outage()); !r.Passed() {
		t.Errorf("\n%v", r)
	} else {
		t.Logf("\n%v", r)
	}
}
