package httplimit_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"

	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
	"github.com/tiered-limiter/tiered-limiter/tiered/httplimit"
)

func ExampleNew() {
	store := remote.NewMemory() // or remote.Open("redis://127.0.0.1:6379", nil)
	defer store.Close()
	group, err := tiered.NewGroup(store, nil)
	if err != nil {
		panic(err)
	}
	defer group.Close(context.Background())
	perUser, err := group.NewLimiter(tiered.Policy{Name: "per-user", Limit: tiered.PerHour(2)})
	if err != nil {
		panic(err)
	}
	perIP, err := group.NewLimiter(tiered.Policy{Name: "per-ip", Limit: tiered.PerHour(100)})
	if err != nil {
		panic(err)
	}
	limit, err := httplimit.New([]httplimit.Rule{
		{Limiter: perUser, Key: httplimit.Credential("Authorization"), Missing: httplimit.Exempt},
		{Limiter: perIP, Key: httplimit.ForwardedFor(netip.MustParsePrefix("10.0.0.0/8")), Missing: httplimit.Refuse},
	}, nil)
	if err != nil {
		panic(err)
	}
	handler := limit(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "hello\n") }))

	for range 3 {
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		r.Header.Set("Authorization", "Bearer s3cr3t")
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, r)
		fmt.Print(w.Code, " ", w.Header().Get("X-RateLimit-Remaining"), " ", w.Header().Get("Retry-After"), " ", w.Body)
	}
	// Output:
	// 200 1  hello
	// 200 0  hello
	// 429 0 1800 Rate limit exceeded.
}

func ExampleReady() {
	store := remote.NewMemory()
	defer store.Close()
	group, err := tiered.NewGroup(store, nil)
	if err != nil {
		panic(err)
	}
	defer group.Close(context.Background())
	mux := http.NewServeMux()
	mux.Handle("GET /readyz", httplimit.Ready(group))

	w := httptest.NewRecorder()
	mux.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/readyz", nil))
	fmt.Print(w.Code, " ", w.Body)
	// Output: 200 ready
}

func ExampleSettle() {
	store := remote.NewMemory()
	defer store.Close()
	limiter, err := tiered.New(store, tiered.Policy{Name: "rows", Limit: tiered.PerDay(1000)}, nil)
	if err != nil {
		panic(err)
	}
	defer limiter.Close(context.Background())
	limit, err := httplimit.New([]httplimit.Rule{{
		Limiter: limiter, Key: httplimit.RemoteIP(), Missing: httplimit.Refuse,
		Cost: func(*http.Request) int64 { return 100 }, // what a query may cost
	}}, &httplimit.Options{Settle: true})
	if err != nil {
		panic(err)
	}
	handler := limit(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		rows := int64(7)
		fmt.Println(httplimit.Settle(r.Context(), map[string]int64{"rows": rows}))
	}))
	r := httptest.NewRequest(http.MethodGet, "/", nil)
	handler.ServeHTTP(httptest.NewRecorder(), r)
	// Output: <nil>
}
