package tiered_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tiered-limiter/tiered-limiter/internal/dispatch"
	"github.com/tiered-limiter/tiered-limiter/internal/test/proof/ideal"
	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/redistest"
	"github.com/tiered-limiter/tiered-limiter/lua"
	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// ends is a tape that fails when the store refuses a call for its arguments, and says by its own
// clock when each was executed.
type ends struct {
	*distant
	t *testing.T

	mu    sync.Mutex
	calls []lua.Call
}

func (s *ends) Run(ctx context.Context, timeout time.Duration, calls []lua.Call, results []remote.Result) {
	s.distant.Run(ctx, timeout, calls, results)
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, c := range calls {
		if dispatch.IsScriptError(results[i].Err) {
			s.t.Errorf("%v: %+v", results[i].Err, c)
		}
		if c.Now = results[i].Reply.Now; results[i].Err == nil && c.Now > 0 {
			s.calls = append(s.calls, c)
		}
	}
}

// policiesAtTheEnds are those that validation accepts of all that have each of their numbers at an
// end of its range.
func policiesAtTheEnds() (all []tiered.Policy) {
	const year = 365 * 24 * time.Hour
	leases := []tiered.Lease{{}, {Size: tiered.NoLease}, {Period: tiered.MinPeriod}, {Size: 1, Period: tiered.MaxPeriod}}
	modes := []tiered.FailMode{tiered.FailOpen, tiered.FailLocal, tiered.FailClosed}
	n := 0
	for _, a := range algorithms {
		for _, per := range []time.Duration{
			time.Microsecond, 7 * time.Microsecond, second, time.Minute, tiered.MaxWindow, (1 << 50) * time.Microsecond,
			(1<<50 + 1) * time.Microsecond, tiered.MaxPer / 64 / 1000 * 1000, tiered.MaxPer / 2, tiered.MaxPer,
		} {
			for _, tokens := range []int64{1, 64, tiered.MaxEntries, tiered.MaxTokens - 1, tiered.MaxTokens} {
				for _, burst := range []int64{0, 1, 64, tiered.MaxTokens} {
					for _, also := range []int{0, 1, tiered.MaxLimits - 1} {
						n++
						p := tiered.Policy{
							Name: fmt.Sprint("p", n), Algorithm: a, Calendar: a == tiered.FixedWindow && n%2 == 0,
							Limit: tiered.Limit{Tokens: tokens, Per: per, Burst: burst}, Lease: leases[n%4],
							FailMode: modes[n/2%3],
						}
						var further []tiered.Limit
						for j := range also {
							l := p.Limit
							if l.Per -= time.Duration(j+1) * time.Microsecond; per < second {
								l.Per = time.Duration(100+j) * year / 128 / 1000 * 1000
							}
							further = append(further, l)
						}
						if a == tiered.SlidingWindow {
							for i := range further {
								further[i].Precision = precisionAtAnEnd(further[i].Per, n+i+1)
							}
							p.Limit.Precision = precisionAtAnEnd(per, n)
						}
						p.Limit = p.Limit.And(further...)
						if a == tiered.SlidingLog {
							p.Lease = tiered.Lease{}
						}
						if p.Validate() == nil {
							all = append(all, p)
						}
					}
				}
			}
		}
	}
	return all
}

// precisionAtAnEnd returns 0, the whole period, or the shortest legal precision.
func precisionAtAnEnd(per time.Duration, i int) time.Duration {
	return []time.Duration{0, per, max((per/tiered.MaxBlocks + time.Microsecond).Truncate(time.Microsecond),
		time.Microsecond)}[i%3]
}

