package docs_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/redistest"
	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
	"github.com/tiered-limiter/tiered-limiter/tiered/httplimit"
)

// From docs/migration.md, one function per section.

// insteadOfHabits has the lines that the page's table of near misses shows, so that they compile.
func insteadOfHabits(ctx context.Context, rdb *redis.Client, key string, limits []tiered.Limit, handler http.Handler) error {
	store := remote.NewRedis(rdb, nil)
	policy := tiered.Policy{Name: "api", Limit: tiered.PerSecond(10)}
	limiter, err := tiered.New(store, policy, nil)
	if err != nil {
		return err
	}
	_ = tiered.Policy{Name: "api", Limit: limits[0].And(limits[1:]...)}
	_ = []tiered.Limit{tiered.PerMinute(100).WithBurst(200), tiered.Every(2 * time.Second), tiered.Unlimited()}
	d := limiter.Allow(ctx, key)
	limit, ok := limiter.LimitOf(d)
	r := limiter.Reserve(ctx, key)
	fmt.Println(limiter.Allow(ctx, key).Allowed, limit, ok, limiter.Peek(ctx, key).Remaining, limiter.Stats().Tokens.Limited)
	fmt.Println(r.Allowed, r.RetryAfter, limiter.For(key).N(3).Allow(ctx))
	n := 200
	fmt.Println(limiter.AllowN(ctx, key, int64(n)))
	if err := limiter.SetLimit(limit.WithBurst(int64(n))); err != nil {
		return err
	}
	if err := middlewares(limiter, handler); err != nil {
		return err
	}
	return limiter.Close(ctx)
}

func middlewares(limiter *tiered.Limiter, handler http.Handler) error {
	userOf := func(r *http.Request) string { return r.Header.Get("X-User") }
	_ = httplimit.KeyFunc(func(r *http.Request) (string, error) { return userOf(r), nil })
	if _, err := httplimit.ByHeader(limiter, "X-User"); err != nil {
		return err
	}
	limit, err := httplimit.ByIP(limiter)
	if err != nil {
		return err
	}
	http.Handle("/", limit(handler))
	return nil
}

// Each line that the page says to write instead of one from habit compiles.
func TestLinesInsteadOfHabits(t *testing.T) {
	_ = insteadOfHabits // it would ask a Redis
	toRoot(t)
	code, rows := read(t, "docs/migration_test.go"), 0
	_, table, _ := strings.Cut(read(t, "docs/migration.md"), "| typed | here |\n|---|---|\n")
	table, _, _ = strings.Cut(table, "\n\n")
	for row := range strings.Lines(table) {
		rows++
		columns := strings.Split(row, " | ")
		if line := strings.Split(columns[len(columns)-1], "`"); len(columns) != 2 || len(line) < 3 || !strings.Contains(code, line[1]) {
			t.Errorf("not in the code of this test: %s", row)
		}
	}
	if rows < 15 {
		t.Errorf("only %d rows: the pattern is wrong", rows)
	}
}

// insteadOfHTTPRate has the code that the page's list of httprate's names shows.
func insteadOfHTTPRate(ctx context.Context, limiter *tiered.Limiter, keyFn func(*http.Request) (string, error)) error {
	if _, err := httplimit.ByIP(limiter); err != nil {
		return err
	}
	one := httplimit.KeyFunc(func(*http.Request) (string, error) { return "all", nil })
	a, b := httplimit.KeyFunc(keyFn), httplimit.RemoteIP()
	denied := func(w http.ResponseWriter, _ *http.Request, refusal httplimit.Refusal) {
		if refusal.KeyError != nil {
			http.Error(w, refusal.KeyError.Error(), refusal.Status)
		}
	}
	for _, key := range []httplimit.Key{one, httplimit.JoinKeys(a, b), httplimit.Route()} {
		_, err := httplimit.New([]httplimit.Rule{{Limiter: limiter, Key: key, Missing: httplimit.Refuse}}, &httplimit.Options{
			Denied: denied, Headers: httplimit.Headers{Prefix: "RateLimit", ResetUnix: true},
		})
		if err != nil {
			return err
		}
	}
	key := "ann"
	fmt.Println(limiter.Peek(ctx, key).Allowed)
	return nil
}

// namesOfHTTPRate are the exported functions, methods and types of httprate v0.16.1 and of
// httprate-redis v0.7.0, but for those that only name a type of an argument.
const namesOfHTTPRate = `CanonicalizeIP Counter Handler JoinKeys Key KeyByEndpoint KeyByIP KeyByRealIP Limit LimitAll LimitBy
	LimitByIP LimitByRealIP LimitCounter LimitCounterKey NewLocalLimitCounter NewRateLimiter OnLimit RespondOnLimit
	ResponseHeaders Status WithErrorHandler WithIncrement WithKeyByIP WithKeyByRealIP WithKeyFuncs WithLimitCounter
	WithLimitHandler WithNoop WithRequestLimit WithResponseHeaders NewCounter NewRedisLimitCounter WithRedisLimitCounter`

