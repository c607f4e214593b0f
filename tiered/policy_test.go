package tiered_test

import (
	"math"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

func TestPolicyIsValidated(t *testing.T) {
	good := tiered.Policy{Name: "a.B-9_", Limit: tiered.Limit{Tokens: 1 << 40, Per: time.Microsecond, Burst: 1 << 40}}
	for _, p := range []tiered.Policy{
		good,
		{Name: strings.Repeat("x", 64), Limit: tiered.PerDay(1)},
		{Name: "x", Limit: tiered.PerSecond(1).WithBurst(1 << 40)},
		{Name: "x", Limit: tiered.PerSecond(100), Lease: tiered.Lease{Size: 25, Period: 5 * ms}},
		{Name: "x", Limit: tiered.PerSecond(1), Lease: tiered.Lease{Size: 1}},
		{Name: "x", Limit: tiered.PerMinute(3), Lease: tiered.Lease{Size: tiered.NoLease, Period: time.Minute}},
		{Name: "x", Limit: tiered.Limit{Tokens: 1, Per: tiered.MaxPer}},
		{Name: "x", Limit: tiered.PerSecond(10), MaxDebt: 10},
		{Name: "x", Limit: tiered.PerSecond(10), Also: []tiered.Limit{tiered.PerHour(40)}, MaxDebt: 1 << 40},
		{Name: "x", Limit: tiered.Blocked(), MaxDebt: 1},
	} {
		if err := p.Validate(); err != nil {
			t.Errorf("%+v: %v", p, err)
		}
	}
	for _, c := range []struct {
		p    tiered.Policy
		want []string // in the error: field and value
	}{
		{tiered.Policy{}, []string{`Policy.Name is ""`, "Policy.Limit is zero"}},
		{tiered.Policy{Name: "a/b", Limit: tiered.PerSecond(1)}, []string{`"a/b"`}},
		{tiered.Policy{Name: "a b", Limit: tiered.PerSecond(1)}, []string{"Policy.Name"}},
		{tiered.Policy{Name: "ü", Limit: tiered.PerSecond(1)}, []string{"Policy.Name"}},
		{tiered.Policy{Name: "a\n", Limit: tiered.PerSecond(1)}, []string{"Policy.Name"}},
		{tiered.Policy{Name: strings.Repeat("x", 65), Limit: tiered.PerSecond(1)}, []string{"Policy.Name"}},
		{tiered.Policy{Name: "x", Limit: tiered.PerSecond(0)}, []string{"Limit.Tokens is 0"}},
		{tiered.Policy{Name: "x", Limit: tiered.PerSecond(-1)}, []string{"Limit.Tokens is -1"}},
		{tiered.Policy{Name: "x", Limit: tiered.PerSecond(1<<40 + 1)}, []string{"Limit.Tokens is 1099511627777"}},
		{tiered.Policy{Name: "x", Limit: tiered.PerSecond(math.MaxInt64)}, []string{"Limit.Tokens"}},
		{tiered.Policy{Name: "x", Limit: tiered.Limit{Tokens: 5}}, []string{"Limit.Per is 0s"}},
		{
			tiered.Policy{
				Name: "x", Algorithm: tiered.SlidingWindow, Limit: tiered.PerSecond(5),
				Also: []tiered.Limit{{Tokens: 5}},
			},
			[]string{"Also[0].Per is 0s"},
		},
		{tiered.Policy{Name: "x", Limit: tiered.Limit{Tokens: 5, Per: -time.Second}}, []string{"Limit.Per is -1s"}},
		{
			tiered.Policy{Name: "x", Limit: tiered.Limit{Tokens: 5, Per: 1500 * time.Nanosecond}},
			[]string{"Limit.Per is 1.5µs"},
		},
		{tiered.Policy{Name: "x", Limit: tiered.Limit{Tokens: 5, Per: 999}}, []string{"Limit.Per is 999ns"}},
		{tiered.Policy{Name: "x", Limit: tiered.Limit{Tokens: 5, Per: math.MaxInt64}}, []string{"Limit.Per"}},
		{tiered.Policy{Name: "x", Limit: tiered.PerSecond(5).WithBurst(-3)}, []string{"Limit.Burst is -3"}},
		{tiered.Policy{Name: "x", Limit: tiered.PerSecond(5).WithBurst(0)}, []string{"Limit.Burst"}},
		{
			tiered.Policy{Name: "x", Limit: tiered.PerSecond(5).WithBurst(math.MaxInt64)},
			[]string{"Limit.Burst is 9223372036854775807"},
		},
		{
			tiered.Policy{Name: "x", Limit: tiered.PerSecond(100), Lease: tiered.Lease{Size: 26}},
			[]string{"Lease.Size is 26", "here 25"},
		},
		{
			tiered.Policy{Name: "x", Limit: tiered.PerSecond(100), Lease: tiered.Lease{Size: -2}},
			[]string{"Lease.Size is -2"},
		},
		{
			tiered.Policy{Name: "x", Limit: tiered.PerSecond(100), Lease: tiered.Lease{Period: ms}},
			[]string{"Lease.Period is 1ms"},
		},
		{
			tiered.Policy{Name: "x", Limit: tiered.PerSecond(100), Lease: tiered.Lease{Period: -ms}},
			[]string{"Lease.Period is -1ms"},
		},
		{tiered.Policy{Name: "x", Limit: tiered.PerSecond(10), MaxDebt: 9}, []string{"Policy.MaxDebt is 9", "here 10"}},
		{tiered.Policy{Name: "x", Limit: tiered.PerSecond(10), MaxDebt: -1}, []string{"Policy.MaxDebt is -1"}},
		{
			tiered.Policy{Name: "x", Limit: tiered.PerSecond(10), Also: []tiered.Limit{tiered.PerHour(40)}, MaxDebt: 39},
			[]string{"Policy.MaxDebt is 39", "here 40"},
		},
		{tiered.Policy{Name: "x", Limit: tiered.PerSecond(10), MaxDebt: 1<<40 + 1}, []string{"Policy.MaxDebt"}},
		{
			tiered.Policy{Name: "x", Limit: tiered.PerSecond(10), Algorithm: tiered.SlidingWindow, MaxDebt: 20},
			[]string{"Policy.MaxDebt is 20", "TokenBucket only"},
		},
		{
			tiered.Policy{Name: "!", Limit: tiered.Limit{Tokens: -1, Per: -1}, Lease: tiered.Lease{Period: 1}},
			[]string{"Name", "Tokens", "Per is -1ns", "Lease.Period"},
		},
	} {
		err := c.p.Validate()
		for _, part := range c.want {
			if err == nil || !strings.Contains(err.Error(), part) {
				t.Errorf("%+v: error %v does not say %q", c.p, err, part)
			}
		}
		if l, newErr := tiered.New(remote.NewMemory(), c.p, nil); newErr == nil || l != nil {
			t.Errorf("%+v: New took it", c.p)
		}
	}
}

func TestOptionsAreValidated(t *testing.T) {
	for _, c := range []struct {
		o    *tiered.Options
		want []string
	}{
		{nil, nil},
		{&tiered.Options{}, nil},
		{&tiered.Options{Budget: 100 * ms}, nil}, // Timeout follows
		{&tiered.Options{Budget: ms, Timeout: ms, Processes: 1 << 20, MaxKeys: 1, MaxInFlight: 1}, nil},
		{&tiered.Options{Budget: -1}, []string{"Options.Budget is -1ns"}},
		{&tiered.Options{Budget: time.Microsecond}, []string{"Options.Budget is 1µs"}},
		{&tiered.Options{Budget: time.Hour}, []string{"Options.Budget is 1h"}},
		{&tiered.Options{Budget: 30 * ms, Timeout: 20 * ms}, []string{"Options.Timeout is 20ms"}},
		{&tiered.Options{Timeout: 10 * ms}, []string{"Options.Timeout is 10ms"}}, // below the default Budget
		{
			&tiered.Options{Processes: -1, MaxKeys: -1, MaxInFlight: -1},
			[]string{"Processes is -1", "MaxKeys is -1", "MaxInFlight is -1"},
		},
		{&tiered.Options{MaxKeys: math.MaxInt}, []string{"MaxKeys"}},
	} {
		f, err := c.o.Fill()
		if len(c.want) == 0 {
			if err != nil {
				t.Errorf("%+v: %v", c.o, err)
			}
			if f.Budget <= 0 || f.Timeout < f.Budget || f.MaxKeys < 1 || f.MaxInFlight < 1 || f.Logger == nil {
				t.Errorf("%+v: filled in as %+v", c.o, f)
			}
			continue
		}
		for _, part := range c.want {
			if err == nil || !strings.Contains(err.Error(), part) {
				t.Errorf("%+v: error %v does not say %q", c.o, err, part)
			}
		}
	}
}

func TestGroupRefusesWhatItCannotUse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var memory *remote.Memory
		var redis *remote.Redis
		for _, s := range []remote.Store{nil, memory, redis, remote.NewRedis(nil, nil)} {
			if g, err := tiered.NewGroup(s, &tiered.Options{Budget: -1}); err == nil || g != nil ||
				!strings.Contains(err.Error(), "Budget") || !strings.Contains(err.Error(), "remote:") {
				t.Errorf("%T: %v, want both problems named", s, err)
			}
		}
		l := limiter(t, remote.NewMemory(), tiered.Policy{Name: "a", Limit: tiered.PerSecond(1)}, nil)
		if _, err := l.Group().NewLimiter(tiered.Policy{Name: "a", Limit: tiered.PerSecond(2)}); err == nil ||
			!strings.Contains(err.Error(), `"a"`) {
			t.Errorf("two policies of one name: %v", err)
		}
		b := must(l.Group().NewLimiter(tiered.Policy{Name: "b", Limit: tiered.PerSecond(2)}))
		ok(t, b.Close(t.Context()))
		want(t, b.Allow(t.Context(), "k"), tiered.Granted) // closing it closed nothing: the Group goes on
		want(t, l.Allow(t.Context(), "k"), tiered.Granted) // and the same key under another policy is another bucket
		if b.Policy().Name != "b" {
			t.Error("Policy is not the one that was given")
		}
	})
}

