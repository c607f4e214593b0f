package httplimit_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tiered-limiter/tiered-limiter/internal/defaults"
	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/fatal"
	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/testgroup"
	"github.com/tiered-limiter/tiered-limiter/tiered"
	"github.com/tiered-limiter/tiered-limiter/tiered/httplimit"
)

// Every way to be refused, with the status and the Retry-After that suit it. No answer has the key,
// and only the fields of the draft, where they are wanted, have the policy's name: it is internal.
func TestRefusals(t *testing.T) {
	for name, o := range map[string]*httplimit.Options{
		"text": nil, "problem": {Problem: true}, "draft": {Problem: true, IETFDraft11: true},
	} {
		synctest.Test(t, func(t *testing.T) {
			g, store := group(t)
			closed := testgroup.NewLimiter(t, g, tiered.Policy{Name: "secret-closed", Limit: tiered.PerSecond(2), FailMode: tiered.FailClosed})
			local := limiter(t, g, "secret-local", tiered.PerHour(2))
			blocked := limiter(t, g, "secret-blocked", tiered.Blocked())
			costs := func(n int64) httplimit.Rule {
				r := perUser(local)
				r.Cost = func(*http.Request) int64 { return n }
				return r
			}
			for _, c := range []struct {
				name   string
				rule   httplimit.Rule
				user   string
				before int // requests
				down   error
				status int
				retry  string
			}{
				{"over the limit", perUser(local), "ann", 2, nil, 429, "1800"},
				{"costs more than the burst", costs(3), "bob", 0, nil, 429, ""},
				{"blocked", perUser(blocked), "bob", 0, nil, 429, ""},
				{"no key", perUser(local), "", 0, nil, 400, ""},
				{"key too long", perUser(local), strings.Repeat("x", defaults.MaxKeyLength+1), 0, nil, 400, ""},
				{"negative cost", costs(-1), "cid", 0, nil, 503, "1"},
				{"fails closed", perUser(closed), "dan", 0, errors.New("down"), 503, "1"},
				{"fallback spent", perUser(local), "eve", 2, errors.New("down"), 429, "1800"},
			} {
				store.Fail(c.down)
				h := wrap(t, []httplimit.Rule{c.rule}, o, ok)
				for range c.before {
					if r := get(h, c.user); r.StatusCode != 200 {
						t.Fatalf("%s: before: %s", c.name, r.Status)
					}
				}
				r := get(h, c.user)
				body, _ := io.ReadAll(r.Body)
				named, fields := name == "draft" && c.status == 429, fmt.Sprint(r.Header)
				if r.StatusCode != c.status || r.Header.Get("Retry-After") != c.retry || strings.Contains(string(body), "secret") != named ||
					strings.Contains(fields, "secret") != (name == "draft" && r.Header.Get("X-RateLimit-Limit") != "") ||
					c.user != "" && strings.Contains(string(body)+fields, c.user) {
					t.Errorf("%s, %s: %s, %s, %s", c.name, name, r.Status, body, fields)
				}
				if name == "text" {
					continue
				}
				var p problem
				if err := json.Unmarshal(body, &p); err != nil || r.Header.Get("Content-Type") != "application/problem+json" ||
					p.Status != c.status || p.Detail == "" || p.Title == "" || p.Type == "" ||
					(len(p.Violated) == 1 && p.Violated[0] == c.rule.Limiter.Policy().Name) != named {
					t.Errorf("%s, %s: %v, %s, %v", c.name, name, err, body, r.Header)
				}
			}
			store.Fail(nil)
		})
	}
}

