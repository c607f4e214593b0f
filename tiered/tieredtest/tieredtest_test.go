package tieredtest_test

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/tiered-limiter/tiered-limiter/tiered"
	"github.com/tiered-limiter/tiered-limiter/tiered/tieredtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// each runs a test for each kind of limit.
func each(t *testing.T, test func(t *testing.T, p tiered.Policy)) {
	for name, p := range map[string]tiered.Policy{
		"token bucket":   {Limit: tiered.PerMinute(10)},
		"fast":           {Limit: tiered.PerSecond(1000).WithBurst(50)},
		"several limits": {Limit: tiered.PerSecond(5).And(tiered.PerMinute(20))},
		"sliding window": {Limit: tiered.PerMinute(10), Algorithm: tiered.SlidingWindow},
		"fixed window":   {Limit: tiered.PerMinute(10), Algorithm: tiered.FixedWindow},
		"sliding log":    {Limit: tiered.PerMinute(10), Algorithm: tiered.SlidingLog},
		"standing":       {Limit: tiered.PerMinute(100), Standing: 1.0 / 8},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p.Name = "api"
				test(t, p)
			})
		})
	}
}

// After Exhaust a key is over its limit until time passes.
func TestExhaust(t *testing.T) {
	each(t, func(t *testing.T, p tiered.Policy) {
		l := tieredtest.New(t, p)
		if d := l.Allow(t.Context(), "a"); !d.Allowed {
			t.Errorf("at first: %v", d)
		}
		l.Exhaust("a")
		d := l.Allow(t.Context(), "a")
		if d.Reason != tiered.Limited || d.RetryAfter <= 0 {
			t.Errorf("exhausted: %v", d)
		}
		if d := l.Allow(t.Context(), "b"); !d.Allowed {
			t.Errorf("another key: %v", d)
		}
		l.Advance(2 * time.Minute)
		if d := l.Allow(t.Context(), "a"); !d.Allowed {
			t.Errorf("two minutes later: %v", d)
		}
	})
}

// AllowAll and DenyAll hold until Restore.
func TestAllAndNone(t *testing.T) {
	each(t, func(t *testing.T, p tiered.Policy) {
		l := tieredtest.New(t, p)
		l.Exhaust("a")
		l.AllowAll()
		if d := l.AllowN(t.Context(), "a", 1_000_000); !d.Allowed {
			t.Errorf("AllowAll: %v", d)
		}
		if len(p.Limit.Each()) > 1 {
			return
		}
		l.DenyAll()
		if d := l.Allow(t.Context(), "a"); d.Reason != tiered.ExceedsBurst {
			t.Errorf("DenyAll, and the key is known: %v", d)
		}
		if d := l.Allow(t.Context(), "b"); d.Reason != tiered.ExceedsBurst {
			t.Errorf("DenyAll: %v", d)
		}
		l.Restore()
		if d := l.Allow(t.Context(), "b"); !d.Allowed {
			t.Errorf("Restore: %v", d)
		}
	})
}

// Replicas share a limit, and each has its share while Redis fails.
func TestOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := tieredtest.New(t, tiered.Policy{Name: "api", Limit: tiered.PerMinute(10)})
		other := l.Replica()
		l.Advance(5 * time.Second)
		l.Exhaust("a")
		if d := other.Allow(t.Context(), "a"); d.Allowed {
			t.Errorf("exhausted by the other: %v", d)
		}
		l.Fail()
		for n := range 6 {
			if d := other.Allow(t.Context(), "b"); d.Allowed != (n < 5) {
				t.Errorf("request %d in an outage: %v", n, d)
			}
		}
		l.Heal()
		l.Advance(2 * time.Second)
		if d := other.Allow(t.Context(), "c"); d.Tier != tiered.Remote {
			t.Errorf("after the outage: %v", d)
		}
	})
}

// A Limiter closes itself during an outage too.
func TestClosesInAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := tieredtest.New(t, tiered.Policy{Name: "api", Limit: tiered.PerSecond(1000)})
		l.Allow(t.Context(), "a")
		l.Fail()
		l.Allow(t.Context(), "a")
	})
}

// Exhaust of a key that is never refused, or never by its limit, fails the test at once, and says
// why.
func TestExhaustOfWhatIsNeverExhausted(t *testing.T) {
	limit := tiered.PerMinute(10)
	for name, c := range map[string]struct {
		policy tiered.Policy
		before func(*tieredtest.Limiter)
		want   string
	}{
		"AllowAll":  {tiered.Policy{Limit: limit}, (*tieredtest.Limiter).AllowAll, "shadowed"},
		"Shadow":    {tiered.Policy{Limit: limit, Shadow: true}, nil, "shadowed"},
		"FailOpen":  {tiered.Policy{Limit: limit, FailMode: tiered.FailOpen}, (*tieredtest.Limiter).Fail, "open"},
		"Unlimited": {tiered.Policy{Limit: tiered.Unlimited()}, nil, "still admitted"},
		"unlimited key": {
			tiered.Policy{Limit: limit, PerKey: func(string) tiered.Limit { return tiered.Unlimited() }},
			nil, "still admitted",
		},
		"DenyAll":    {tiered.Policy{Limit: limit}, (*tieredtest.Limiter).DenyAll, "exceeds burst"},
		"FailClosed": {tiered.Policy{Limit: limit, FailMode: tiered.FailClosed}, (*tieredtest.Limiter).Fail, "unavailable"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				told := &testingT{TB: t}
				c.policy.Name = "api"
				l := tieredtest.New(told, c.policy)
				if c.before != nil {
					c.before(l)
				}
				func() {
					defer func() { _ = recover() }()
					l.Exhaust("ann")
				}()
				if !strings.Contains(told.fatal, "cannot be exhausted") || !strings.Contains(told.fatal, c.want) {
					t.Errorf("told %q, want %s", told.fatal, c.want)
				}
			})
		})
	}
}

// testingT records what a test is told.
type testingT struct {
	testing.TB
	fatal string
}

func (t *testingT) Helper() {}
func (t *testingT) Fatal(args ...any) {
	for _, a := range args {
		if err, ok := a.(error); ok {
			a = err.Error()
		}
		t.fatal += a.(string)
	}
	panic("fatal")
}
func (t *testingT) Fatalf(format string, args ...any) { t.Fatal(fmt.Sprintf(format, args...)) }

// Mistakes fail the test, and say what is wrong.
func TestMistakes(t *testing.T) {
	told := func(t testing.TB, p tiered.Policy) (text string) {
		told := &testingT{TB: t}
		defer func() { _ = recover(); text = told.fatal }()
		tieredtest.New(told, p)
		return
	}
	if s := told(t, tiered.Policy{Name: "api", Limit: tiered.PerSecond(1)}); !strings.Contains(s, "must be called within testing/synctest.Test") {
		t.Errorf("outside of a bubble: %q", s)
	}
	synctest.Test(t, func(t *testing.T) {
		if s := told(t, tiered.Policy{Name: "api"}); !strings.Contains(s, "Limit is zero") {
			t.Errorf("without a limit: %q", s)
		}
	})
}
