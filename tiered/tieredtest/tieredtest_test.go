package tieredtest_test

import (
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
		"several limits": {Limit: tiered.PerSecond(5), Also: []tiered.Limit{tiered.PerMinute(20)}},
		"sliding window": {Limit: tiered.PerMinute(10), Algorithm: tiered.SlidingWindow},
		"fixed window":   {Limit: tiered.PerMinute(10), Algorithm: tiered.FixedWindow},
		"sliding log":    {Limit: tiered.PerMinute(10), Algorithm: tiered.SlidingLog},
		"shards":         {Limit: tiered.PerMinute(100), Shards: 2},
		"standing":       {Limit: tiered.PerMinute(100), Standing: tiered.StandingOn},
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
		if len(p.Also) > 0 {
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