// A request takes from all rules or from none, and the rule that refuses is named.
func TestAllOrNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, _ := group(t)
		user, tenant := limiter(t, g, "user", tiered.PerHour(2)), limiter(t, g, "tenant", tiered.PerHour(5))
		rules := []httplimit.Rule{
			{Limiter: tenant, Key: httplimit.Header("X-Tenant"), Missing: httplimit.Exempt},
			{Limiter: user, Key: httplimit.Header("X-User"), Missing: httplimit.Together, Cost: func(r *http.Request) int64 {
				if r.URL.Path == "/free" {
					return 0
				}
				return 1
			}, Skip: func(r *http.Request) bool { return r.URL.Path == "/skipped" }},
		}
		var refused httplimit.Refusal
		h := wrap(t, rules, &httplimit.Options{Denied: func(_ http.ResponseWriter, _ *http.Request, r httplimit.Refusal) { refused = r }},
			ok)
		ask := func(tenant, user, path string) int {
			r := httptest.NewRequest(http.MethodGet, path, nil)
			if tenant != "" {
				r.Header.Set("X-Tenant", tenant)
			}
			if user != "" {
				r.Header.Set("X-User", user)
			}
			return do(h, r).StatusCode
		}
		for i, s := range []struct {
			tenant, user, path string
			status             int
			tenantLeft, left   int64 // of acme, and of user (or of those together)
			policy             string
		}{
			{"acme", "ann", "/", 200, 4, 1, ""},
			{"acme", "ann", "/", 200, 3, 0, ""},
			{"acme", "ann", "/", 429, 3, 0, "user"},
			{"acme", "ann", "/free", 200, 2, 0, ""},
			{"acme", "ann", "/skipped", 200, 1, 0, ""},
			{"", "bob", "/", 200, 1, 1, ""},
			{"acme", "", "/", 200, 0, 1, ""},
			{"acme", "", "/", 429, 0, 1, "tenant"},
			{"", "", "/", 200, 0, 0, ""},
			{"", "", "/", 429, 0, 0, "user"},
			{"", sharedKey, "/", 200, 0, 1, ""}, // has another bucket than those without a key
		} {
			refused = httplimit.Refusal{}
			status := ask(s.tenant, s.user, s.path)
			time.Sleep(100 * time.Millisecond) // what goes back needs a moment
			key := s.user
			switch key {
			case "":
				key = sharedKey
			case sharedKey:
				key = sharedKey + sharedKey
			}
			if status != s.status || refused.Policy != s.policy || left(tenant, "acme") != s.tenantLeft ||
				left(user, key) != s.left {
				t.Errorf("step %d: %d by %q, acme has %d, the user %d; want %+v", i, status, refused.Policy,
					left(tenant, "acme"), left(user, key), s)
			}
		}
	})
}

// A client that has left takes nothing, before the decision, while it waits and after it. The
// function that writes the answer is told how the request's context ended.
func TestCanceledTakesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, _ := group(t)
		l := limiter(t, g, "p", tiered.PerHour(5))
		served, refused := false, error(nil)
		h := wrap(t, []httplimit.Rule{perUser(l)}, &httplimit.Options{Denied: func(w http.ResponseWriter, _ *http.Request, d httplimit.Refusal) {
			refused = d.Err()
			w.WriteHeader(d.Status)
		}}, http.HandlerFunc(func(http.ResponseWriter, *http.Request) { served = true }))
		canceled, cancel := context.WithCancel(context.Background())
		cancel()
		expired, cancel := context.WithTimeout(context.Background(), time.Millisecond)
		defer cancel()
		time.Sleep(time.Second)
		for _, c := range []struct {
			name string
			ctx  context.Context
			is   error
			left int64
		}{
			{"canceled before", canceled, context.Canceled, 5},
			{"expired before", expired, context.DeadlineExceeded, 5},
			// Ends after it was looked at first, before the tokens are there: Err is asked before
			// and after.
			{"canceled meanwhile", &ending{Context: context.Background(), alive: 1}, context.Canceled, 5},
			{"not canceled", &ending{Context: context.Background(), alive: 2}, nil, 4},
		} {
			served, refused = false, nil
			status := do(h, requestOf("ann").WithContext(c.ctx)).StatusCode
			time.Sleep(time.Second) // what goes back needs a moment
			if n := left(l, "ann"); !errors.Is(refused, c.is) || served != (c.is == nil) || (status == 503) == served || n != c.left {
				t.Errorf("%s: %d, %v, served %v, %d left, want %+v", c.name, status, refused, served, n, c)
			}
		}
	})
}

// ending is a context that has ended when it is looked at for the n-th time.
type ending struct {
	context.Context
	alive int
}

func (e *ending) Err() error {
	if e.alive--; e.alive < 0 {
		return context.Canceled
	}
	return nil
}