// Each name of httprate has a line on the page, and each call that the lines say to write compiles.
func TestNamesOfHTTPRate(t *testing.T) {
	_ = insteadOfHTTPRate // TestFromHTTPRate plays such a middleware
	toRoot(t)
	source := read(t, "docs/migration_test.go")
	_, list, _ := strings.Cut(read(t, "docs/migration.md"), "## go-chi/httprate\n\n")
	list, _, _ = strings.Cut(list, "\n```")
	code := regexp.MustCompile("`([^`]+)`")
	var has []string
	bold := regexp.MustCompile("\\*\\*(?:`[^`]*`|[^*`])+\\*\\*")
	for _, names := range bold.FindAllString(list, -1) {
		for _, m := range code.FindAllStringSubmatch(names, -1) {
			name, _, _ := strings.Cut(strings.TrimPrefix(m[1], "httprateredis."), "(")
			has = append(has, name)
		}
	}
	for name := range strings.FieldsSeq(namesOfHTTPRate) {
		if !slices.Contains(has, name) {
			t.Errorf("the page does not have %s", name)
		}
	}
	ours := code.FindAllStringSubmatch(bold.ReplaceAllString(list, ""), -1)
	for _, m := range ours {
		if strings.ContainsAny(m[1], "({") && !strings.Contains(source, m[1]) {
			t.Errorf("not in the code of this test: %s", m[1])
		}
	}
	if len(ours) < 30 {
		t.Errorf("only %d pieces of code: the pattern is wrong", len(ours))
	}
}

func fromRedisRate(rdb *redis.Client, limitOf func(user string) tiered.Limit) (http.HandlerFunc, *tiered.Group, error) {
	// limiter := redis_rate.NewLimiter(rdb)
	store := remote.NewRedis(rdb, &remote.RedisOptions{Prefix: "shop:"}) // one per service
	group, err := tiered.NewGroup(store, &tiered.Options{Processes: 3})  // the fewest that you run
	if err != nil {
		return nil, nil, err
	}
	perUser, err := group.NewLimiter(tiered.Policy{Name: "user", Limit: tiered.PerMinute(100)})
	if err != nil {
		return nil, nil, err
	}
	perIP, err := group.NewLimiter(tiered.Policy{Name: "ip", Limit: tiered.PerMinute(300)})
	if err != nil {
		return nil, nil, err
	}
	return func(w http.ResponseWriter, r *http.Request) {
		ctx, user, ip := r.Context(), r.Header.Get("X-User"), r.RemoteAddr
		// res, err := limiter.Allow(ctx, "user:"+user, limitOf(user)), and so for the address
		d := tiered.All(perIP.For(ip), perUser.For(user).WithLimit(limitOf(user))).Allow(ctx)
		httplimit.WriteHeaders(w.Header(), d) // X-RateLimit-Limit, -Remaining and -Reset; Retry-After
		if !d.Allowed {
			httplimit.WriteRefusal(w, d) // 429, and a text; Status(d) for your own body
			return
		}
	}, group, nil
}

func fromTimeRate(ctx context.Context, store remote.Store, mails int) error {
	// limiter := rate.NewLimiter(rate.Every(100*time.Millisecond), 20)
	limiter, err := tiered.New(store, tiered.Policy{
		Name:  "mail",
		Limit: tiered.Every(100 * time.Millisecond).WithBurst(20),
	}, &tiered.Options{Processes: 3})
	if err != nil {
		return err
	}
	defer limiter.Close(ctx)
	for range mails {
		// err := limiter.Wait(ctx)
		if err := limiter.Wait(ctx, "all"); err != nil { // one key, where one limiter was for everything
			return err
		}
	}
	return nil
}

// router is what chi.Router has, among other methods.
type router interface {
	Use(...func(http.Handler) http.Handler)
}

func fromHTTPRate(r router, store remote.Store, byToken, byPath func(*http.Request) (string, error), tooMany http.HandlerFunc) (*tiered.Limiter, error) {
	// r.Use(httprate.LimitBy(100, time.Minute, httprate.JoinKeys(byToken, httprate.KeyByEndpoint),
	// 	httprate.WithLimitHandler(tooMany)))
	limiter, err := tiered.New(store, tiered.Policy{Name: "api", Limit: tiered.PerMinute(100)}, &tiered.Options{Processes: 3})
	if err != nil {
		return nil, err
	}
	limit, err := httplimit.New([]httplimit.Rule{{
		Limiter: limiter,
		Key:     httplimit.JoinKeys(httplimit.KeyFunc(byToken).Hashed(), httplimit.KeyFunc(byPath)),
		Missing: httplimit.Together, // all without a token are one client
	}}, &httplimit.Options{
		Denied: func(w http.ResponseWriter, r *http.Request, refusal httplimit.Refusal) {
			if refusal.Status == http.StatusTooManyRequests {
				tooMany(w, r)
				return
			}
			http.Error(w, refusal.Reason.String(), refusal.Status) // 503, 400: not the client's rate
		},
	})
	if err != nil {
		return nil, err
	}
	r.Use(limit)
	return limiter, nil
}

