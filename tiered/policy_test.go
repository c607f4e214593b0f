package tiered_test

import (
	"cmp"
	"fmt"
	"math"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

func TestPolicyIsValidated(t *testing.T) {
	minute, pro := tiered.PerMinute(100), map[string]tiered.Limit{"pro": tiered.PerMinute(1000)}
	plan := func(name string, l tiered.Limit) map[string]tiered.Limit { return map[string]tiered.Limit{name: l} }
	many := map[string]tiered.Limit{}
	for i := range tiered.MaxPlans + 1 {
		many[fmt.Sprint("p", i)] = minute
	}
	for _, p := range []tiered.Policy{
		{Name: "a.B-9_", Limit: tiered.Limit{Tokens: 1 << 40, Per: time.Microsecond, Burst: 1 << 40}},
		{Name: strings.Repeat("x", 64), Limit: tiered.PerDay(1)},
		{Limit: tiered.PerSecond(1).WithBurst(1 << 40)},
		{Limit: tiered.PerSecond(100), Lease: tiered.Lease{Size: 25, Period: 5 * ms}},
		{Limit: tiered.PerSecond(1), Lease: tiered.Lease{Size: 1}},
		{Limit: tiered.PerMinute(3), Lease: tiered.Lease{Size: tiered.NoLease, Period: time.Minute}},
		{Limit: tiered.Limit{Tokens: 1, Per: tiered.MaxPer}},
		{Limit: tiered.PerSecond(10), MaxDebt: 10},
		{Limit: tiered.PerSecond(10).And(tiered.PerHour(40)), MaxDebt: 1 << 40},
		{Limit: tiered.Blocked(), MaxDebt: 1},
		{Limit: minute, Plans: pro},
		{Limit: tiered.Blocked(), Plans: pro}, // requests without a plan are refused
		{Limit: minute, Plans: map[string]tiered.Limit{"staff": tiered.Unlimited(), "suspended": tiered.Blocked()}},
		{Limit: minute, Plans: pro, Lease: tiered.Lease{Size: 25}, MaxDebt: 100}, // a larger burst is the debt of its key
	} {
		p.Name = cmp.Or(p.Name, "x")
		ok(t, p.Validate())
	}
	for _, c := range []struct {
		p    tiered.Policy
		want words // in the error: field and value
	}{
		{tiered.Policy{}, words{`Policy.Name is ""`, "Policy.Limit is zero"}},
		{tiered.Policy{Name: "a/b", Limit: tiered.PerSecond(1)}, words{`"a/b"`}},
		{tiered.Policy{Name: "a b", Limit: tiered.PerSecond(1)}, words{"Policy.Name"}},
		{tiered.Policy{Name: "ü", Limit: tiered.PerSecond(1)}, words{"Policy.Name"}},
		{tiered.Policy{Name: "a\n", Limit: tiered.PerSecond(1)}, words{"Policy.Name"}},
		{tiered.Policy{Name: strings.Repeat("x", 65), Limit: tiered.PerSecond(1)}, words{"Policy.Name"}},
		{tiered.Policy{Limit: tiered.PerSecond(0)}, words{"Limit.Tokens is 0"}},
		{tiered.Policy{Limit: tiered.PerSecond(-1)}, words{"Limit.Tokens is -1"}},
		{tiered.Policy{Limit: tiered.PerSecond(1<<40 + 1)}, words{"Limit.Tokens is 1099511627777"}},
		{tiered.Policy{Limit: tiered.PerSecond(math.MaxInt64)}, words{"Limit.Tokens"}},
		{tiered.Policy{Limit: tiered.Limit{Tokens: 5}}, words{"Limit.Per is 0s"}},
		{tiered.Policy{Algorithm: tiered.SlidingWindow, Limit: tiered.PerSecond(5).And(tiered.Limit{Tokens: 5})}, words{"Policy.Limit.Also[0].Per is 0s"}},
		{tiered.Policy{Limit: tiered.Limit{Tokens: 5, Per: -time.Second}}, words{"Limit.Per is -1s"}},
		{tiered.Policy{Limit: tiered.Limit{Tokens: 5, Per: 1500 * time.Nanosecond}}, words{"Limit.Per is 1.5µs"}},
		{tiered.Policy{Limit: tiered.Limit{Tokens: 5, Per: 999}}, words{"Limit.Per is 999ns"}},
		{tiered.Policy{Limit: tiered.Limit{Tokens: 5, Per: math.MaxInt64}}, words{"Limit.Per"}},
		{tiered.Policy{Limit: tiered.PerSecond(5).WithBurst(-3)}, words{"Limit.Burst is -3"}},
		{tiered.Policy{Limit: tiered.PerSecond(5).WithBurst(0)}, words{"Limit.Burst is 0: must be 1 to 2^40"}},
		{tiered.Policy{Limit: tiered.PerSecond(5).WithBurst(math.MaxInt64)}, words{"Limit.Burst is 9223372036854775807"}},
		{tiered.Policy{Limit: tiered.PerSecond(100), Lease: tiered.Lease{Size: 26}}, words{"Lease.Size is 26", "here 25"}},
		{tiered.Policy{Limit: tiered.PerSecond(100), Lease: tiered.Lease{Size: -2}}, words{"Lease.Size is -2"}},
		{tiered.Policy{Limit: tiered.PerSecond(100), Lease: tiered.Lease{Period: ms}}, words{"Lease.Period is 1ms"}},
		{tiered.Policy{Limit: tiered.PerSecond(100), Lease: tiered.Lease{Period: -ms}}, words{"Lease.Period is -1ms"}},
		{tiered.Policy{Limit: tiered.PerSecond(10), MaxDebt: 9}, words{"Policy.MaxDebt is 9", "here 10"}},
		{tiered.Policy{Limit: tiered.PerSecond(10), MaxDebt: -1}, words{"Policy.MaxDebt is -1"}},
		{tiered.Policy{Limit: tiered.PerSecond(10).And(tiered.PerHour(40)), MaxDebt: 39}, words{"Policy.MaxDebt is 39", "here 40"}},
		{tiered.Policy{Limit: tiered.PerSecond(10), MaxDebt: 1<<40 + 1}, words{"Policy.MaxDebt"}},
		{tiered.Policy{Limit: tiered.PerSecond(10), Algorithm: tiered.SlidingWindow, MaxDebt: 20}, words{"Policy.MaxDebt is 20", "only a TokenBucket"}},
		{tiered.Policy{Limit: minute, Algorithm: 9}, words{"Policy.Algorithm is algorithm 9: must be"}},
		{tiered.Policy{Limit: minute, Calendar: true}, words{"Policy.Calendar is true: only a FixedWindow has it, and Algorithm is token bucket"}},
		{tiered.Policy{Limit: precise(minute, second)}, words{"Policy.Limit.Precision is 1s: only a SlidingWindow has it"}},
		{tiered.Policy{Limit: minute.And(tiered.PerHour(1)), Algorithm: tiered.FixedWindow}, words{"Policy.Limit.Also is 1 limit: only a TokenBucket or"}},
		{tiered.Policy{Limit: minute.And(tiered.PerHour(1)), Algorithm: tiered.SlidingLog}, words{"Policy.Limit.Also is 1 limit"}},
		{tiered.Policy{Limit: minute.And(tiered.PerMinute(1))}, words{"Policy.Limit.Also[0].Per is 1m0s: must differ from that of Limit"}},
		{ // their blocks are the same, and as many
			tiered.Policy{Limit: minute.And(precise(tiered.Per(9, time.Minute-time.Microsecond), second)), Algorithm: tiered.SlidingWindow},
			words{"must differ from that of Limit, or the Precision must: both count by 60 blocks of 1s"},
		},
		{tiered.Policy{Limit: minute.And(tiered.Limit{})}, words{"Policy.Limit.Also[0] is zero: must be set"}},
		{tiered.Policy{Limit: minute.And(tiered.Unlimited()), MaxDebt: 3}, words{"Policy.MaxDebt is 3: must be 0 for one burst, or at least the burst, here 100,", "Also"}},
		{tiered.Policy{Limit: minute.And(make([]tiered.Limit, 8)...)}, words{"Policy.Limit.Also is 8 limits: must be at most 7", "zero"}},
		{tiered.Policy{Limit: minute.WithBurst(20), Algorithm: tiered.FixedWindow}, words{"Policy.Limit.Burst is 20: must be 0: a fixed window"}},
		{tiered.Policy{Limit: minute, Algorithm: tiered.SlidingLog, Lease: tiered.Lease{Size: 2}}, words{"Policy.Lease.Size is 2: must be 0 or NoLease: a SlidingLog"}},
		{tiered.Policy{Limit: minute, Algorithm: tiered.SlidingLog, Lease: tiered.Lease{Period: second}}, words{"Policy.Lease.Period is 1s: must be 0"}},
		{tiered.Policy{Limit: tiered.PerMinute(200_000), Algorithm: tiered.SlidingLog}, words{"Policy.Limit.Tokens is 200000: must be at most 100000"}},
		{tiered.Policy{Limit: tiered.Per(10, 20*365*24*time.Hour), Algorithm: tiered.FixedWindow}, words{"must be at most 10 years"}},
		{tiered.Policy{Limit: precise(minute, time.Hour), Algorithm: tiered.SlidingWindow}, words{"Policy.Limit.Precision is 1h0m0s: must be 1µs to Per"}},
		{tiered.Policy{Limit: precise(minute, 100*ms), Algorithm: tiered.SlidingWindow}, words{"Policy.Limit.Precision is 100ms: must divide Per into at most 511 blocks, here 600"}},

		{tiered.Policy{Limit: minute, Plans: plan("", minute)}, words{`Policy.Plans is 1 plans: must have no plan "", because that is a request without a plan: Limit is its limit`}},
		{tiered.Policy{Limit: minute, Plans: plan(" pro", tiered.PerMinute(1))}, words{`Policy.Plans[" pro"] is 1/min: its name must be 1 to 64 bytes, without space around`}},
		{tiered.Policy{Limit: minute, Plans: plan(strings.Repeat("x", 65), minute)}, words{`its name must be 1 to 64 bytes`}},
		{tiered.Policy{Limit: minute, Plans: plan("pro", tiered.Limit{})}, words{`Policy.Plans["pro"] is zero: must be set`}},
		{tiered.Policy{Limit: minute, Plans: plan("pro", tiered.PerMinute(-5))}, words{`Policy.Plans["pro"].Tokens is -5: must be 1 to 2^40`}},
		{tiered.Policy{Limit: minute, Plans: plan("pro", minute.WithBurst(0))}, words{`Policy.Plans["pro"].Burst is 0: must be`}},
		{tiered.Policy{Plans: pro}, words{`Policy.Limit is zero: must be set`}},
		{tiered.Policy{Limit: tiered.Unlimited(), Plans: pro}, words{`Policy.Limit is Unlimited: must be a limit or Blocked with Plans, because requests with an unknown plan go by it`}},
		{tiered.Policy{Limit: minute, Plans: many}, words{`Policy.Plans is 1001 plans: must be at most 1000`}},
		{tiered.Policy{Limit: minute.And(tiered.PerDay(9000)), Plans: pro}, words{`Policy.Plans["pro"] is 1 limit: must be 2 limits, as Limit is, because the buckets in Redis count by them`}},
		{tiered.Policy{Limit: minute, Plans: plan("pro", tiered.PerHour(9)), Algorithm: tiered.FixedWindow}, words{`Policy.Plans["pro"].Per is 1h0m0s: must be that of Limit, 1m0s`}},
		{tiered.Policy{Limit: minute, Plans: plan("pro", tiered.PerMinute(200_000)), Algorithm: tiered.SlidingLog}, words{`Policy.Plans["pro"].Tokens is 200000: must be at most 100000`}},
		{tiered.Policy{Limit: minute, Plans: plan("pro", tiered.PerMinute(9).WithBurst(20)), Algorithm: tiered.FixedWindow}, words{`Policy.Plans["pro"].Burst is 20: must be 0`}},

		{tiered.Policy{Limit: tiered.PerSecond(10), Standing: 1.0 / 8}, words{"Standing is 0.125: must be 0 with Limit 10/s: its burst is 10: must be at least 16"}},
		{tiered.Policy{Limit: minute, Algorithm: tiered.SlidingWindow, Standing: 1.0 / 4}, words{"Standing is 0.25: must be 0 with a sliding window: only a TokenBucket or a FixedWindow can be split"}},
		{tiered.Policy{Limit: tiered.PerMonth(100), Algorithm: tiered.FixedWindow, Standing: 1.0 / 4}, words{"must be 0 with windows of the calendar"}},
		{
			tiered.Policy{Limit: tiered.Limit{Tokens: 100, Per: 500 * time.Millisecond}, Algorithm: tiered.FixedWindow, Standing: 1.0 / 4},
			words{"must be 0 with Limit 100/500ms: its window is 500ms: must be at least 1s"},
		},
		{tiered.Policy{Limit: minute.And(tiered.PerSecond(100), tiered.PerHour(10)), Standing: 1.0 / 8}, words{"Standing is 0.125: must be 0 with Limit.Also[1] 10/h: its burst is 10: must be at least 16"}},
		{tiered.Policy{Limit: tiered.PerSecond(4).WithBurst(100).And(minute), Standing: 1.0 / 8}, words{"must be 0 with Limit 4/s burst 100: it refills 4 tokens per period: must be at least 8"}},
		{tiered.Policy{Limit: minute, Standing: 1}, words{"Standing is 1: must be a multiple of 1/8 from 0 to 3/4"}},
		{tiered.Policy{Limit: minute, Standing: 0.3}, words{"Standing is 0.3: must be a multiple of 1/8 from 0 to 3/4"}},
		{tiered.Policy{Limit: minute, Standing: -0.5}, words{"Standing is -0.5: must be a multiple of 1/8 from 0 to 3/4"}},
		{tiered.Policy{Limit: minute, Standing: math.NaN()}, words{"Standing is NaN: must be a multiple of 1/8 from 0 to 3/4"}},
		{tiered.Policy{Limit: minute, Standing: math.Inf(1)}, words{"Standing is +Inf: must be a multiple of 1/8 from 0 to 3/4"}},
		{tiered.Policy{Name: "!", Limit: tiered.Limit{Tokens: -1, Per: -1}, Lease: tiered.Lease{Period: 1}}, words{"Name", "Tokens", "Per is -1ns", "Lease.Period"}},
	} {
		if c.p.Limit != (tiered.Limit{}) || c.p.Plans != nil {
			c.p.Name = cmp.Or(c.p.Name, "x")
		}
		err := c.p.Validate()
		if n := strings.Count(fmt.Sprint(err), "tiered: "); n != 1 && len(c.want) == 1 {
			t.Errorf("%+v: %d lines for one mistake: %v", c.p, n, err)
		}
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
		if err := b.Close(ctx); err == nil || !strings.Contains(err.Error(), "must be Group.Close") {
			t.Errorf("Close of one in a Group: %v", err)
		}
		want(t, b.Allow(ctx, "k"), tiered.Granted) // the Group goes on
		want(t, l.Allow(ctx, "k"), tiered.Granted) // and the same key under another policy is another bucket
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