// The scripts refuse nothing that validation accepts: no call of any kind, for any policy at the
// ends of all ranges. And they answer each call as Memory does.
func TestEndsOfAllRanges(t *testing.T) {
	notUnderRace(t)
	policies := policiesAtTheEnds()
	if testing.Short() {
		some := policies[:0]
		for i := 0; i < len(policies); i += 2 {
			some = append(some, policies[i])
		}
		policies = some
	}
	var calls []lua.Call
	asked := map[tiered.Algorithm]int{}
	for _, p := range policies {
		synctest.Test(t, func(t *testing.T) {
			store := &ends{distant: newDistant(ms), t: t}
			l := several(t, store, &tiered.Options{Processes: 1}, p)[0]
			toTheEnds(t, store, l, p)
			if s := l.Group().Stats().Policies[p.Name]; s.Faults.Rejected > 0 {
				t.Errorf("%+v: %d calls refused", p, s.Faults.Rejected)
			}
			store.mu.Lock() // something may go back yet
			defer store.mu.Unlock()
			asked[p.Algorithm] += len(store.calls)
			calls = append(calls, store.calls...)
		})
		if t.Failed() {
			t.Fatalf("by %+v", p)
		}
	}
	t.Logf("%d policies, calls by algorithm: %v", len(policies), asked)
	for _, a := range algorithms {
		if asked[a] < 500 {
			t.Errorf("%d calls of a %v: this shows little", asked[a], a)
		}
	}

	redis := open(t, redistest.Start(t).URL())
	for len(calls) > 0 {
		some := calls[:min(len(calls), 200)]
		calls = calls[len(some):]
		results := make([]remote.Result, len(some))
		for i := range some {
			some[i].Bucket = redis.Key(fmt.Sprint("a", some[i].Algorithm), some[i].Bucket)
		}
		redis.Run(ctx, 10*second, some, results)
		for i, r := range results {
			if r.Err != nil {
				t.Fatalf("%v: %+v", r.Err, some[i])
			}
		}
	}
}

// toTheEnds makes a Limiter send calls of every kind.
func toTheEnds(t *testing.T, store *ends, l *tiered.Limiter, p tiered.Policy) {
	burst := burstOf(p.Limit)
	check := func(d tiered.Decision) {
		t.Helper()
		if d.Remaining < 0 || d.Remaining > d.Burst || d.RetryAfter < 0 || d.ResetAfter < 0 {
			t.Errorf("%+v", d)
		}
	}
	for _, n := range []int64{1, 2, burst, burst/3 + 1, burst} {
		check(l.AllowN(ctx, "k", n))
		first, second, third := l.ReserveN(ctx, "k", max(n/2, 1)), l.ReserveN(ctx, "k", 1), l.ReserveN(ctx, "k", 1)
		first.Cancel()
		second.Settle(math.MaxInt64)
		third.Settle(math.MinInt64)
		check(l.Peek(ctx, "k"))
		check(l.AllowN(ctx, "k", 1))
		time.Sleep(60 * ms)
	}
	for range 40 { // until a lease pays
		check(l.Allow(ctx, "k"))
		time.Sleep(ms)
	}
	if err := l.Reset(ctx, "k"); err != nil {
		t.Errorf("Reset: %v", err)
	}
	store.Fail(context.DeadlineExceeded)
	for range 20 {
		check(l.AllowN(ctx, "k", burst))
		time.Sleep(20 * ms)
	}
	for i := 0; i < 1<<14 && burst > 1<<30; i++ { // more than is exact in a double
		l.AllowN(ctx, "k", burst)
	}
	store.Fail(nil)
	time.Sleep(2 * second)
	for range 3 {
		check(l.Allow(ctx, "k"))
		time.Sleep(300 * ms)
	}
	if n := tiered.Dispatch(l.Group()).Nodes()[0]; n.State().String() != "closed" {
		t.Errorf("the breaker is %v", n.State())
	}
	if err := l.Reset(ctx, "k"); err != nil {
		t.Errorf("Reset: %v", err)
	}
}

