package adapters

import (
	"context"
	"errors"
	"net/http"

	"github.com/tiered-limiter/tiered-limiter/tiered"
	"github.com/tiered-limiter/tiered-limiter/tiered/httplimit"
)

// counting returns a Counts that tells what it sees, and what it says of each status.
func counting(counts bool) (*httplimit.Options, chan int) {
	saw := make(chan int, 100)
	return &httplimit.Options{Counts: func(status int) bool { saw <- status; return counts }}, saw
}

func countsStatus(p *player) {
	for name, h := range map[string]func(Request) error{
		"a-body":   func(r Request) error { r.Answer(http.StatusCreated, "x"); return nil },
		"failed":   func(r Request) error { r.Answer(http.StatusUnauthorized, "x"); return nil },
		"no-body":  func(r Request) error { r.Answer(http.StatusForbidden, ""); return nil },
		"nothing":  func(Request) error { return nil },
		"returned": func(Request) error { return errors.New("broken") },
		"stream":   func(r Request) error { r.Stream(func(send func(string)) { send("x") }); return nil },
	} {
		for _, counts := range []bool{true, false} {
			o, saw := counting(counts)
			want, policy := int64(5), name+"-free"
			if counts {
				want, policy = 4, name+"-counted"
			}
			l := p.limiter(policy, tiered.PerHour(5))
			p.start(App{Rules: []httplimit.Rule{perUser(l)}, Options: o, Handler: h})
			a := p.get("ann")
			if got := receive(p, saw); got != a.status {
				p.Errorf("%s: the client got %d, Counts saw %d", name, a.status, got)
			}
			p.left(l, "ann", want)
		}
	}
}

func countsNotFound(p *player) {
	o, saw := counting(true)
	p.start(App{Rules: []httplimit.Rule{perUser(p.limiter("api", tiered.PerHour(5)))}, Options: o})
	a := p.getPath("/nothing/here", "ann")
	if got := receive(p, saw); got != http.StatusNotFound || a.status != got {
		p.Errorf("the client got %d, Counts saw %d", a.status, got)
	}
}

func guessing(p *player) {
	wrong := 0
	p.start(App{
		Rules:   []httplimit.Rule{perUser(p.limiter("login", tiered.PerHour(3)))},
		Options: &httplimit.Options{Counts: func(status int) bool { return status == http.StatusUnauthorized }},
		Handler: func(r Request) error {
			wrong++
			r.Answer(http.StatusUnauthorized, "wrong password")
			return nil
		},
	})
	for range 20 {
		p.get("ann")
	}
	if wrong != 3 {
		p.Errorf("%d wrong passwords were tried, want 3", wrong)
	}
}

func countsHijacked(p *player) {
	o, saw := counting(true)
	p.start(App{Rules: []httplimit.Rule{perUser(p.limiter("api", tiered.PerHour(1)))}, Options: o, Handler: takesOver})
	p.hijack()
	if got := receive(p, saw); got != http.StatusSwitchingProtocols {
		p.Errorf("Counts saw %d", got)
	}
}

func denied(p *player) {
	for name, c := range map[string]struct {
		write  func(http.ResponseWriter)
		status int
		body   string
	}{
		"all":       {func(w http.ResponseWriter) { w.WriteHeader(420); _, _ = w.Write([]byte("no")) }, 420, "no"},
		"body-only": {func(w http.ResponseWriter) { _, _ = w.Write([]byte("no")) }, http.StatusTooManyRequests, "no"},
		"nothing":   {func(http.ResponseWriter) {}, http.StatusTooManyRequests, ""},
		"flushed": {
			func(w http.ResponseWriter) { _ = http.NewResponseController(w).Flush() }, http.StatusTooManyRequests, "",
		},
	} {
		p.start(App{
			Rules:   []httplimit.Rule{perUser(p.limiter(name, tiered.PerHour(1)))},
			Options: &httplimit.Options{Denied: func(w http.ResponseWriter, _ *http.Request, _ httplimit.Refusal) { c.write(w) }},
		})
		p.get("ann")
		p.seen()
		a, s := p.get("ann"), p.seen()
		if a.status != c.status || a.body != c.body || a.header.Get("Retry-After") != "3600" || s.Status != c.status || !s.Written {
			p.Errorf("%s: %+v, outside it is %+v", name, a, s)
		}
	}
}

