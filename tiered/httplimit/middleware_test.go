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

	"github.com/tiered-limiter/tiered-limiter/internal/rig/groups"
	"github.com/tiered-limiter/tiered-limiter/tiered"
	"github.com/tiered-limiter/tiered-limiter/tiered/httplimit"
)

// One user over minutes: what each answer says, and that whoever comes back when told to is admitted.
func TestSteps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, _ := group(t)
		// A token every 2.5 s, three at once.
		h := wrap(t, []httplimit.Rule{perUser(limiter(t, g, "per-user", tiered.Limit{Tokens: 24, Per: time.Minute, Burst: 3}))},
			nil, ok)
		at := time.Duration(0)
		for i, s := range []struct {
			at                             time.Duration
			user                           string
			status                         int
			limit, remaining, reset, retry string
		}{
			{0, "ann", 200, "3", "2", "3", ""},
			{0, "ann", 200, "3", "1", "5", ""},
			{0, "ann", 200, "3", "0", "8", ""},
			{0, "ann", 429, "3", "0", "8", "3"},
			{0, "bob", 200, "3", "2", "3", ""},
			{time.Second, "ann", 429, "3", "0", "8", "2"},
			{2400 * time.Millisecond, "ann", 429, "3", "0", "8", "1"},
			{3 * time.Second, "ann", 200, "3", "0", "8", ""},
			{time.Minute, "ann", 200, "3", "2", "3", ""},
		} {
			time.Sleep(s.at - at)
			at = s.at
			r := get(h, s.user)
			x := r.Header
			got := []string{
				x.Get("X-RateLimit-Limit"), x.Get("X-RateLimit-Remaining"), x.Get("X-RateLimit-Reset"),
				x.Get("Retry-After"),
			}
			if want := []string{s.limit, s.remaining, s.reset, s.retry}; r.StatusCode != s.status ||
				strings.Join(got, " ") != strings.Join(want, " ") {
				t.Errorf("step %d at %v: %d %q, want %d %q", i, s.at, r.StatusCode, got, s.status, want)
			}
		}
	})
}

// Every way to be refused, with the status and the Retry-After that suit it.
func TestRefusals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, store := group(t)
		closed := groups.NewLimiter(t, g, tiered.Policy{Name: "closed", Limit: tiered.PerSecond(2), FailMode: tiered.FailClosed})
		local := limiter(t, g, "local", tiered.PerHour(2))
		open := limiter(t, g, "open", tiered.PerHour(2))
		costs := func(l *tiered.Limiter, n int64) httplimit.Rule {
			r := perUser(l)
			r.Cost = func(*http.Request) int64 { return n }
			return r
		}
		down := errors.New("down")
		for _, c := range []struct {
			name          string
			rule          httplimit.Rule
			user          string
			before        int // requests
			down          bool
			status        int
			retry, policy string
		}{
			{"over the limit", perUser(open), "ann", 2, false, 429, "1800", "open"},
			{"costs more than the burst", costs(open, 3), "bob", 0, false, 429, "", "open"},
			{"no key", perUser(open), "", 0, false, 400, "", ""},
			{"key too long", perUser(open), strings.Repeat("x", tiered.MaxKeyLength+1), 0, false, 400, "", ""},
			{"negative cost", costs(open, -1), "cid", 0, false, 503, "1", ""},
			{"fails closed", perUser(closed), "dan", 0, true, 503, "1", ""},
			{"fallback spent", perUser(local), "eve", 2, true, 429, "1800", "local"},
		} {
			if c.down {
				store.Fail(down)
			} else {
				store.Fail(nil)
			}
			h := wrap(t, []httplimit.Rule{c.rule}, &httplimit.Options{Problem: true, IETFDraft11: true}, ok)
			for range c.before {
				if r := get(h, c.user); r.StatusCode != 200 {
					t.Fatalf("%s: before: %s", c.name, r.Status)
				}
			}
			r := get(h, c.user)
			body, _ := io.ReadAll(r.Body)
			var p problem
			if err := json.Unmarshal(body, &p); err != nil ||
				r.Header.Get("Content-Type") != "application/problem+json" {
				t.Fatalf("%s: %s: %v, %v", c.name, body, err, r.Header)
			}
			if r.StatusCode != c.status || p.Status != c.status || r.Header.Get("Retry-After") != c.retry ||
				p.Detail == "" || c.policy != "" && strings.Contains(p.Detail, c.policy) {
				t.Errorf("%s: %s, Retry-After %q, %+v", c.name, r.Status, r.Header.Get("Retry-After"), p)
			}
			if (r.StatusCode == 429) != (len(p.Violated) == 1 && p.Violated[0] == c.policy) || p.Title == "" ||
				p.Type == "" {
				t.Errorf("%s: %+v", c.name, p)
			}
			if c.user != "" && strings.Contains(string(body), c.user) {
				t.Errorf("%s: the answer repeats the key: %s", c.name, body)
			}
		}
		store.Fail(nil)
	})
}

