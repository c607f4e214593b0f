package httplimit_test

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dunglas/httpsfv"

	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/fatal"
	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/testgroup"
	"github.com/tiered-limiter/tiered-limiter/tiered"
	"github.com/tiered-limiter/tiered-limiter/tiered/httplimit"
)

// known are all Reasons there are.
func known() (all []tiered.Reason) {
	for r := tiered.Unknown; r <= tiered.Canceled; r++ {
		all = append(all, r)
	}
	return all
}

// Which fields an answer has, by Reason: a table of all of them.
func TestFieldsByReason(t *testing.T) {
	type fields struct {
		status   int
		retry, x bool
	}
	want := map[tiered.Reason]fields{
		tiered.Granted:       {0, false, true},
		tiered.Fallback:      {0, false, true},
		tiered.Open:          {0, false, true},
		tiered.Shadowed:      {0, false, false},
		tiered.Limited:       {429, true, true},
		tiered.FallbackSpent: {429, true, true},
		tiered.ExceedsBurst:  {429, false, true},
		tiered.InvalidKey:    {400, false, false},
		tiered.InvalidCost:   {503, true, true},
		tiered.Unavailable:   {503, true, false},
		tiered.Canceled:      {503, false, false},
		tiered.Unknown:       {503, true, false},
	}
	o := httplimit.Options{Random: func() float64 { return 0 }}
	for _, reason := range known() {
		d := tiered.Decision{Reason: reason, Burst: 9, Policy: "p"}
		d.Allowed = tiered.Granted <= reason && reason <= tiered.Shadowed
		h := http.Header{}
		httplimit.WriteFields(h, o, nil, d)
		alone := http.Header{}
		httplimit.WriteHeaders(alone, d)
		if !maps.EqualFunc(h, alone, slices.Equal) {
			t.Errorf("%v: the middleware writes %v, WriteHeaders %v", reason, h, alone)
		}
		got := fields{0, h.Get("Retry-After") != "", h.Get("X-RateLimit-Limit") == "9"}
		if !d.Allowed {
			got.status = httplimit.Status(d)
		}
		if got != want[reason] {
			t.Errorf("%v: %+v, want %+v", reason, got, want[reason])
		}
	}
}

func TestResetUnix(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // begins at 2000-01-01 00:00:00 UTC
		g, _ := group(t)
		h := wrap(t, []httplimit.Rule{perUser(limiter(t, g, "p", tiered.PerMinute(1)))},
			&httplimit.Options{Headers: httplimit.Headers{ResetUnix: true}}, ok)
		time.Sleep(500 * time.Millisecond)
		if got, want := get(h, "ann").Header.Get("X-RateLimit-Reset"), strconv.Itoa(946684800+61); got != want {
			t.Errorf("X-RateLimit-Reset is %s, want %s", got, want)
		}
		h = wrap(t, []httplimit.Rule{perUser(limiter(t, g, "q", tiered.PerMinute(1)))}, &httplimit.Options{Headers: httplimit.Headers{Omit: true}},
			ok)
		if got := get(h, "ann").Header; got.Get("X-RateLimit-Reset")+got.Get("X-RateLimit-Limit")+got.Get("X-RateLimit-Remaining") != "" {
			t.Errorf("not left out: %v", got)
		}
	})
}

// Handlers that ask a Limiter themselves write the same answers as the middleware.
func TestWriteRefusal(t *testing.T) {
	refused := tiered.Decision{
		Reason: tiered.Limited, Policy: "per-user", Key: "ann", Burst: 200, RetryAfter: 1500 * time.Millisecond,
		ResetAfter: 3 * time.Second,
	}
	w := httptest.NewRecorder()
	httplimit.WriteRefusal(w, refused)
	if got := w.Body.String(); w.Code != 429 || got != "Rate limit exceeded.\n" ||
		w.Header().Get("Retry-After") != "2" ||
		w.Header().Get("X-RateLimit-Limit") != "200" || w.Header().Get("X-RateLimit-Reset") != "3" {
		t.Errorf("%d %q %v", w.Code, got, w.Header())
	}
	w = httptest.NewRecorder()
	if httplimit.WriteRefusal(w, tiered.Decision{Allowed: true, Reason: tiered.Granted, Burst: 9}); w.Body.Len() > 0 ||
		len(w.Header()) > 0 {
		t.Errorf("an admitted request is answered: %v", w)
	}
	h := http.Header{}
	httplimit.Headers{Prefix: "RateLimit", ResetUnix: true}.Write(h, refused)
	reset, err := strconv.ParseInt(h.Get("RateLimit-Reset"), 10, 64)
	if now := time.Now().Unix(); err != nil || reset < now || reset > now+5 || h.Get("RateLimit-Limit") != "200" ||
		len(h) != 4 {
		t.Errorf("%v", h)
	}
	for reason, body := range map[tiered.Reason]string{
		tiered.FallbackSpent: "Rate limit exceeded.",
		tiered.ExceedsBurst:  "The request costs more than the rate limit ever allows at once.",
		tiered.InvalidKey:    "The request does not identify its client.",
		tiered.Unavailable:   "The service cannot accept the request now. Try again later.",
	} {
		w := httptest.NewRecorder()
		httplimit.WriteRefusal(w, tiered.Decision{Reason: reason, Burst: 1, Policy: "secret-plan", Key: "ann"})
		if got := w.Body.String(); got != body+"\n" {
			t.Errorf("%v: %q", reason, got)
		}
	}
	w = httptest.NewRecorder()
	if httplimit.WriteRefusal(w, tiered.Decision{Reason: tiered.ExceedsBurst}); w.Body.String() != "Requests are not accepted.\n" {
		t.Errorf("blocked: %q", w.Body)
	}
}