// FuzzPolicy: a Policy of any numbers is either refused, with field, value and rule of all that is
// wrong with it and of nothing else, or makes a Limiter that keeps to it. In period as in all
// durations here are ns.
func FuzzPolicy(f *testing.F) {
	const s = int64(time.Second)
	add := func(name string, tokens, per, burst, size, period int64, mode tiered.FailMode, n int64, key string) {
		f.Add(name, tokens, per, burst, size, period, uint8(mode), n, key)
	}
	add("api", 100, s, 200, 0, 0, tiered.FailLocal, 7, "alice")
	add("a.B-9_", 1, 24*3600*s, 0, 1, s, tiered.FailOpen, 1, "x")
	add(strings.Repeat("x", 64), 1<<40, s/1e6, 1<<40, 1<<38, 5*s/1000, tiered.FailClosed, 1<<40, strings.Repeat("k", 201))
	add("x", 1, int64(tiered.MaxPer), 1<<40, tiered.NoLease, 60*s, tiered.FailLocal, 1<<39, "\x00")
	add("x", 1<<40, int64(tiered.MaxPer), 3, 1, 0, tiered.FailLocal, 3, "\xff")
	add("x", 1000, s, 5, 2, 0, tiered.FailLocal, 4, strings.Repeat("k", tiered.MaxKeyLength+1))
	add("x", 10, s, 0, 0, 0, tiered.FailLocal, 10, "")
	add("x", 9, s, 0, 3, 0, tiered.FailLocal, 9, "k")
	add("x", 3, 7*s/1000, 50, 0, 0, tiered.FailLocal, 20, "k")
	// What is wrong alone, and together.
	add("", 0, 0, 0, 0, 0, tiered.FailLocal, 1, "k")
	add("x", 9, s, 0, 4, 0, tiered.FailLocal, 9, "k")
	add("a/b", 10, s, 0, 99, 0, tiered.FailLocal, 1, "k")
	add(strings.Repeat("x", 65), 1, s, 0, 0, 0, tiered.FailClosed+1, 1, "k")
	add("a\n", 1<<40+1, 1500, 1<<40+1, -2, 1, 255, 1, "k")
	add("x", -1, -1, -1, -2, -1, tiered.FailLocal, 1, "k")
	add("x", math.MaxInt64, math.MaxInt64, math.MaxInt64, math.MaxInt64, math.MaxInt64, tiered.FailLocal, 1, "k")
	add("x", math.MinInt64, math.MinInt64, math.MinInt64, math.MinInt64, math.MinInt64, tiered.FailLocal, 1, "k")
	f.Fuzz(func(t *testing.T, name string, tokens, per, burst, size, period int64, mode uint8, n int64, key string) {
		p := tiered.Policy{
			Name: name, Limit: tiered.Limit{Tokens: tokens, Per: time.Duration(per), Burst: burst},
			FailMode: tiered.FailMode(mode), Lease: tiered.Lease{Size: size, Period: time.Duration(period)},
		}
		wrong := problems{}
		wrong.find("Name", fmt.Sprintf("%.80q", name),
			name != "" && len(name) <= 64 && strings.Trim(name, nameLetters) == "")
		if p.Limit == (tiered.Limit{}) {
			wrong.find("Limit", "zero", false)
		} else {
			wrong.find("Limit.Tokens", tokens, tokens >= 1 && tokens <= 1<<40)
			wrong.find("Limit.Per", p.Limit.Per, per >= 1000 && per%1000 == 0 && per <= 100*365*24*3600*s)
			wrong.find("Limit.Burst", burst, burst >= 0 && burst <= 1<<40)
		}
		if burst == 0 {
			burst = tokens
		}
		limited := len(wrong) == 0 || len(wrong) == 1 && wrong["Name"] != ""
		// A quarter of what makes no sense is none.
		wrong.find("Lease.Size", size, size >= tiered.NoLease && (!limited || size <= (burst+3)/4))
		wrong.find("Lease.Period", p.Lease.Period, period == 0 || period >= 5*s/1000 && period <= 60*s)
		wrong.find("FailMode", p.FailMode, mode <= uint8(tiered.FailClosed))

		synctest.Test(t, func(t *testing.T) {
			l, err := tiered.New(remote.NewMemory(), p, nil)
			if others := wrong.reported(t, "Policy", err); len(others) > 0 {
				t.Errorf("nothing is wrong with that: %q", others)
			}
			if err == nil {
				keepsTo(t, l, key, n)
			} else if l != nil {
				t.Error("a Limiter beside an error")
			}
		})
	})
}