func refusedTold(p *player) {
	type told struct {
		tenant any
		reason tiered.Reason
	}
	all := make(chan told, 10)
	p.start(App{
		Rules:  []httplimit.Rule{perUser(p.limiter("api", tiered.PerHour(1)))},
		Before: func(r Request) { r.With("tenant", "acme") },
		Options: &httplimit.Options{Refused: func(ctx context.Context, d tiered.Decision) {
			all <- told{ctx.Value(Key("tenant")), d.Reason}
		}},
	})
	p.get("ann")
	for user, reason := range map[string]tiered.Reason{"ann": tiered.Limited, "": tiered.InvalidKey} {
		p.get(user)
		if got := receive(p, all); got != (told{"acme", reason}) {
			p.Errorf("told of %+v", got)
		}
	}
}

func skipped(p *player) {
	isFree := func(r *http.Request) bool { return r.Header.Get("X-Free") != "" }
	l, other := p.limiter("api", tiered.PerHour(1)), p.limiter("other", tiered.PerHour(1))
	rule := perUser(other)
	rule.Skip = isFree
	for name, app := range map[string]App{
		"all rules": {Rules: []httplimit.Rule{perUser(l)}, Options: &httplimit.Options{Skip: isFree, Counts: func(int) bool { return true }}},
		"one rule":  {Rules: []httplimit.Rule{rule}},
	} {
		p.start(app)
		for i, want := range []int{200, 200, 429, 200} {
			var fields []string
			if i != 1 && i != 2 {
				fields = []string{"X-Free", "1"}
			}
			a := p.get("ann", fields...)
			if limit := a.header.Get("X-RateLimit-Limit"); a.status != want || (limit == "") != (fields != nil) {
				p.Errorf("%s, request %d: %d %v, want %d", name, i, a.status, a.header, want)
			}
		}
	}
}

func settled(p *player) {
	l := p.limiter("tokens", tiered.PerDay(100))
	rule, cost, actual, late := perUser(l), int64(0), int64(0), make(chan context.Context, 1)
	rule.Cost = func(*http.Request) int64 { return cost }
	p.start(App{
		Rules: []httplimit.Rule{rule}, Options: &httplimit.Options{Settle: true},
		Handler: func(r Request) error {
			if actual < 0 {
				late <- r.Context()
				return nil
			}
			if err := httplimit.Settle(r.Context(), map[string]int64{"tokens": actual}); err != nil {
				r.Answer(http.StatusInternalServerError, err.Error())
			}
			return nil
		},
	})
	for _, s := range []struct{ cost, actual, later, left int64 }{
		{30, 10, 0, 90}, // less
		{10, 20, 0, 70}, // more
		{0, 15, 0, 55},  // nothing was taken
		{10, -1, 5, 50}, // after the answer
		{0, -1, 5, 45},
		{0, 0, 0, 45},
	} {
		cost, actual = s.cost, s.actual
		if a := p.get("ann"); a.status != http.StatusOK {
			p.Errorf("%+v: %+v", s, a)
		}
		if actual < 0 {
			ctx := receive(p, late)
			for i := range 2 { // the first counts
				if err := httplimit.Settle(ctx, map[string]int64{"tokens": s.later}); (err == nil) != (i == 0) {
					p.Errorf("%+v: %v", s, err)
				}
			}
		}
		p.left(l, "ann", s.left)
	}
}

func severalRules(p *player) {
	user, all := p.limiter("user", tiered.PerHour(1)), p.limiter("all", tiered.PerHour(10))
	every := httplimit.Rule{Limiter: all, Missing: httplimit.Refuse, Key: httplimit.KeyFunc(func(*http.Request) (string, error) {
		return "everybody", nil
	})}
	p.start(App{Rules: []httplimit.Rule{every, perUser(user)}})
	for i, want := range []int{200, 429, 429} {
		if a := p.get("ann"); a.status != want || a.header.Get("X-RateLimit-Limit") != "1" {
			p.Errorf("request %d: %+v, want %d", i, a, want)
		}
	}
	if a := p.get("bob"); a.status != http.StatusOK {
		p.Errorf("%+v", a)
	}
	p.left(all, "everybody", 8)
}