func TestPrefixedHeaders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, _ := group(t)
		l := limiter(t, g, "p", tiered.PerMinute(9))
		h := wrap(t, []httplimit.Rule{perUser(l)}, &httplimit.Options{Headers: httplimit.Headers{Prefix: "acme-quota"}}, ok)
		if got := get(h, "ann").Header; got.Get("Acme-Quota-Limit") != "9" || got.Get("Acme-Quota-Remaining") != "8" ||
			got.Get("X-RateLimit-Limit") != "" {
			t.Errorf("%v", got)
		}
	})
}

// A request is limited by the plan that it carries, and told so.
func TestLimitOfTheRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, _ := group(t)
		plans := map[string]tiered.Limit{"pro": tiered.PerMinute(5), "open": tiered.Unlimited()}
		rule := perUser(limiter(t, g, "p", tiered.PerMinute(2)))
		rule.Limit = func(r *http.Request) tiered.Limit { return plans[r.Header.Get("X-Plan")] }
		h := wrap(t, []httplimit.Rule{rule}, &httplimit.Options{IETFDraft11: true}, ok)
		for _, c := range []struct {
			user, plan string
			admitted   int
			policy     string
		}{
			{"ann", "", 2, `"p";q=2;w=60`},
			{"bob", "pro", 5, `"p";q=5;w=60`},
			{"cid", "open", 20, ""},
		} {
			r := requestOf(c.user)
			r.Header.Set("X-Plan", c.plan)
			admitted := 0
			for range 20 {
				if do(h, r).StatusCode == 200 {
					admitted++
				}
			}
			if got := do(h, r).Header.Get("RateLimit-Policy"); admitted != c.admitted || got != c.policy {
				t.Errorf("%s: %d admitted, %q, want %d, %q", c.user, admitted, got, c.admitted, c.policy)
			}
		}
	})
}

// The two common middlewares, each in one line. TestNilNeverPanics has their mistakes.
func TestByIPAndByHeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, _ := group(t)
		byIP, errIP := httplimit.ByIP(limiter(t, g, "ip", tiered.PerMinute(1)))
		byUser, err := httplimit.ByHeader(limiter(t, g, "user", tiered.PerMinute(1)), "X-User")
		fatal.If(t, errors.Join(err, errIP))
		for i, c := range []struct {
			limit      func(http.Handler) http.Handler
			from, user string
			want       int
		}{
			{byIP, "192.0.2.1:1", "ann", 200},
			{byIP, "192.0.2.1:2", "bob", 429},
			{byIP, "192.0.2.2:1", "ann", 200},
			{byIP, "@", "ann", 400},
			{byUser, "192.0.2.1:1", "ann", 200},
			{byUser, "192.0.2.9:1", "ann", 429},
			{byUser, "192.0.2.1:1", "bob", 200},
		} {
			r := requestOf(c.user)
			r.RemoteAddr = c.from
			if got := do(c.limit(ok), r); got.StatusCode != c.want {
				t.Errorf("%d: %d, want %d", i, got.StatusCode, c.want)
			}
		}
	})
}

