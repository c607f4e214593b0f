package docs_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/fatal"
	"github.com/tiered-limiter/tiered-limiter/tiered"
	"github.com/tiered-limiter/tiered-limiter/tiered/atonce"
	"github.com/tiered-limiter/tiered-limiter/tiered/httplimit"
	"github.com/tiered-limiter/tiered-limiter/tiered/tieredtest"
)

// From docs/recipes.md: a function and a test for each recipe. The others stand in the tests of the
// pages that they link to.

func newFailedLogins(group *tiered.Group) (*tiered.Limiter, error) {
	failed, err := group.NewLimiter(tiered.Policy{
		Name: "failed-logins", Algorithm: tiered.SlidingLog, Limit: tiered.Per(5, 15*time.Minute),
	})
	return failed, err
}

func login(failed *tiered.Limiter, passwordIsRight func(email, password string) bool) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		account := strings.ToLower(strings.TrimSpace(r.FormValue("email"))) // Ann@x.org is ann@x.org
		attempt := failed.Reserve(r.Context(), account)
		if !attempt.Allowed {
			httplimit.WriteRefusal(w, attempt.Decision)
			return
		}
		if !passwordIsRight(account, r.FormValue("password")) {
			http.Error(w, "wrong e-mail address or password", http.StatusUnauthorized)
			return
		}
		attempt.Cancel() // only failures count
	}
}

// Five failures lock an account, however its address is written, until the oldest is 15 minutes
// old. A success counts for nothing.
func TestLockout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := tieredtest.New(t, tiered.Policy{Name: "other", Limit: tiered.PerHour(1)})
		failed := fatal.Get(newFailedLogins(l.Group()))(t)
		handler := login(failed, func(email, password string) bool { return email == "ann@x.org" && password == "right" })
		try := func(email, password string, want int) {
			t.Helper()
			w, r := httptest.NewRecorder(), httptest.NewRequest(http.MethodPost, "/login", nil)
			r.Form = map[string][]string{"email": {email}, "password": {password}}
			if handler(w, r); w.Code != want {
				t.Errorf("%q, %q: %d, want %d", email, password, w.Code, want)
			}
		}
		for range 10 {
			try("ann@x.org", "right", 200)
			l.Advance(100 * time.Millisecond) // what was canceled goes back in the background
		}
		for _, email := range []string{"ann@x.org", "Ann@x.org", " ann@X.org", "ANN@x.org", "ann@x.org"} {
			try(email, "wrong", 401)
		}
		try("ann@x.org", "right", 429)
		try("bob@x.org", "wrong", 401)
		l.Advance(15 * time.Minute)
		try("ann@x.org", "right", 200)
	})
}

func keyOrAddress(perKey, perAddress *tiered.Limiter) (func(http.Handler) http.Handler, error) {
	limit, err := httplimit.New([]httplimit.Rule{
		{Limiter: perKey, Key: httplimit.Credential("X-Api-Key"), Missing: httplimit.Next},
		{Limiter: perAddress, Key: httplimit.RemoteIP(), Missing: httplimit.Refuse},
	}, nil)
	return limit, err
}

// handled returns a function that makes a request and returns its status.
func handled(handler http.Handler) func(set ...string) int {
	return func(set ...string) int {
		w, r := httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/", nil)
		for i := 0; i < len(set); i += 2 {
			r.Header.Set(set[i], set[i+1])
		}
		handler.ServeHTTP(w, r)
		return w.Code
	}
}

// Who has a key is counted by it alone, and who has none by address.
func TestKeyOrAddress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		perKey := tieredtest.New(t, tiered.Policy{Name: "key", Limit: tiered.PerHour(3)})
		perAddress := fatal.Get(perKey.Group().NewLimiter(tiered.Policy{Name: "address", Limit: tiered.PerHour(1)}))(t)
		ask := handled(fatal.Get(keyOrAddress(perKey.Limiter, perAddress))(t)(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})))
		got := []int{ask(), ask(), ask("X-Api-Key", "a"), ask("X-Api-Key", "a"), ask("X-Api-Key", "a"), ask("X-Api-Key", "a"), ask("X-Api-Key", "b")}
		if want := []int{200, 429, 200, 200, 200, 429, 200}; fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("%v, want %v", got, want)
		}
	})
}