// The answer to a client names a policy only if the fields do: its name is internal.
func TestRefusalNamesNoPolicy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, store := group(t)
		closed := groups.NewLimiter(t, g, tiered.Policy{Name: "secret-closed", Limit: tiered.PerHour(1), FailMode: tiered.FailClosed})
		blocked := limiter(t, g, "secret-blocked", tiered.Blocked())
		plan := limiter(t, g, "secret-plan", tiered.PerHour(1))
		for _, c := range []struct {
			name    string
			limiter *tiered.Limiter
			down    error
			status  int
		}{
			{"over the limit", plan, nil, 429},
			{"blocked", blocked, nil, 429},
			{"Redis does not answer", closed, errors.New("down"), 503},
		} {
			store.Fail(c.down)
			for name, o := range map[string]*httplimit.Options{"text": nil, "problem": {Problem: true}, "draft": {Problem: true, IETFDraft11: true}} {
				h := wrap(t, []httplimit.Rule{perUser(c.limiter)}, o, ok)
				get(h, "ann")
				r := get(h, "ann")
				body, _ := io.ReadAll(r.Body)
				all := fmt.Sprint(string(body), r.Header)
				if r.StatusCode != c.status || strings.Contains(all, "secret") != (name == "draft" && c.status == 429) {
					t.Errorf("%s, %s: %s: %s", c.name, name, r.Status, all)
				}
			}
		}
		store.Fail(nil)
	})
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

// Whoever has left takes nothing, before the decision, while it waits and after it.
func TestCanceledTakesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, _ := group(t)
		l := limiter(t, g, "p", tiered.PerHour(5))
		served := 0
		handler := http.HandlerFunc(func(http.ResponseWriter, *http.Request) { served++ })
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		r := requestOf("ann").WithContext(ctx)
		if got := do(wrap(t, []httplimit.Rule{perUser(l)}, nil, handler), r); got.StatusCode != 503 || served > 0 ||
			left(l, "ann") != 5 {
			t.Errorf("canceled before: %s, served %d, left %d", got.Status, served, left(l, "ann"))
		}
		// Ends after it was looked at first, before the tokens are there: Err is asked before and after.
		r = requestOf("ann").WithContext(&ending{Context: context.Background(), alive: 1})
		if got := do(wrap(t, []httplimit.Rule{perUser(l)}, nil, handler), r); got.StatusCode != 503 || served > 0 {
			t.Errorf("canceled meanwhile: %s, served %d", got.Status, served)
		}
		time.Sleep(time.Second) // what goes back needs a moment
		if n := left(l, "ann"); n != 5 {
			t.Errorf("canceled meanwhile: left %d", n)
		}
		r = requestOf("ann").WithContext(&ending{Context: context.Background(), alive: 2})
		if got := do(wrap(t, []httplimit.Rule{perUser(l)}, nil, handler), r); got.StatusCode != 200 || served != 1 {
			t.Errorf("not canceled: %s, served %d: the test sees nothing", got.Status, served)
		}
	})
}