func TestJitter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, _ := group(t)
		next := 0.0
		h := wrap(t, []httplimit.Rule{perUser(limiter(t, g, "p", tiered.PerMinute(1)))},
			&httplimit.Options{Jitter: 10 * time.Second, IETFDraft11: true, Random: func() float64 { return next }}, ok)
		get(h, "ann")
		for _, c := range []struct {
			random float64
			want   string
		}{{0, "60"}, {0.5, "65"}, {0.51, "66"}, {math.Nextafter(1, 0), "70"}} {
			next = c.random
			r := get(h, "ann").Header
			if r.Get("Retry-After") != c.want || r.Get("RateLimit") != `"p";r=0;t=`+c.want {
				t.Errorf("Retry-After %s, RateLimit %s, want %s", r.Get("Retry-After"), r.Get("RateLimit"), c.want)
			}
		}
	})
}

// The fields of the draft, for two policies and one middleware within another.
func TestDraft11(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, _ := group(t)
		user := limiter(t, g, "user", tiered.PerSecond(100).WithBurst(150))
		ip := limiter(t, g, "ip", tiered.Limit{Tokens: 10, Per: time.Minute})
		all := limiter(t, g, "all", tiered.PerSecond(1e6))
		o := &httplimit.Options{IETFDraft11: true}
		h := wrap(t, []httplimit.Rule{perUser(user), {Limiter: ip, Key: httplimit.RemoteIP(), Missing: httplimit.Refuse}}, o, ok)
		h = wrap(t, []httplimit.Rule{{Limiter: all, Key: httplimit.Header("X-None"), Missing: httplimit.Together}}, o, h)
		for i, want := range []string{`"ip";r=9;t=54`, `"ip";r=8;t=48`, `"ip";r=7;t=42`} {
			r := get(h, "ann").Header
			if p := r.Values("RateLimit-Policy"); len(p) != 2 || p[0] != `"all";q=1000000;w=1` ||
				p[1] != `"user";q=150;w=2, "ip";q=10;w=60` {
				t.Errorf("RateLimit-Policy %q", p)
			}
			if l := r.Values("RateLimit"); len(l) != 2 || l[0] != fmt.Sprintf(`"all";r=%d;t=1`, 999999-i) ||
				l[1] != want {
				t.Errorf("RateLimit %q, want %s", l, want)
			}
		}
		for range 7 {
			get(h, "ann")
		}
		r := get(h, "ann")
		if r.StatusCode != 429 || r.Header.Values("RateLimit")[1] != `"ip";r=0;t=6` ||
			r.Header.Get("Retry-After") != "6" {
			t.Errorf("refused: %s %v", r.Status, r.Header)
		}
	})
}

// FuzzHeaders writes the fields for any numbers and reads them with what is not ours: net/http,
// strconv and httpsfv.
func FuzzHeaders(f *testing.F) {
	f.Add(int64(100), int64(time.Second), int64(200), int64(57), int64(3*time.Second), int64(time.Second),
		uint8(tiered.Limited), 0.5, int64(time.Second))
	f.Add(int64(1), int64(math.MaxInt64), int64(1<<40), int64(1<<40), int64(math.MaxInt64), int64(math.MaxInt64),
		uint8(tiered.Granted), 0.0, int64(0))
	f.Add(int64(1<<40), int64(1000), int64(0), int64(-5), int64(-1), int64(math.MaxInt64), uint8(tiered.FallbackSpent),
		0.999, int64(time.Hour))
	g, _ := group(f)
	name := 0
	f.Fuzz(func(t *testing.T, tokens, per, burst, remaining, reset, retry int64, reason uint8, random float64,
		jitter int64,
	) {
		p := tiered.Policy{
			Name:  "p" + strconv.Itoa(name),
			Limit: tiered.Limit{Tokens: tokens, Per: time.Duration(per), Burst: burst},
		}
		name++
		limiter, err := g.NewLimiter(p)
		if err != nil || !(random >= 0 && random < 1) || jitter < 0 || time.Duration(jitter) > time.Hour ||
			reason > uint8(tiered.Canceled) {
			t.Skip()
		}
		d := tiered.Decision{
			Reason: tiered.Reason(reason), Policy: p.Name, Burst: max(burst, 1), Remaining: remaining,
			ResetAfter: time.Duration(reset), RetryAfter: time.Duration(max(retry, 0)),
		}
		d.Allowed = tiered.Granted <= d.Reason && d.Reason <= tiered.Shadowed
		counted := !slices.Contains([]tiered.Reason{
			tiered.Unknown, tiered.Unavailable, tiered.InvalidKey, tiered.Canceled, tiered.Shadowed,
		}, d.Reason)
		for _, unix := range []bool{false, true} {
			o := httplimit.Options{
				Random: func() float64 { return random }, Jitter: time.Duration(jitter),
				IETFDraft11: true, Headers: httplimit.Headers{ResetUnix: unix},
			}
			h := http.Header{}
			httplimit.WriteFields(h, o, limiter, d)
			w := httptest.NewRecorder()
			for k, v := range h {
				if k != http.CanonicalHeaderKey(k) || len(v) != 1 {
					t.Errorf("%s is not as net/http keeps it: %q", k, v)
				}
				w.Header()[k] = v
			}
			again := int64(0)
			if v := h.Get("Retry-After"); v != "" {
				again, err = strconv.ParseInt(v, 10, 64)
				if err != nil || again < 1 || float64(again) < time.Duration(min(retry,
					math.MaxInt64-jitter)).Seconds() && d.Reason != tiered.Unavailable &&
					d.Reason != tiered.InvalidCost && counted {
					t.Errorf("Retry-After %s for %v", v, time.Duration(retry))
				}
			}
			for _, name := range []string{"X-RateLimit-Limit", "X-RateLimit-Remaining", "X-RateLimit-Reset"} {
				if v := h.Get(name); counted != (v != "") {
					t.Errorf("%s is %q for %v", name, v, d.Reason)
				} else if n, err := strconv.ParseInt(v, 10, 64); v != "" && (err != nil || n < 0) {
					t.Errorf("%s is %q", name, v)
				}
			}
			if !counted || limiter.Policy().Limit == tiered.Unlimited() || limiter.Policy().Limit == tiered.Blocked() {
				return
			}
			policy := one(t, h, "RateLimit-Policy", p.Name)
			q, w2 := integer(t, policy, "q"), integer(t, policy, "w")
			state := one(t, h, "RateLimit", p.Name)
			r, s := integer(t, state, "r"), integer(t, state, "t")
			rate := float64(tokens) / time.Duration(per).Seconds()
			const rounding = 1 + 1e-9
			if q < 1 || w2 < 1 || float64(q)/float64(w2) > rate*rounding && q > 1 {
				t.Errorf("q=%d w=%d is more than %v/s", q, w2, rate)
			}
			if s < 1 || float64(r)/float64(s) > rate*rounding {
				t.Errorf("r=%d t=%d is more than %v/s", r, s, rate)
			}
			if again > 0 && s != min(again, 999_999_999_999_999) {
				t.Errorf("t=%d and Retry-After %d", s, again)
			}
		}
	})
}