// customer is what a service has in its database.
type customer struct {
	id    string
	quota int64
	day   int // on which its month begins
}

// useQuota has the request carry its month, as docs/choosing.md says.
func useQuota(ctx context.Context, month *tiered.Limiter, c customer) tiered.Decision {
	quota := tiered.PerMonth(c.quota).In("Europe/Berlin").From(c.day)
	d := month.For(c.id).WithLimit(quota).Allow(ctx) // RetryAfter is until the next billing day
	return d
}

// A customer has its quota until its billing day, and then again.
func TestMonthOfACustomer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		month := tieredtest.New(t, tiered.Policy{
			Name: "month", Algorithm: tiered.FixedWindow, Limit: tiered.PerMonth(100).In("Europe/Berlin"),
		})
		c := customer{id: "acme", quota: 3, day: 17}
		for range 3 {
			if d := useQuota(t.Context(), month.Limiter, c); !d.Allowed {
				t.Fatal(d)
			}
		}
		d := useQuota(t.Context(), month.Limiter, c)
		berlin := fatal.Get(time.LoadLocation("Europe/Berlin"))(t)
		if back := time.Now().Add(d.RetryAfter).In(berlin).Round(time.Second); d.Allowed || back.Day() != 17 || back.Hour() != 0 {
			t.Errorf("%v: back at %v", d, back)
		}
		month.Advance(d.RetryAfter)
		if d := useQuota(t.Context(), month.Limiter, c); !d.Allowed {
			t.Error(d)
		}
	})
}

// inFlight is a rule of places alone, as docs/at-once.md says that it may be.
func inFlight(group *tiered.Group) (func(http.Handler) http.Handler, error) {
	places, err := atonce.New(group, atonce.Policy{Name: "in-flight", Places: 5})
	if err != nil {
		return nil, err
	}
	return httplimit.New([]httplimit.Rule{{AtOnce: places, Key: httplimit.Header("X-User"), Missing: httplimit.Refuse}}, nil)
}

// Five requests of a user run, and the sixth is refused until one has ended.
func TestInFlight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := tieredtest.New(t, tiered.Policy{Name: "other", Limit: tiered.PerHour(1)})
		release := make(chan struct{})
		ask := handled(fatal.Get(inFlight(l.Group()))(t)(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
			select {
			case <-release:
			case <-time.After(time.Hour): // so that one too many ends
			}
		})))
		var all sync.WaitGroup
		var ok atomic.Int64
		for range 5 {
			all.Go(func() {
				if ask("X-User", "ann") == 200 {
					ok.Add(1)
				}
			})
		}
		synctest.Wait()
		l.Advance(time.Second)
		if code := ask("X-User", "ann"); code != 429 {
			t.Errorf("the sixth: %d", code)
		}
		close(release)
		all.Wait()
		if code := ask("X-User", "ann"); code != 200 || ok.Load() != 5 {
			t.Errorf("%d of the first five, and one after them: %d", ok.Load(), code)
		}
	})
}

func complete(ctx context.Context, tokens *tiered.Limiter, user string, model func(context.Context) (used int64, err error)) error {
	request := tokens.Reserve(ctx, user)
	if !request.Allowed {
		return request.Err()
	}
	used, err := model(ctx)
	if err != nil {
		request.Cancel() // a failure costs nothing
		return err
	}
	request.Settle(used) // may take the user below zero
	return nil
}