func TestPreflight(t *testing.T) {
	for _, c := range []struct {
		method, origin, asks string
		want                 bool
	}{
		{"OPTIONS", "https://example.org", "PUT", true},
		{"OPTIONS", "", "PUT", false},
		{"OPTIONS", "https://example.org", "", false},
		{"GET", "https://example.org", "PUT", false},
	} {
		r := httptest.NewRequest(c.method, "/", nil)
		r.Header = http.Header{"Origin": {c.origin}, "Access-Control-Request-Method": {c.asks}}
		if got := httplimit.Preflight(r); got != c.want {
			t.Errorf("%+v: %v", c, got)
		}
	}
}

// Only what Counts says is counted, by the status that a client sees.
func TestCounts(t *testing.T) {
	for _, c := range []struct {
		name   string
		answer func(http.ResponseWriter)
		counts bool
	}{
		{"body only", func(w http.ResponseWriter) { _, _ = io.WriteString(w, "x") }, true},
		{"500 and a body", func(w http.ResponseWriter) { http.Error(w, "x", 500) }, false},
		{"103, then 404", func(w http.ResponseWriter) { w.WriteHeader(103); w.WriteHeader(404) }, false},
		{"body, then 500", func(w http.ResponseWriter) { _, _ = w.Write([]byte("x")); w.WriteHeader(500) }, true},
		{"copied, then 500", func(w http.ResponseWriter) {
			_, _ = io.Copy(w, strings.NewReader("x"))
			w.WriteHeader(500)
		}, true},
		{"flushed, then 500", func(w http.ResponseWriter) { _ = http.NewResponseController(w).Flush(); w.WriteHeader(500) }, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g, _ := group(t)
				l := limiter(t, g, "p", tiered.PerHour(5))
				during := int64(0)
				h := wrap(t, []httplimit.Rule{perUser(l)}, &httplimit.Options{Counts: func(s int) bool { return s < 400 }},
					http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
						during = left(l, "ann")
						c.answer(w)
					}))
				get(h, "ann")
				time.Sleep(time.Second)
				want := int64(5)
				if c.counts {
					want = 4
				}
				if n := left(l, "ann"); n != want || during != 4 {
					t.Errorf("left %d, want %d; %d while it ran, want 4", n, want, during)
				}
			})
		})
	}
}

// A refused request never looks like a served one, whatever Denied does. The table of frameworks
// has what is usual.
func TestDenied(t *testing.T) {
	for _, c := range []struct {
		name   string
		denied func(http.ResponseWriter)
		status int
		body   string
	}{
		{"copied", func(w http.ResponseWriter) { _, _ = io.Copy(w, strings.NewReader("no")) }, 429, "no"},
		{"announced", func(w http.ResponseWriter) { w.WriteHeader(103) }, 429, ""},
		{"taken over", func(w http.ResponseWriter) {
			c, rw, err := http.NewResponseController(w).Hijack()
			if err != nil {
				panic(err)
			}
			_, _ = rw.WriteString("HTTP/1.1 420 No\r\nRetry-After: 3600\r\nContent-Length: 2\r\n\r\nno")
			_ = rw.Flush()
			_ = c.Close()
		}, 420, "no"},
	} {
		t.Run(c.name, func(t *testing.T) {
			g, _ := group(t)
			h := wrap(t, []httplimit.Rule{perUser(limiter(t, g, "p", tiered.PerHour(1)))},
				&httplimit.Options{Denied: func(w http.ResponseWriter, _ *http.Request, r httplimit.Refusal) {
					if r.Key != "ann" || r.Policy != "p" || r.Status != 429 || r.RetryAfter <= 0 {
						t.Errorf("%+v", r)
					}
					c.denied(w)
				}}, ok)
			ended := make(chan bool, 2)
			server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				h.ServeHTTP(w, r)
				ended <- true
			}))
			server.Config.ErrorLog = log.New(failing{t}, "", 0)
			server.Start()
			defer server.Close()
			for i, want := range []int{200, c.status} {
				r := requestOf("ann")
				r.RequestURI = ""
				r.URL.Scheme, r.URL.Host = "http", server.Listener.Addr().String()
				resp := fatal.Get(server.Client().Do(r))(t)
				body, _ := io.ReadAll(resp.Body)
				_ = resp.Body.Close()
				<-ended
				if resp.StatusCode != want || i == 1 &&
					(string(body) != c.body || resp.Header.Get("Retry-After") != "3600") {
					t.Errorf("%s, want %d; body %q, Retry-After %q", resp.Status, want, body, resp.Header.Get("Retry-After"))
				}
			}
		})
	}
}