// one reads a field that has one item, the policy's name.
func one(t *testing.T, h http.Header, field, name string) *httpsfv.Params {
	t.Helper()
	list, err := httpsfv.UnmarshalList(h.Values(field))
	if err != nil || len(list) != 1 {
		t.Fatalf("%s %q: %v", field, h.Values(field), err)
	}
	item, ok := list[0].(httpsfv.Item)
	if !ok || item.Value != name {
		t.Fatalf("%s %q is not of %q", field, h.Values(field), name)
	}
	return item.Params
}

func integer(t *testing.T, p *httpsfv.Params, name string) int64 {
	t.Helper()
	v, _ := p.Get(name)
	n, ok := v.(int64)
	if !ok {
		t.Fatalf("%s is %v", name, v)
	}
	return n
}

// The allocations of an admitted request are known: the Reservation and its list, and the fields.
// A thousand plans cost it none, and a policy that changes is seen by the next request.
func TestAllocations(t *testing.T) {
	plans := map[string]tiered.Limit{}
	for i := range 1000 {
		plans[strconv.Itoa(i)] = tiered.PerSecond(1e9)
	}
	for name, c := range map[string]struct {
		options httplimit.Options
		most    float64
	}{"the usual fields": {most: 3}, "all fields": {httplimit.Options{IETFDraft11: true}, 7}} {
		g, _ := group(t)
		l := testgroup.NewLimiter(t, g, tiered.Policy{Name: "p", Limit: tiered.PerSecond(1e9), Plans: plans})
		h := wrap(t, []httplimit.Rule{perUser(l)}, &c.options, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
		ask := func() http.Header {
			w := httptest.NewRecorder()
			h.ServeHTTP(w, requestOf("ann"))
			return w.Header()
		}
		for range 100 {
			ask()
		}
		r, w := requestOf("ann"), httptest.NewRecorder()
		least := math.Inf(1) // without those of a call that renews the lease
		for range 10 {
			least = min(least, testing.AllocsPerRun(100, func() { clear(w.Header()); h.ServeHTTP(w, r) }))
		}
		if least > c.most {
			t.Errorf("%s: %v allocations, want at most %v", name, least, c.most)
		}
		p := l.Policy()
		p.Shadow = true
		fatal.If(t, l.SetPolicy(p))
		if h := ask(); len(h) > 0 {
			t.Errorf("%s: clients are told of a limit that is only being tried: %v", name, h)
		}
	}
}