// Who writes the answer is told how the request's context ended.
func TestRefusalTellsHowTheContextEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, _ := group(t)
		l := limiter(t, g, "p", tiered.PerHour(5))
		var refused error
		h := wrap(t, []httplimit.Rule{perUser(l)}, &httplimit.Options{Denied: func(w http.ResponseWriter, _ *http.Request, d httplimit.Refusal) {
			refused = d.Err()
			w.WriteHeader(503)
		}}, ok)
		canceled, cancel := context.WithCancel(context.Background())
		cancel()
		expired, cancel := context.WithTimeout(context.Background(), time.Millisecond)
		defer cancel()
		time.Sleep(time.Second)
		for is, ctx := range map[error]context.Context{context.Canceled: canceled, context.DeadlineExceeded: expired} {
			do(h, requestOf("ann").WithContext(ctx))
			if !errors.Is(refused, is) {
				t.Errorf("%v, want %v", refused, is)
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

func TestSkip(t *testing.T) {
	g, _ := group(t)
	l := limiter(t, g, "p", tiered.PerHour(1))
	h := wrap(t, []httplimit.Rule{perUser(l)}, &httplimit.Options{Skip: httplimit.Preflight}, ok)
	preflight := httptest.NewRequest(http.MethodOptions, "/", nil)
	preflight.Header.Set("Origin", "https://example.org")
	preflight.Header.Set("Access-Control-Request-Method", "PUT")
	preflight.Header.Set("X-User", "ann")
	for range 3 {
		if r := do(h, preflight); r.StatusCode != 200 || r.Header.Get("X-RateLimit-Limit") != "" {
			t.Errorf("preflight: %s %v", r.Status, r.Header)
		}
	}
	plain := httptest.NewRequest(http.MethodOptions, "/", nil)
	plain.Header.Set("X-User", "ann")
	for i, want := range []int{200, 429} {
		if r := do(h, plain); r.StatusCode != want {
			t.Errorf("OPTIONS %d: %s, want %d", i, r.Status, want)
		}
	}
	head := requestOf("bob")
	head.Method = http.MethodHead
	for i, want := range []int{200, 429} {
		if r := do(h, head); r.StatusCode != want || r.Header.Get("X-RateLimit-Remaining") != "0" {
			t.Errorf("HEAD %d: %s, want %d", i, r.Status, want)
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
		{"nothing written", func(http.ResponseWriter) {}, true},
		{"body only", func(w http.ResponseWriter) { _, _ = io.WriteString(w, "x") }, true},
		{"201", func(w http.ResponseWriter) { w.WriteHeader(201) }, true},
		{"404", func(w http.ResponseWriter) { w.WriteHeader(404) }, false},
		{"500 and a body", func(w http.ResponseWriter) { http.Error(w, "x", 500) }, false},
		{"103, then 404", func(w http.ResponseWriter) { w.WriteHeader(103); w.WriteHeader(404) }, false},
		{"body, then 500", func(w http.ResponseWriter) { _, _ = w.Write([]byte("x")); w.WriteHeader(500) }, true},
		{"copied, then 500", func(w http.ResponseWriter) {
			_,
				_ = io.Copy(w, strings.NewReader("x"))
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
					http.HandlerFunc(func(w http.ResponseWriter,
						_ *http.Request,
					) {
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

// A refused request never looks like a served one, whatever Denied does.
func TestRefused(t *testing.T) {
	g, _ := group(t)
	var told []tiered.Decision
	h := wrap(t, []httplimit.Rule{perUser(limiter(t, g, "api", tiered.PerHour(1)))}, &httplimit.Options{
		Problem: true, Refused: func(_ context.Context, d tiered.Decision) { told = append(told, d) },
	}, http.NotFoundHandler())
	for i, want := range []int{http.StatusNotFound, http.StatusTooManyRequests, http.StatusTooManyRequests} {
		r := get(h, "ann")
		if r.StatusCode != want || want == http.StatusTooManyRequests && r.Header.Get("Content-Type") != "application/problem+json" {
			t.Errorf("request %d: %s %v", i, r.Status, r.Header)
		}
	}
	if r := get(h, ""); r.StatusCode != http.StatusBadRequest {
		t.Errorf("without a key: %s", r.Status)
	}
	if len(told) != 3 || told[0].Reason != tiered.Limited || told[2].Reason != tiered.InvalidKey {
		t.Errorf("told of %+v", told)
	}
}

func TestDenied(t *testing.T) {
	for _, c := range []struct {
		name   string
		denied func(http.ResponseWriter)
		status int
		body   string
	}{
		{"nothing", func(http.ResponseWriter) {}, 429, ""},
		{"a body", func(w http.ResponseWriter) { _, _ = io.WriteString(w, "no") }, 429, "no"},
		{"copied", func(w http.ResponseWriter) { _, _ = io.Copy(w, strings.NewReader("no")) }, 429, "no"},
		{"a status", func(w http.ResponseWriter) { w.WriteHeader(420) }, 420, ""},
		{"flushed", func(w http.ResponseWriter) { _ = http.NewResponseController(w).Flush() }, 429, ""},
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
				resp, err := server.Client().Do(r)
				if err != nil {
					t.Fatal(err)
				}
				body, _ := io.ReadAll(resp.Body)
				_ = resp.Body.Close()
				<-ended
				if resp.StatusCode != want || i == 1 &&
					(string(body) != c.body || resp.Header.Get("Retry-After") != "3600") {
					t.Errorf("%s, want %d; body %q, Retry-After %q", resp.Status, want, body,
						resp.Header.Get("Retry-After"))
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

// Settle is about the innermost middleware, also if it has counted nothing of the request. What could not be charged is
// refused.
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
			{httplimit.Rule{Cost: no}, httplimit.Options{}, strings.Repeat("x", tiered.MaxKeyLength+1), 400, 100},
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
	_, err := httplimit.New([]httplimit.Rule{
		{},
		{Limiter: l, Key: httplimit.Header("X User"), Missing: 4},
		{Limiter: l, Key: httplimit.ForwardedFor(), Missing: httplimit.Refuse},
		{Limiter: l, Key: httplimit.Cookie("").Hashed(), Missing: httplimit.Exempt},
		{Limiter: new(tiered.Limiter), Key: httplimit.RemoteIP(), Missing: httplimit.Exempt},
	}, &httplimit.Options{Jitter: -1})
	want := `httplimit: rules[0].Limiter is nil: must be set
httplimit: rules[0].Key is zero: must be set, as in httplimit.RemoteIP()
httplimit: rules[0].Missing is 0: must be Refuse, Exempt or Together
httplimit: rules[1].Key is Header("X User"): must be the name of a header field
httplimit: rules[1].Missing is 4: must be Refuse, Exempt or Together
httplimit: rules[2].Limiter has policy "p", as rules[1] has: must be another policy
httplimit: rules[2].Key is ForwardedFor(): must have the prefix of a proxy at least
httplimit: rules[3].Limiter has policy "p", as rules[1] has: must be another policy
httplimit: rules[3].Key is Cookie(""): must be the name of a cookie
httplimit: rules[4].Limiter is zero: must be made by tiered.New or Group.NewLimiter
httplimit: Options.Jitter is -1ns: must be 0 to 1h`
	if err == nil || err.Error() != want {
		t.Errorf("got\n%v\nwant\n%s", err, want)
	}
	if _, err := httplimit.New(nil, nil); err == nil || err.Error() != "httplimit: rules is empty: must have one at least" {
		t.Errorf("no rules: %v", err)
	}
}