// failing is a log that must stay empty.
type failing struct{ t *testing.T }

func (f failing) Write(b []byte) (int, error) {
	f.t.Errorf("net/http logs %s", b)
	return len(b), nil
}

// Settle is about the innermost middleware, also if it has counted nothing of the request. What
// could not be charged is refused.
func TestSettleOfNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, _ := group(t)
		all := func(*http.Request) bool { return true }
		no := func(*http.Request) int64 { return 0 }
		for i, c := range []struct {
			inner  httplimit.Rule
			o      httplimit.Options
			user   string
			status int
			left   int64 // of the inner rule
		}{
			{httplimit.Rule{Skip: all}, httplimit.Options{}, "ann", 200, 100},
			{httplimit.Rule{}, httplimit.Options{Skip: all}, "ann", 200, 100},
			{httplimit.Rule{Cost: no}, httplimit.Options{}, "ann", 200, 93},
			{httplimit.Rule{Cost: no}, httplimit.Options{Counts: func(int) bool { return false }}, "ann", 200, 93}, // the handler was first
			{httplimit.Rule{Cost: no}, httplimit.Options{}, strings.Repeat("x", defaults.MaxKeyLength+1), 400, 100},
		} {
			outer := limiter(t, g, fmt.Sprint("outer-", i), tiered.PerDay(100))
			inner := limiter(t, g, fmt.Sprint("inner-", i), tiered.PerDay(100))
			c.inner.Limiter, c.inner.Key, c.inner.Missing, c.o.Settle = inner, httplimit.Header("X-User"), httplimit.Refuse, true
			h := wrap(t, []httplimit.Rule{{Limiter: outer, Key: httplimit.RemoteIP(), Missing: httplimit.Refuse}}, &httplimit.Options{Settle: true},
				wrap(t, []httplimit.Rule{c.inner}, &c.o, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
					if err := httplimit.Settle(r.Context(), map[string]int64{fmt.Sprint("inner-", i): 7}); err != nil {
						t.Errorf("case %d: %v", i, err)
					}
				})))
			r := requestOf(c.user)
			r.RemoteAddr = "192.0.2.1:1"
			status := do(h, r).StatusCode
			time.Sleep(time.Second)
			if status != c.status || left(inner, "ann") != c.left || left(outer, "192.0.2.1") != 99 {
				t.Errorf("case %d: status %d, %d left inside, %d outside, want %d, %d, 99", i, status, left(inner, "ann"),
					left(outer, "192.0.2.1"), c.status, c.left)
			}
		}
	})
}

// A handler corrects each rule's cost, the rules that did not apply aside.
func TestSettle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, _ := group(t)
		requests, tokens := limiter(t, g, "requests", tiered.PerHour(5)), limiter(t, g, "tokens", tiered.PerDay(2000))
		rules := []httplimit.Rule{
			{Limiter: requests, Key: httplimit.Header("X-User"), Missing: httplimit.Exempt},
			{Limiter: tokens, Key: httplimit.Header("X-Tenant"), Missing: httplimit.Refuse, Cost: func(*http.Request) int64 { return 400 }},
		}
		var actual map[string]int64
		var outcome error
		h := wrap(t, rules, &httplimit.Options{Settle: true}, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			outcome = httplimit.Settle(r.Context(), actual)
		}))
		for i, s := range []struct {
			user     string
			actual   map[string]int64
			err      string
			requests int64 // left of ann's
			tokens   int64
		}{
			{"ann", map[string]int64{"tokens": 100}, "", 4, 1900},
			{"ann", map[string]int64{"requests": 0, "tokens": 0}, "", 4, 1900},
			{"", map[string]int64{"requests": 7, "tokens": 440}, "", 4, 1460},
			{"ann", map[string]int64{"requests": 0, "tokns": 7}, `httplimit: actual has policy "tokns": must be one of ["requests" "tokens"]`, 3, 1060},
			{"bob", nil, `httplimit: actual is empty: must have the cost of one policy at least, of ["requests" "tokens"]`, 3, 660},
		} {
			actual = s.actual
			r := requestOf(s.user)
			r.Header.Set("X-Tenant", "acme")
			do(h, r)
			time.Sleep(time.Second)
			text := ""
			if outcome != nil {
				text = outcome.Error()
			}
			if text != s.err || left(requests, "ann") != s.requests || left(tokens, "acme") != s.tokens {
				t.Errorf("step %d: %v, %d requests and %d tokens left, want %+v", i, outcome, left(requests, "ann"),
					left(tokens, "acme"), s)
			}
		}
		if err := httplimit.Settle(context.Background(), map[string]int64{"tokens": 1}); err == nil {
			t.Error("a context without a request can be settled")
		}
	})
}