func TestReasonsAndTiersHaveNames(t *testing.T) {
	for r := tiered.Unknown; r <= tiered.Canceled; r++ {
		if s := r.String(); s == "" || strings.HasPrefix(s, "reason") {
			t.Errorf("Reason %d: %q", uint8(r), s)
		}
		if err := (tiered.Decision{Reason: r}).Err(); err == nil || !strings.Contains(err.Error(), r.String()) {
			t.Errorf("%v: %v", r, err)
		}
	}
	if tiered.Reason(200).String() != "reason 200" || tiered.Tier(200).String() != "tier 200" ||
		tiered.Remote.String() != "remote" {
		t.Error("names of unknown values")
	}
}

// Settings that exclude each other are an error that names field, value and rule.
func TestAlgorithmMistakes(t *testing.T) {
	minute := tiered.Limit{Tokens: 10, Per: time.Minute}
	for _, c := range []struct {
		change func(p *tiered.Policy)
		want   string
	}{
		{func(p *tiered.Policy) { p.Algorithm = 9 }, "Policy.Algorithm is algorithm 9: must be"},
		{
			func(p *tiered.Policy) { p.Calendar = true },
			"Policy.Calendar is true: is of a FixedWindow only, and Algorithm is token bucket",
		},
		{
			func(p *tiered.Policy) { p.Limit.Precision = time.Second },
			"Policy.Limit.Precision is 1s: is of a SlidingWindow only",
		},
		{
			func(p *tiered.Policy) { p.Algorithm, p.Also = tiered.FixedWindow, []tiered.Limit{tiered.PerHour(1)} },
			"Policy.Also is 1 limits: is of a TokenBucket or",
		},
		{
			func(p *tiered.Policy) { p.Algorithm, p.Also = tiered.SlidingLog, []tiered.Limit{tiered.PerHour(1)} },
			"Policy.Also is 1 limits",
		},
		{
			func(p *tiered.Policy) { p.Also = []tiered.Limit{tiered.PerMinute(1)} },
			"Policy.Also[0].Per is 1m0s: must differ from that of Limit",
		},
		{ // their blocks are the same, and as many
			func(p *tiered.Policy) {
				p.Algorithm, p.Also = tiered.SlidingWindow,
					[]tiered.Limit{{Tokens: 9, Per: time.Minute - time.Microsecond, Precision: time.Second}}
			},
			"must differ from that of Limit, or the Precision must: both count by 60 blocks of 1s",
		},
		{func(p *tiered.Policy) { p.Also = []tiered.Limit{{}} }, "Policy.Also[0] is zero: must be set"},
		{
			func(p *tiered.Policy) { p.Also, p.MaxDebt = []tiered.Limit{tiered.Unlimited()}, 3 },
			"Policy.MaxDebt is 3: must be 0 for one burst, or at least the burst, here 10,",
		},
		{func(p *tiered.Policy) { p.Also = make([]tiered.Limit, 8) }, "Policy.Also is 8 limits: must be at most 7"},
		{
			func(p *tiered.Policy) { p.Algorithm, p.Limit.Burst = tiered.FixedWindow, 20 },
			"Policy.Limit.Burst is 20: must be 0: a fixed window",
		},
		{
			func(p *tiered.Policy) { p.Algorithm, p.Lease.Size = tiered.SlidingLog, 2 },
			"Policy.Lease.Size is 2: must be 0 or NoLease: a SlidingLog",
		},
		{
			func(p *tiered.Policy) { p.Algorithm, p.Lease.Period = tiered.SlidingLog, time.Second },
			"Policy.Lease.Period is 1s: must be 0",
		},
		{
			func(p *tiered.Policy) { p.Algorithm, p.Limit.Tokens = tiered.SlidingLog, 200_000 },
			"Policy.Limit.Tokens is 200000: must be at most 100000",
		},
		{
			func(p *tiered.Policy) { p.Algorithm, p.Limit.Per = tiered.FixedWindow, 20*365*24*time.Hour },
			"must be at most 10 years",
		},
		{
			func(p *tiered.Policy) { p.Algorithm, p.Limit.Precision = tiered.SlidingWindow, time.Hour },
			"Policy.Limit.Precision is 1h0m0s: must be 1µs to Per",
		},
		{
			func(p *tiered.Policy) { p.Algorithm, p.Limit.Precision = tiered.SlidingWindow, 100*time.Millisecond },
			"Policy.Limit.Precision is 100ms: must divide Per into at most 511 blocks, here 600",
		},
	} {
		p := tiered.Policy{Name: "p", Limit: minute}
		ok(t, p.Validate())
		c.change(&p)
		if err := p.Validate(); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v:\n%v, want\n%s", p, err, c.want)
		}
	}
}