// A user who has used five minutes' tokens at once is refused for so long. A failure is free.
func TestTokensOfAModel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tokens := tieredtest.New(t, tiered.Policy{Name: "llm", Limit: tiered.PerMinute(10_000), MaxDebt: 100_000})
		uses := func(n int64, err error) func(context.Context) (int64, error) {
			return func(context.Context) (int64, error) { return n, err }
		}
		for range 20 {
			if err := complete(t.Context(), tokens.Limiter, "ann", uses(0, io.ErrUnexpectedEOF)); !errors.Is(err, io.ErrUnexpectedEOF) {
				t.Fatal(err)
			}
		}
		tokens.Advance(time.Second)
		fatal.If(t, complete(t.Context(), tokens.Limiter, "ann", uses(60_000, nil)))
		tokens.Advance(4 * time.Minute)
		if err := complete(t.Context(), tokens.Limiter, "ann", uses(1, nil)); !errors.Is(err, tiered.ErrLimited) {
			t.Errorf("after four minutes: %v", err)
		}
		tokens.Advance(time.Minute + 10*time.Second)
		fatal.If(t, complete(t.Context(), tokens.Limiter, "ann", uses(1, nil)))
	})
}

func planAndContract(group *tiered.Group, contracts map[string]int64) (func(http.Handler) http.Handler, error) {
	perUser, err := group.NewLimiter(tiered.Policy{
		Name: "per-user", Limit: tiered.PerMinute(100), // without a plan
		Plans: map[string]tiered.Limit{"pro": tiered.PerMinute(1000)},
	})
	if err != nil {
		return nil, err
	}
	return httplimit.New([]httplimit.Rule{{
		Limiter: perUser, Key: httplimit.Header("X-User"), Missing: httplimit.Refuse,
		Plan: func(r *http.Request) string { return r.Header.Get("X-Plan") }, // which your gateway sets
		Limit: func(r *http.Request) tiered.Limit {
			if n := contracts[r.Header.Get("X-User")]; n > 0 {
				return tiered.PerMinute(n)
			}
			return tiered.Limit{} // no contract: the plan counts
		},
	}}, nil)
}

// A contract beats the plan, and a plan the policy.
func TestPlanAndContract(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := tieredtest.New(t, tiered.Policy{Name: "other", Limit: tiered.PerHour(1)})
		limit := fatal.Get(planAndContract(l.Group(), map[string]int64{"acme": 5000}))(t)
		for _, c := range []struct{ user, plan, limit string }{
			{"ann", "", "100"}, {"bob", "pro", "1000"}, {"acme", "pro", "5000"}, {"eve", "none", "100"},
		} {
			w, r := httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/", nil)
			r.Header.Set("X-User", c.user)
			r.Header.Set("X-Plan", c.plan)
			limit(http.NotFoundHandler()).ServeHTTP(w, r)
			if got := w.Header().Get("X-RateLimit-Limit"); got != c.limit {
				t.Errorf("%s with plan %q has %s, want %s", c.user, c.plan, got, c.limit)
			}
		}
	})
}

// The keys of the README's table find the client behind each proxy, and not what it invented.
func TestBehindProxies(t *testing.T) {
	toRoot(t)
	_, table, _ := strings.Cut(read(t, "README.md"), "| behind | `Key` |")
	table, _, _ = strings.Cut(table, "\n\n")
	inside, edge := netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("173.245.48.0/20")
	rows := strings.Count(table, "\n| ")
	for _, c := range []struct {
		code string
		key  httplimit.Key
		peer string
		set  []string
	}{
		{"`RemoteIP()`", httplimit.RemoteIP(), "192.0.2.7", []string{"X-Forwarded-For", "198.51.100.1"}},
		{"`ForwardedFor(ingress)`", httplimit.ForwardedFor(inside), "10.1.1.1", []string{"X-Forwarded-For", "198.51.100.1, 192.0.2.7"}},
		{
			"`HeaderIP(\"CF-Connecting-IP\", cloudflare...)`", httplimit.HeaderIP("CF-Connecting-IP", edge), "173.245.48.1",
			[]string{"X-Forwarded-For", "198.51.100.1", "CF-Connecting-IP", "192.0.2.7"},
		},
		{"`TrustedHops(1)`", httplimit.TrustedHops(1), "10.1.1.1", []string{"X-Forwarded-For", "198.51.100.1, 192.0.2.7"}},
		{"`TrustedHops(2)`", httplimit.TrustedHops(2), "35.191.0.1", []string{"X-Forwarded-For", "198.51.100.1, 192.0.2.7, 203.0.113.9"}},
	} {
		if !strings.Contains(table, c.code) {
			t.Errorf("the README's table has no %s", c.code)
		}
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		r.RemoteAddr = c.peer + ":1"
		for i := 0; i < len(c.set); i += 2 {
			r.Header.Set(c.set[i], c.set[i+1])
		}
		if a, ok := c.key.Address(r); !ok || a.String() != "192.0.2.7" {
			t.Errorf("%s finds %v, %v", c.code, a, ok)
		}
	}
	if rows != 5 {
		t.Errorf("the table has %d rows, and this test 5", rows)
	}
}

