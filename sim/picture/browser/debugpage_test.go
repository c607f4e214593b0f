package browser

import (
	"context"
	"errors"
	"fmt"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
	"github.com/tiered-limiter/tiered-limiter/tiered/debugpage"
)

// debug serves the page of a limiter: an idle one, or one that has gone through a lot and whose Redis is down.
func debug(t *testing.T, used bool) string {
	store := remote.NewMemory()
	g, err := tiered.NewGroup(store, &tiered.Options{Processes: 12, Timeout: 20 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		store.Fail(nil)
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_ = g.Close(ctx)
	})
	if used {
		ctx := context.Background()
		keys := []string{"ann@example.org", "<b>bob</b>\x00", "2001:db8:1:2::/64", fmt.Sprintf("%0200d", 7)}
		for i := range 30 {
			keys = append(keys, fmt.Sprintf("tenant/%d", i*i))
		}
		var limiters []*tiered.Limiter
		for i, name := range []string{"requests-per-user", "tokens-per-minute", "logins"} {
			l, err := g.NewLimiter(tiered.Policy{Name: name, Limit: tiered.PerMinute(1_200_000 >> (10 * i)).WithBurst(3), FailMode: tiered.FailMode(i)})
			if err != nil {
				t.Fatal(err)
			}
			limiters = append(limiters, l)
		}
		ask := func(times int) {
			for _, l := range limiters {
				for k, key := range keys {
					for range times / (k + 1) {
						l.Allow(ctx, key)
					}
				}
			}
		}
		ask(30_000)
		store.Fail(errors.New("the wire is cut"))
		for range 300 {
			for i := range 5 {
				limiters[2].Allow(ctx, fmt.Sprint("visitor ", i))
			}
			if g.Stats().Nodes["memory"].Breaker == "open" {
				break
			}
		}
		ask(300)
	}
	page, err := debugpage.New(g, &debugpage.Options{ShowKeys: used})
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(page)
	t.Cleanup(server.Close)
	return server.URL + "/"
}

// The limiter's own page: readable on every screen, nothing fetched, nothing complained of, its style applied.
func TestDebugPage(t *testing.T) {
	for name, address := range map[string]string{"idle": debug(t, false), "used": debug(t, true)} {
		for _, s := range screens {
			t.Run(name+"/"+s.String(), func(t *testing.T) {
				p := open(t, address, s)
				if got := ask[int](t, p, `document.scrollingElement.scrollWidth - innerWidth`); got > 0 {
					t.Errorf("the page is %d pixels wider than the screen", got)
				}
				if got := ask[string](t, p, `getComputedStyle(document.querySelector("main")).maxWidth`); got != "1180px" {
					t.Errorf("the style is not applied: max-width %s", got)
				}
				if got := ask[string](t, p, `getComputedStyle(document.body).backgroundColor`); (got != "rgb(255, 255, 255)") != (s.Dark && s.Media == "") {
					t.Errorf("dark %v, but the background is %s", s.Dark, got)
				}
				for _, c := range ask[[]string](t, p, cut) {
					t.Error("cut off by the edge of the screen:", c)
				}
				for _, c := range ask[[]string](t, p, faint) {
					t.Error("hard to read:", c)
				}
				if name != "used" {
					return
				}
				if n := ask[int](t, p, `document.querySelectorAll(".keys tbody tr").length`); n < 41 || n > 60 {
					t.Errorf("%d refused keys", n)
				}
				if got := ask[string](t, p, `document.querySelector(".state").textContent`); got == "closed" {
					t.Errorf("the breaker is %s", got)
				}
				if got := ask[int](t, p, `document.querySelectorAll("b").length`); got > 0 {
					t.Error("a key is markup")
				}
			})
		}
	}
}