func TestProblemsWithOptions(t *testing.T) {
	g, _ := group(t)
	l := limiter(t, g, "p", tiered.PerHour(1))
	limit := func(*http.Request) tiered.Limit { return tiered.PerSecond(5) }
	plan := func(*http.Request) string { return "" }
	with := func(p tiered.Policy, limit func(*http.Request) tiered.Limit, plan func(*http.Request) string) httplimit.Rule {
		return httplimit.Rule{
			Limiter: testgroup.NewLimiter(t, g, p), Key: httplimit.RemoteIP(), Missing: httplimit.Refuse, Limit: limit, Plan: plan,
		}
	}
	_, err := httplimit.New([]httplimit.Rule{
		{},
		{Limiter: l, Key: httplimit.Header("X User"), Missing: 5},
		{Limiter: l, Key: httplimit.ForwardedFor(), Missing: httplimit.Refuse},
		{Limiter: l, Key: httplimit.Cookie("").Hashed(), Missing: httplimit.Exempt},
		{Limiter: new(tiered.Limiter), Key: httplimit.RemoteIP(), Missing: httplimit.Exempt},
		with(tiered.Policy{Name: "none", Limit: tiered.PerSecond(10)}, nil, plan),
		with(tiered.Policy{Name: "plans", Limit: tiered.PerSecond(10), Plans: map[string]tiered.Limit{"pro": tiered.PerSecond(20)}}, limit, plan),
	}, &httplimit.Options{Jitter: -1, Headers: httplimit.Headers{Prefix: "X RateLimit"}})
	want := `httplimit: rules[0].Limiter is nil: must be set
httplimit: rules[0].Key is zero: must be set, as in httplimit.RemoteIP()
httplimit: rules[0].Missing is 0: must be Refuse, Exempt, Together or Next
httplimit: rules[1].Key is Header("X User"): must be the name of a header field
httplimit: rules[1].Missing is 5: must be Refuse, Exempt, Together or Next
httplimit: rules[2].Limiter has policy "p", as rules[1] has: must be another policy
httplimit: rules[2].Key is ForwardedFor(): must have the prefix of a proxy at least
httplimit: rules[3].Limiter has policy "p", as rules[1] has: must be another policy
httplimit: rules[3].Key is Cookie(""): must be the name of a cookie
httplimit: rules[4].Limiter is zero: must be made by tiered.New or Group.NewLimiter
httplimit: rules[5].Plan is set, and policy "none" has no Plans: must be nil, or the policy must have plans
httplimit: Options.Jitter is -1ns: must be 0 to 1h
httplimit: Options.Headers.Prefix is "X RateLimit": must be the beginning of a header field's name, as X-RateLimit is, to which -Limit is added`
	if err == nil || err.Error() != want {
		t.Errorf("got\n%v\nwant\n%s", err, want)
	}
	_, err = httplimit.New([]httplimit.Rule{{Limiter: l, Key: httplimit.RemoteIP(), Missing: httplimit.Refuse}},
		&httplimit.Options{Headers: httplimit.Headers{Prefix: "RateLimit-"}})
	if err == nil || !strings.Contains(err.Error(), `Options.Headers.Prefix is "RateLimit-"`) {
		t.Errorf("a prefix with its dash: %v", err)
	}
	if _, err := httplimit.New(nil, nil); err == nil || err.Error() != "httplimit: rules is empty: must have one at least" {
		t.Errorf("no rules: %v", err)
	}
}