func fromUlule(store remote.Store) (*tiered.Limiter, error) {
	// rate, err := limiter.NewRateFromFormatted("1000-H")
	limit, err := tiered.ParseLimit("1000/h")
	if err != nil {
		return nil, err
	}
	// instance := limiter.New(store, rate)
	limiter, err := tiered.New(store, tiered.Policy{
		Name:      "api",
		Limit:     limit,
		Algorithm: tiered.FixedWindow, // windows, as before
	}, &tiered.Options{Processes: 3})
	return limiter, err
}

// A refused user takes nothing of the address, which has tokens for three users.
func TestFromRedisRate(t *testing.T) {
	rdb := redistest.StartOpen(t).Client()
	limitOf := func(user string) tiered.Limit {
		if user == "cid" {
			return tiered.PerHour(10)
		}
		return tiered.PerHour(150)
	}
	handler, group, err := fromRedisRate(rdb, limitOf)
	if err != nil {
		t.Fatal(err)
	}
	defer group.Close(context.Background())
	var wrong []string
	for _, c := range []struct {
		user  string
		admit int
	}{{"ann", 150}, {"cid", 10}, {"bob", 140}} {
		w := httptest.NewRecorder()
		for i := range c.admit + 30 {
			w = httptest.NewRecorder()
			r := httptest.NewRequest(http.MethodGet, "/", nil)
			r.Header.Set("X-User", c.user)
			if handler(w, r); w.Code != http.StatusOK && i < c.admit {
				wrong = append(wrong, fmt.Sprintf("%s, request %d: %d, %v", c.user, i, w.Code, w.Header()))
			}
		}
		refused := w.Code == http.StatusTooManyRequests && w.Header().Get("Retry-After") != ""
		if c.user != "bob" && !refused || w.Header().Get("X-RateLimit-Limit") == "" {
			wrong = append(wrong, fmt.Sprintf("%s, the last: %d, %v", c.user, w.Code, w.Header()))
		}
	}
	for _, n := range group.Stats().Nodes {
		if n.Calls.Overruns > 0 { // the machine is busy, and the fail mode has decided
			t.Skipf("not judged: %d decisions got no answer within Budget; %v", n.Calls.Overruns, wrong)
		}
	}
	if wrong != nil {
		t.Error(strings.Join(wrong, "\n"))
	}
}

func TestFromTimeRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begun := time.Now()
		if err := fromTimeRate(t.Context(), remote.NewMemory(), 30); err != nil {
			t.Error(err)
		}
		if took := time.Since(begun).Round(10 * time.Millisecond); took != time.Second {
			t.Errorf("30 mails take %v, want the burst of 20 at once and 10 in a second", took)
		}
	})
}

// chain is a router with one route.
type chain struct{ handler http.Handler }

func (c *chain) Use(all ...func(http.Handler) http.Handler) {
	for _, middleware := range all {
		c.handler = middleware(c.handler)
	}
}

func TestFromHTTPRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &chain{http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})}
		byToken := func(r *http.Request) (string, error) { return r.Header.Get("X-Access-Token"), nil }
		byPath := func(r *http.Request) (string, error) { return r.URL.Path, nil }
		tooMany := func(w http.ResponseWriter, r *http.Request) {
			http.Error(w, "slow down", http.StatusTooManyRequests)
		}
		limiter, err := fromHTTPRate(r, remote.NewMemory(), byToken, byPath, tooMany)
		if err != nil {
			t.Fatal(err)
		}
		defer limiter.Close(context.Background())
		get := func(path string) *httptest.ResponseRecorder {
			w, request := httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, path, nil)
			request.Header.Set("X-Access-Token", "secret-of-ann")
			r.handler.ServeHTTP(w, request)
			return w
		}
		for range 100 {
			get("/a")
		}
		if w := get("/a"); w.Code != http.StatusTooManyRequests || w.Header().Get("Retry-After") != "1" ||
			w.Header().Get("X-RateLimit-Limit") != "100" || w.Body.String() != "slow down\n" {
			t.Errorf("%d, %v, %s", w.Code, w.Header(), w.Body)
		}
		if top := limiter.Stats().Top; len(top) != 1 || strings.Contains(top[0].Key, "secret-of-ann") {
			t.Errorf("%+v: want one key, and not the token", top)
		}
		if w := get("/" + strings.Repeat("long", 1<<14)); w.Code != http.StatusBadRequest {
			t.Errorf("a key that is too long: %d, %s", w.Code, w.Body)
		}
		if w := get("/b"); w.Code != http.StatusOK {
			t.Errorf("another endpoint: %d, %v", w.Code, w.Header())
		}
	})
}

func TestFromUlule(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limiter, err := fromUlule(remote.NewMemory())
		if err != nil {
			t.Fatal(err)
		}
		defer limiter.Close(context.Background())
		limiter.AllowN(t.Context(), "ann", 1000)
		d := limiter.Allow(t.Context(), "ann")
		if d.Allowed || d.RetryAfter <= 0 || d.RetryAfter > time.Hour {
			t.Errorf("%+v", d)
		}
		time.Sleep(d.RetryAfter)
		if d := limiter.AllowN(t.Context(), "ann", 1000); !d.Allowed {
			t.Errorf("the next window: %+v", d)
		}
	})
}
