package httplimit_test

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/testgroup"
	"github.com/tiered-limiter/tiered-limiter/lua"
	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
	"github.com/tiered-limiter/tiered-limiter/tiered/httplimit"
)

// A request goes by its plan, alone or with other rules, and is charged by it afterwards.
func TestRuleWithPlans(t *testing.T) {
	for _, c := range []struct {
		plan      string
		burst     string
		unknown   int64
		remaining int64 // after 40 more were charged
	}{{"", "100", 0, 59}, {"pro", "1000", 0, 959}, {"gold", "100", 1, 59}} {
		for _, others := range []bool{false, true} {
			synctest.Test(t, func(t *testing.T) {
				g, _ := group(t)
				users := testgroup.NewLimiter(t, g, tiered.Policy{
					Name: "per-user", Limit: tiered.PerDay(100), Plans: map[string]tiered.Limit{"pro": tiered.PerDay(1000)},
				})
				rules := []httplimit.Rule{perUser(users)}
				rules[0].Plan = func(r *http.Request) string { return r.Header.Get("X-Plan") }
				if others {
					all := limiter(t, g, "all", tiered.PerDay(1<<30))
					rules = append(rules, httplimit.Rule{Limiter: all, Key: httplimit.Method(), Missing: httplimit.Refuse})
				}
				h := wrap(t, rules, &httplimit.Options{Settle: true}, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
					if err := httplimit.Settle(r.Context(), map[string]int64{"per-user": 41}); err != nil {
						t.Error(err)
					}
				}))
				r := requestOf("ann")
				r.Header.Set("X-Plan", c.plan)
				if got := do(h, r).Header.Get("X-RateLimit-Limit"); got != c.burst {
					t.Errorf("plan %q: a limit of %s, want %s", c.plan, got, c.burst)
				}
				time.Sleep(time.Second)
				if n := g.Stats().Policies["per-user"].Faults.UnknownPlans; n != c.unknown {
					t.Errorf("plan %q: %d unknown plans, want %d", c.plan, n, c.unknown)
				}
				if d := users.For("ann").WithPlan(c.plan).Peek(t.Context()); d.Remaining != c.remaining {
					t.Errorf("plan %q: %d left, want %d", c.plan, d.Remaining, c.remaining)
				}
			})
		}
	}
}