// nameLetters are those that a policy's name may have.
const nameLetters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-"

// FuzzOptions: the same of Options. random is what every random choice comes to, of 65 536 parts.
func FuzzOptions(f *testing.F) {
	const ms = int64(time.Millisecond)
	add := func(budget, timeout, processes, maxKeys, maxInFlight int64, random uint16, n int64) {
		f.Add(budget, timeout, processes, maxKeys, maxInFlight, random, n)
	}
	add(0, 0, 0, 0, 0, 0, 1)
	add(ms, ms, 1<<20, 1, 1, 65535, 25)
	add(60_000*ms, 60_000*ms, 7, 1<<30, 1<<16, 32768, 100)
	add(60_000*ms, 0, 0, 3, 2, 1, 99)
	add(0, 20*ms, 0, 257, 0, 9, 3)
	// What is wrong alone, and together.
	add(0, 20*ms-1, 0, 0, 0, 0, 1)
	add(ms-1, 0, 0, 0, 0, 0, 1)
	add(60_000*ms+1, 60_000*ms, 0, 0, 0, 0, 1)
	add(30*ms, 29*ms, 1<<20+1, 1<<30+1, 1<<16+1, 0, 1)
	add(-1, -1, -1, -1, -1, 0, 1)
	add(math.MaxInt64, math.MaxInt64, math.MaxInt64, math.MaxInt64, math.MaxInt64, 0, 1)
	add(math.MinInt64, math.MinInt64, math.MinInt64, math.MinInt64, math.MinInt64, 0, 1)
	f.Fuzz(func(t *testing.T, budget, timeout, processes, maxKeys, maxInFlight int64, random uint16, n int64) {
		o := &tiered.Options{
			Budget: time.Duration(budget), Timeout: time.Duration(timeout),
			Processes: int(processes), MaxKeys: int(maxKeys), MaxInFlight: int(maxInFlight),
			Random: func() float64 { return float64(random) / 65536 },
		}
		least := budget // of Timeout
		if budget == 0 {
			least = 20 * ms
		}
		wrong := problems{}
		wrong.find("Budget", o.Budget, budget == 0 || budget >= ms && budget <= 60_000*ms)
		wrong.find("Timeout", o.Timeout, timeout == 0 || timeout >= least && timeout <= 60_000*ms)
		wrong.find("Processes", o.Processes, o.Processes >= 0 && o.Processes <= 1<<20)
		wrong.find("MaxKeys", o.MaxKeys, o.MaxKeys >= 0 && o.MaxKeys <= 1<<30)
		wrong.find("MaxInFlight", o.MaxInFlight, o.MaxInFlight >= 0 && o.MaxInFlight <= 1<<16)

		synctest.Test(t, func(t *testing.T) {
			l, err := tiered.New(remote.NewMemory(), tiered.Policy{Name: "p", Limit: tiered.PerSecond(100)}, o)
			if others := wrong.reported(t, "Options", err); len(others) > 0 {
				t.Errorf("nothing is wrong with that: %q", others)
			}
			if err == nil {
				keepsTo(t, l, "key", n)
			} else if l != nil {
				t.Error("a Limiter beside an error")
			}
			_, err = tiered.New(nil, tiered.Policy{}, o) // mistakes elsewhere hide none
			if others := strings.Join(wrong.reported(t, "Options", err), " "); strings.Count(others, "Policy.") != 2 ||
				!strings.Contains(others, "the store is nil") {
				t.Errorf("neither a store nor a policy, and that is all: %q", others)
			}
		})
	})
}

// problems are the fields that break a rule, and what each error should show as the value.
type problems map[string]string

func (p problems) find(field string, value any, ok bool) {
	if !ok {
		p[field] = fmt.Sprint(value)
	}
}