func delayed(limiter *tiered.Limiter, longest time.Duration, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), longest)
		defer cancel()
		address, _, _ := net.SplitHostPort(r.RemoteAddr)
		if err := limiter.Wait(ctx, address); err != nil {
			http.Error(w, "too many requests", http.StatusTooManyRequests)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// Of thirty requests at once nginx serves one, delays twenty by 0.1 to 2 s, and refuses nine. With
// nodelay it serves 21 at once, with delay=8 nine at once.
func TestLimitReq(t *testing.T) {
	for _, c := range []struct {
		limit         tiered.Limit
		waits         bool
		atOnce, total int64
	}{
		{tiered.Every(100 * time.Millisecond), true, 1, 21},
		{tiered.PerSecond(10).WithBurst(21), false, 21, 21},
		{tiered.PerSecond(10).WithBurst(9), true, 9, 21},
	} {
		synctest.Test(t, func(t *testing.T) {
			limiter := tieredtest.New(t, tiered.Policy{Name: "limit-req", Limit: c.limit})
			var handler http.Handler = http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})
			if longest := time.Duration(c.total-c.atOnce)*100*time.Millisecond + 50*time.Millisecond; c.waits {
				handler = delayed(limiter.Limiter, longest, handler)
			} else {
				handler = fatal.Get(httplimit.ByIP(limiter.Limiter))(t)(handler)
			}
			ask := handled(handler)
			var all sync.WaitGroup
			var atOnce, total atomic.Int64
			begun := time.Now()
			for range 30 {
				all.Go(func() {
					if ask() == 200 {
						total.Add(1)
						if time.Since(begun) < 50*time.Millisecond {
							atOnce.Add(1)
						}
					}
				})
			}
			all.Wait()
			if atOnce.Load() != c.atOnce || total.Load() != c.total {
				t.Errorf("%v: %d at once, %d in all; want %d, %d", c.limit, atOnce.Load(), total.Load(), c.atOnce, c.total)
			}
		})
	}
}

func newPartner(group *tiered.Group) (*tiered.Limiter, error) {
	partner, err := group.NewLimiter(tiered.Policy{
		Name: "partner", Limit: tiered.PerSecond(50), MaxDebt: 50 * 600, // 50 for each of 600 s
	})
	return partner, err
}

func callPartner(ctx context.Context, partner *tiered.Limiter, send func() *http.Response) error {
	if err := partner.Wait(ctx, "all"); err != nil {
		return err
	}
	if answer := send(); answer.StatusCode == http.StatusTooManyRequests {
		seconds, _ := strconv.ParseInt(answer.Header.Get("Retry-After"), 10, 64)
		return partner.For("all").N(50*seconds + 50).Charge() // what has gathered, and the next seconds
	}
	return nil
}

// When one worker was told to come back in 30 s, all wait for about as long.
func TestAllWorkersPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := tieredtest.NewStore()
		worker := func() *tiered.Limiter {
			g := fatal.Get(tiered.NewGroup(store, nil))(t)
			t.Cleanup(func() { _ = g.Close(context.Background()) })
			return fatal.Get(newPartner(g))(t)
		}
		a, b := worker(), worker()
		ok := func() *http.Response { return &http.Response{StatusCode: 200} }
		fatal.If(t, errors.Join(callPartner(t.Context(), a, ok), callPartner(t.Context(), b, ok)))
		fatal.If(t, callPartner(t.Context(), a, func() *http.Response {
			return &http.Response{StatusCode: 429, Header: http.Header{"Retry-After": {"30"}}}
		}))
		time.Sleep(time.Second) // what b had leased has gone back, and the charge has arrived
		for _, w := range []*tiered.Limiter{b, a} {
			fatal.If(t, callPartner(t.Context(), w, ok))
		}
		if d := time.Since(time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)); d < 29*time.Second || d > 32*time.Second {
			t.Errorf("the next call after %v", d)
		}
	})
}