// One function from the request says the plan of all its limits, a minute's and a month's: it is
// called once. A rule may have a function of its own, and a contract beats the plan. What a client
// reads is of the limit that refuses: never the month's end with the minute's refusal, nor the
// other way round, and never a time before the window ends.
func TestPlanOfAMinuteAndAMonth(t *testing.T) {
	end := monthEnds
	for _, c := range []struct {
		name, plan    string
		contract      tiered.Limit // of the minute
		minute, month int
		spent         int64 // of the month
		refusedBy     string
	}{
		{"no plan", "", tiered.Limit{}, 3, 100, 0, "minute"},
		{"a plan", "pro", tiered.Limit{}, 5, 500, 0, "minute"},
		{"a contract", "pro", tiered.PerMinute(7), 7, 500, 0, "minute"},
		{"the month is spent", "pro", tiered.Limit{}, 5, 500, 498, "month"},
	} {
		synctest.Test(t, func(t *testing.T) {
			time.Sleep(time.Until(end.AddDate(0, 0, -16).Add(1234567 * time.Microsecond)))
			g := testgroup.New(t, late{remote.NewMemory()}, nil)
			minute := perUser(testgroup.NewLimiter(t, g, tiered.Policy{
				Name: "minute", Limit: tiered.PerMinute(3), Plans: map[string]tiered.Limit{"pro": tiered.PerMinute(5)},
			}))
			minute.Limit = func(*http.Request) tiered.Limit { return c.contract }
			month := perUser(testgroup.NewLimiter(t, g, tiered.Policy{
				Name: "month", Limit: tiered.PerMonth(100).From(17), Algorithm: tiered.FixedWindow,
				Plans: map[string]tiered.Limit{"pro": tiered.PerMonth(500).From(17)},
			}))
			all := httplimit.Rule{Limiter: limiter(t, g, "all", tiered.PerSecond(1000)), Key: httplimit.Method(), Missing: httplimit.Refuse}
			asked := 0
			h := wrap(t, []httplimit.Rule{minute, month, all}, &httplimit.Options{
				Plan: func(*http.Request) string { asked++; return c.plan }, IETFDraft11: true,
			}, ok)
			if c.spent > 0 && !month.Limiter.For("ann").WithPlan(c.plan).N(c.spent).Allow(t.Context()).Allowed {
				t.Fatal("the month has not so much")
			}
			admitted, last := 0, get(h, "ann")
			for ; last.StatusCode == 200; last = get(h, "ann") {
				admitted++
				state := fmt.Sprintf(`"month";r=%d;t=%d`, c.month-int(c.spent)-admitted, seconds(t, last, "X-RateLimit-Reset")/time.Second)
				if fields := last.Header.Get("RateLimit"); strings.Contains(fields, "month") != (c.refusedBy == "month") ||
					c.refusedBy == "month" && fields != state {
					t.Errorf("%s: %s, want %s", c.name, fields, state)
				}
			}
			if want := min(c.minute, c.month-int(c.spent)); admitted != want || asked != admitted+1 {
				t.Errorf("%s: %d admitted, want %d; the plan was asked %d times", c.name, admitted, want, asked)
			}
			retry, reset := seconds(t, last, "Retry-After"), seconds(t, last, "X-RateLimit-Reset")
			limit, left := last.Header.Get("X-RateLimit-Limit"), time.Until(end)
			fields := last.Header.Get("RateLimit-Policy") + " " + last.Header.Get("RateLimit")
			switch back := time.Now().Add(retry); c.refusedBy {
			case "minute":
				if limit != fmt.Sprint(c.minute) || retry > time.Minute || reset > time.Minute || !strings.Contains(fields, `"minute";r=`) {
					t.Errorf("%s: %v, reset %v of %s, %s", c.name, retry, reset, limit, fields)
				}
			case "month":
				if back.Before(end) || back.After(end.Add(time.Second)) || retry != reset || limit != fmt.Sprint(c.month) {
					t.Errorf("%s: %v, reset %v of %s, but the month ends in %v", c.name, retry, reset, limit, left)
				}
				want := fmt.Sprintf(`"month";q=500;w=%d`, 31*24*3600)
				if state := fmt.Sprintf(`"month";r=0;t=%d`, retry/time.Second); !strings.Contains(fields, want) || !strings.HasSuffix(fields, state) {
					t.Errorf("%s: %s, want %s and %s", c.name, fields, want, state)
				}
			}
			if !strings.Contains(fields, `"all";q=1000;w=1`) { // it has no plans, so its limit is known
				t.Errorf("%s: %s", c.name, fields)
			}
			unix := wrap(t, []httplimit.Rule{month}, &httplimit.Options{
				Plan: func(*http.Request) string { return c.plan }, Headers: httplimit.Headers{ResetUnix: true},
			}, ok)
			if at := get(unix, "bob").Header.Get("X-RateLimit-Reset"); at != fmt.Sprint(end.Unix()) {
				t.Errorf("%s: reset at %s, want %d", c.name, at, end.Unix())
			}
			time.Sleep(retry)
			if again := get(h, "ann"); again.StatusCode != 200 {
				t.Errorf("%s: refused again after %v: %v", c.name, retry, again.Header)
			}
		})
	}
}

// late is a Memory whose answers come 2 ms late, and whose processes rest for most of the month.
type late struct{ *remote.Memory }

func (late) RestsUntil() time.Time { return monthEnds.Add(-10 * time.Second) }

var monthEnds = time.Date(2000, time.February, 17, 0, 0, 0, 0, time.UTC)

func (l late) Run(ctx context.Context, timeout time.Duration, calls []lua.Call, results []remote.Result) {
	l.Memory.Run(ctx, timeout, calls, results)
	time.Sleep(2 * time.Millisecond)
}

// seconds reads a field.
func seconds(t *testing.T, r *http.Response, field string) time.Duration {
	t.Helper()
	n, err := strconv.Atoi(r.Header.Get(field))
	if err != nil {
		t.Fatalf("%s: %v", field, err)
	}
	return time.Duration(n) * time.Second
}

// A plan that is for no policy is a mistake.
func TestPlanForNobody(t *testing.T) {
	g, _ := group(t)
	plan := func(*http.Request) string { return "pro" }
	plans := testgroup.NewLimiter(t, g, tiered.Policy{
		Name: "plans", Limit: tiered.PerSecond(1), Plans: map[string]tiered.Limit{"pro": tiered.PerSecond(2)},
	})
	none, own := perUser(limiter(t, g, "none", tiered.PerSecond(1))), perUser(plans)
	own.Plan = plan
	for _, rules := range [][]httplimit.Rule{{none}, {own, none}} {
		_, err := httplimit.New(rules, &httplimit.Options{Plan: plan})
		want := "httplimit: Options.Plan is set, and no policy of the rules without Plan has Plans: must be nil, or one must have plans"
		if err == nil || err.Error() != want {
			t.Errorf("%v, want %s", err, want)
		}
	}
	if _, err := httplimit.New([]httplimit.Rule{none, perUser(plans)}, &httplimit.Options{Plan: plan}); err != nil {
		t.Error(err)
	}
}
