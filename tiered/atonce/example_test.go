package atonce_test

import (
	"context"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"

	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
	"github.com/tiered-limiter/tiered-limiter/tiered/atonce"
	"github.com/tiered-limiter/tiered-limiter/tiered/httplimit"
)

// fiveInFlight lets five requests of a user run at the same time, in all processes together.
func fiveInFlight(group *tiered.Group) (func(http.Handler) http.Handler, error) {
	places, err := atonce.New(group, atonce.Policy{Name: "in-flight", Places: 5})
	if err != nil {
		return nil, err
	}
	return httplimit.New([]httplimit.Rule{
		{AtOnce: places, Key: httplimit.Header("X-User"), Missing: httplimit.Refuse},
	}, nil)
}

// Five requests of a user run, and the sixth is refused. Here they are made by a handler that
// asks its own service.
func Example() {
	group, err := tiered.NewGroup(remote.NewMemory(), nil) // remote.Open("redis://…", nil) in a service
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = group.Close(context.Background()) }()
	limit, err := fiveInFlight(group)
	if err != nil {
		log.Fatal(err)
	}
	var server http.Handler
	request := func() int {
		w, r := httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/", nil)
		r.Header.Set("X-User", "ann")
		server.ServeHTTP(w, r)
		return w.Code
	}
	running := 0
	server = limit(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		running++
		fmt.Println(running, "running")
		if code := request(); code != http.StatusOK {
			fmt.Println("one more:", code)
		}
		running--
	}))
	request()
	// Output:
	// 1 running
	// 2 running
	// 3 running
	// 4 running
	// 5 running
	// one more: 429
}