// problemLine is how an error speaks of a field.
var problemLine = regexp.MustCompile(`^tiered: (Policy|Options)\.([A-Za-z.]+) is (.+): must be .+$`)

// reported checks that err names exactly these fields of a struct, each with its value and a rule.
// It returns what err says of anything else.
func (p problems) reported(t *testing.T, of string, err error) (others []string) {
	t.Helper()
	var lines []string
	if err != nil {
		lines = strings.Split(err.Error(), "\n")
	}
	seen := 0
	for _, line := range lines {
		m := problemLine.FindStringSubmatch(line)
		if m == nil || m[1] != of {
			others = append(others, line)
			continue
		}
		value, ok := p[m[2]]
		if cut := strings.HasSuffix(m[3], "…\""); !ok || m[3] != value && !cut {
			t.Errorf("of wrong values %v is said: %s", p, line)
		}
		seen++
	}
	if seen != len(p) {
		t.Errorf("wrong are %v, and what is said is\n%v", p, err)
	}
	return others
}

// keepsTo asks l for all sorts of amounts, by the clock of a bubble, and closes it. The store is
// near and nobody else is there, so all is as with an ideal bucket but for the tokens in a lease.
func keepsTo(t *testing.T, l *tiered.Limiter, key string, n int64) {
	t.Helper()
	defer func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := errors.Join(l.Close(ctx), l.Close(ctx)); err != nil {
			t.Errorf("Close: %v", err)
		}
	}()
	limit := l.Policy().Limit
	burst := limit.Burst
	if burst == 0 {
		burst = limit.Tokens
	}
	start, admitted := time.Now(), ideal.NewPolicer(limit.Tokens, limit.Per, burst)
	fresh := true
	ask := func(n int64) {
		t.Helper()
		d := l.AllowN(t.Context(), key, n)
		want := []tiered.Reason{tiered.Granted, tiered.Limited}
		switch {
		case key == "" || len(key) > tiered.MaxKeyLength:
			want = []tiered.Reason{tiered.InvalidKey}
		case n <= 0:
			want = []tiered.Reason{tiered.InvalidCost}
		case n > burst:
			want = []tiered.Reason{tiered.ExceedsBurst}
		case fresh:
			want, fresh = []tiered.Reason{tiered.Granted}, false
		}
		if !slices.Contains(want, d.Reason) || d.Allowed != (d.Reason == tiered.Granted) {
			t.Fatalf("%d of %d: %+v, want %v", n, burst, d, want)
		}
		if d.Burst != burst || d.Remaining < 0 || d.Remaining > burst || d.Policy != l.Policy().Name || d.Key != key ||
			d.ResetAfter < 0 || d.RetryAfter < 0 || (d.Reason == tiered.Limited) != (d.RetryAfter > 0) {
			t.Fatalf("%d of %d: %+v", n, burst, d)
		}
		if err := d.Err(); d.Allowed != (err == nil) ||
			len(key) > 16 && err != nil && strings.Contains(err.Error(), key) {
			t.Fatalf("%+v: %v", d, err)
		}
		if d.Allowed {
			admitted.Admit(int64(time.Since(start)), n)
		}
	}
	for _, n := range []int64{0, -1, math.MinInt64, math.MaxInt64, burst + 1, n, 1, burst, burst/4 + 1, 1} {
		ask(n)
	}
	for _, pause := range []time.Duration{0, time.Microsecond, 1100 * time.Millisecond, 3 * time.Second} {
		time.Sleep(pause) // a lease ends, an idle one goes back, a denial is forgotten
		for _, n := range []int64{1, 1, n, burst} {
			ask(n)
		}
	}
	// Redis keeps its time in µs and its level in doubles of 15 digits.
	slack := 1e-6 + 1e-12*float64(burst) + float64(limit.Tokens)/float64(limit.Per)*float64(time.Microsecond)
	if worst := admitted.Worst(); worst.Over > slack {
		t.Errorf("%+v: %v", l.Policy(), worst)
	}
}