func refuseUploads(perUser *tiered.Limiter) (func(http.Handler) http.Handler, error) {
	return httplimit.New([]httplimit.Rule{{Limiter: perUser, Key: httplimit.RemoteIP(), Missing: httplimit.Refuse}}, &httplimit.Options{
		Denied: func(w http.ResponseWriter, r *http.Request, refusal httplimit.Refusal) {
			if r.Header.Get("Expect") == "" { // a client that asks first sends nothing after a refusal
				_, _ = io.CopyN(io.Discard, r.Body, 10<<20)
			}
			http.Error(w, "too many requests", refusal.Status)
		},
	})
}

// A client that first writes its whole upload of 8 MB, and then reads, gets the 429, where without
// Denied its connection is reset. One that asks first sends nothing.
func TestRefusedUpload(t *testing.T) {
	l := fatal.Get(tiered.New(tieredtest.NewStore(), tiered.Policy{Name: "p", Limit: tiered.Blocked()}, nil))(t)
	defer l.Close(context.Background())
	server := httptest.NewServer(fatal.Get(refuseUploads(l))(t)(http.NotFoundHandler()))
	defer server.Close()
	c := fatal.Get(net.Dial("tcp", server.Listener.Addr().String()))(t)
	defer c.Close()
	const size = 8 << 20
	fmt.Fprintf(c, "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n", size)
	if _, err := c.Write(bytes.Repeat([]byte("x"), size)); err != nil {
		t.Fatal(err)
	}
	answer := fatal.Get(http.ReadResponse(bufio.NewReader(c), nil))(t)
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusTooManyRequests {
		t.Errorf("status %d", answer.StatusCode)
	}
	asks := fatal.Get(net.Dial("tcp", server.Listener.Addr().String()))(t)
	defer asks.Close()
	fmt.Fprintf(asks, "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\nExpect: 100-continue\r\n\r\n", size)
	answer = fatal.Get(http.ReadResponse(bufio.NewReader(asks), nil))(t)
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusTooManyRequests {
		t.Errorf("a client that asks first: status %d", answer.StatusCode)
	}
}

func twoRules(mux *http.ServeMux, perUser *tiered.Limiter, api, search http.Handler) error {
	user := httplimit.Header("X-User")
	limit, err := httplimit.New([]httplimit.Rule{{Limiter: perUser, Key: user, Missing: httplimit.Refuse}}, nil)
	limitSearch, err2 := httplimit.New([]httplimit.Rule{{
		Limiter: perUser, Key: user, Missing: httplimit.Refuse, Cost: func(*http.Request) int64 { return 10 },
	}}, nil)
	mux.Handle("/", limit(api))
	mux.Handle("/search", limitSearch(search))
	return errors.Join(err, err2)
}

// Both routes take from one limit: nine searches and ten requests are 100.
func TestTwoRules(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		perUser := tieredtest.New(t, tiered.Policy{Name: "per-user", Limit: tiered.PerHour(100)})
		mux, ok := http.NewServeMux(), http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})
		fatal.If(t, twoRules(mux, perUser.Limiter, ok, ok))
		admitted := map[string]int{}
		for _, path := range append(strings.Split(strings.Repeat("/search ", 9), " "), strings.Split(strings.Repeat("/ ", 15), " ")...) {
			if path == "" {
				continue
			}
			w, r := httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, path, nil)
			r.Header.Set("X-User", "ann")
			if mux.ServeHTTP(w, r); w.Code == 200 {
				admitted[path]++
			}
		}
		if admitted["/search"] != 9 || admitted["/"] != 10 {
			t.Errorf("%v", admitted)
		}
	})
}
