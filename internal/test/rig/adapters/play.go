package adapters

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"

	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/fatal"
	"github.com/tiered-limiter/tiered-limiter/tiered"
	"github.com/tiered-limiter/tiered-limiter/tiered/atonce"
	"github.com/tiered-limiter/tiered-limiter/tiered/httplimit"
)

func admitted(p *player) {
	p.start(App{Rules: []httplimit.Rule{perUser(p.limiter("api", tiered.PerHour(2)))}, Handler: func(r Request) error {
		r.Answer(http.StatusCreated, "made")
		return nil
	}})
	for _, want := range []struct{ user, left string }{{"ann", "1"}, {"ann", "0"}, {"bob", "1"}} {
		a := p.get(want.user)
		if a.status != http.StatusCreated || a.body != "made" || a.header.Get("X-RateLimit-Limit") != "2" ||
			a.header.Get("X-RateLimit-Remaining") != want.left || a.header.Get("Retry-After") != "" {
			p.Errorf("%+v, want %+v", a, want)
		}
	}
}

func refused(p *player) {
	ran := 0
	p.start(App{Rules: []httplimit.Rule{perUser(p.limiter("api", tiered.PerHour(1)))}, Handler: func(Request) error {
		ran++
		return nil
	}})
	p.get("ann")
	for _, want := range []struct {
		user, retry, body string
		status            int
	}{
		{"ann", "3600", "Rate limit exceeded.\n", http.StatusTooManyRequests},
		{"", "", "The request does not identify its client.\n", http.StatusBadRequest},
	} {
		a := p.get(want.user)
		if a.status != want.status || a.header.Get("Retry-After") != want.retry || a.body != want.body ||
			!strings.HasPrefix(a.header.Get("Content-Type"), "text/plain") {
			p.Errorf("%+v, want %+v", a, want)
		}
	}
	if ran != 1 {
		p.Errorf("the handler ran %d times, want 1", ran)
	}
}

func hidden(p *player) {
	all := httplimit.Rule{Limiter: p.limiter("all", tiered.PerHour(2)), Key: httplimit.Method(), Missing: httplimit.Refuse, Hidden: true}
	p.start(App{
		Rules:   []httplimit.Rule{perUser(p.limiter("api", tiered.PerHour(9))), all},
		Handler: func(Request) error { return nil },
	})
	for i, want := range []struct {
		left, retry string
		status      int
	}{{"8", "", http.StatusOK}, {"7", "", http.StatusOK}, {"7", "1800", http.StatusTooManyRequests}} {
		a := p.get("ann")
		if a.status != want.status || a.header.Get("X-RateLimit-Limit") != "9" || a.header.Get("X-RateLimit-Remaining") != want.left ||
			a.header.Get("Retry-After") != want.retry {
			p.Errorf("request %d: %+v, want %+v", i, a, want)
		}
	}
}

func statusOutside(p *player) {
	p.start(App{Rules: []httplimit.Rule{perUser(p.limiter("api", tiered.PerHour(1)))}, Handler: func(r Request) error {
		r.Answer(http.StatusUnauthorized, "x")
		return nil
	}})
	for _, want := range []struct {
		user   string
		status int
	}{{"ann", http.StatusUnauthorized}, {"ann", http.StatusTooManyRequests}, {"", http.StatusBadRequest}} {
		if a, s := p.get(want.user), p.seen(); a.status != want.status || s.Status != want.status || !s.Written {
			p.Errorf("the client got %d, outside it is %+v, want %d", a.status, s, want.status)
		}
	}
}

func errorOutside(p *player) {
	broken := errors.New("broken")
	for name, o := range map[string]*httplimit.Options{
		"no options": nil, "Counts": {Counts: func(int) bool { return true }}, "Settle": {Settle: true},
	} {
		p.start(App{
			Rules: []httplimit.Rule{perUser(p.limiter(strings.ReplaceAll(name, " ", "-"), tiered.PerHour(1)))}, Options: o,
			Handler: func(Request) error { return broken },
		})
		if a, s := p.get("ann"), p.seen(); !errors.Is(s.Err, broken) || strings.Count(a.body, "Error") > 1 {
			p.Errorf("%s: %+v, outside it is %+v", name, a, s)
		}
		if a, s := p.get("ann"), p.seen(); s.Err != nil {
			p.Errorf("%s: a refusal is %+v, outside %+v", name, a, s)
		}
	}
}

func stored(p *player) {
	var found any
	p.start(App{
		Rules: []httplimit.Rule{perUser(p.limiter("api", tiered.PerHour(1)))}, Options: &httplimit.Options{Settle: true},
		Before: func(r Request) { r.With("tenant", "acme") },
		Handler: func(r Request) error {
			found = r.Value("tenant")
			return nil
		},
	})
	p.get("ann")
	if p.seen(); found != "acme" {
		p.Errorf("found %v", found)
	}
}

func writesNothing(p *player) {
	p.start(App{
		Rules:   []httplimit.Rule{perUser(p.limiter("api", tiered.PerHour(1)))},
		Handler: func(Request) error { return nil },
	})
	if a := p.get("ann"); a.status != http.StatusOK || a.body != "" || a.header.Get("X-RateLimit-Remaining") != "0" {
		p.Errorf("%+v", a)
	}
}

func streamed(p *player) {
	for i, o := range []*httplimit.Options{nil, {Settle: true, Counts: func(int) bool { return true }}} {
		next := make(chan bool)
		p.start(App{
			Rules:   []httplimit.Rule{perUser(p.limiter(fmt.Sprint("api-", i), tiered.PerHour(10)))},
			Options: o,
			Handler: func(r Request) error {
				r.Stream(func(send func(string)) {
					for i := range 3 {
						send(fmt.Sprintf("data: %d\n", i))
						<-next
					}
				})
				return nil
			},
		})
		func() {
			defer close(next)
			resp := fatal.Get(p.client.Do(p.request(context.Background(), "/", "ann")))(p)
			defer resp.Body.Close()
			if left := resp.Header.Get("X-RateLimit-Remaining"); left != "9" {
				p.Errorf("remaining %q", left)
			}
			lines := bufio.NewReader(resp.Body)
			for i := range 3 {
				if line, err := lines.ReadString('\n'); err != nil || line != fmt.Sprintf("data: %d\n", i) {
					p.Fatalf("%q, %v", line, err)
				}
				next <- true // the next part is not written before
			}
		}()
	}
}

// takesOver takes the connection over, and answers one line.
func takesOver(r Request) error {
	r.Hijack(func(c net.Conn) {
		defer c.Close()
		fmt.Fprint(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n")
		if line, err := bufio.NewReader(c).ReadString('\n'); err == nil {
			fmt.Fprint(c, "you say "+line)
		}
	})
	return nil
}

// hijack asks for another protocol, and says a line.
func (p *player) hijack() {
	p.Helper()
	c := fatal.Get(net.Dial("tcp", p.address))(p)
	defer c.Close()
	fmt.Fprint(c, "GET / HTTP/1.1\r\nHost: x\r\nX-User: ann\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n")
	in := bufio.NewReader(c)
	resp, err := http.ReadResponse(in, nil)
	if err != nil || resp.StatusCode != http.StatusSwitchingProtocols {
		p.Fatalf("%v, %v", resp, err)
	}
	defer resp.Body.Close()
	fmt.Fprint(c, "hello\n")
	if line, err := in.ReadString('\n'); line != "you say hello\n" {
		p.Errorf("%q, %v", line, err)
	}
}

func hijacked(p *player) {
	p.start(App{Rules: []httplimit.Rule{perUser(p.limiter("api", tiered.PerHour(1)))}, Handler: takesOver})
	p.hijack()
	if a := p.get("ann"); a.status != http.StatusTooManyRequests {
		p.Errorf("the next request got %d", a.status)
	}
}

func panicked(p *player) {
	for i, o := range []*httplimit.Options{nil, {Counts: func(int) bool { return false }}} {
		l := p.limiter(fmt.Sprint("api-", i), tiered.PerHour(1))
		p.start(App{Rules: []httplimit.Rule{perUser(l)}, Options: o, Handler: func(Request) error { panic("ouch") }})
		if a, s := p.get("ann"), p.seen(); a.status != http.StatusInternalServerError || s.Panic != "ouch" {
			p.Errorf("%+v, outside it is %+v", a, s)
		}
		if a := p.get("ann"); a.status != http.StatusTooManyRequests {
			p.Errorf("the next request got %d", a.status)
		}
		p.left(l, "ann", 0)
	}
}

func shutDown(p *player) {
	began, goOn := make(chan bool), make(chan bool)
	p.start(App{
		Rules:  []httplimit.Rule{perUser(p.limiter("api", tiered.PerHour(1)))},
		Before: func(Request) { began <- true; <-goOn }, // authentication, which takes a moment
	})
	got, ended := make(chan answer, 1), make(chan bool)
	go func() { got <- p.get("ann") }()
	receive(p, began)
	go func() { p.end(); close(ended) }()
	p.eventually("the server no longer listens", func() bool {
		c, err := net.Dial("tcp", p.address)
		if err == nil {
			_ = c.Close()
		}
		return err != nil
	})
	close(goOn)
	if a := receive(p, got); a.status != http.StatusOK || a.body != "served" {
		p.Errorf("%+v", a)
	}
	receive(p, ended)
}

func clientGone(p *player) {
	l, began := p.limiter("api", tiered.PerHour(5)), make(chan bool)
	p.start(App{Rules: []httplimit.Rule{perUser(l)}, Before: func(r Request) {
		began <- true
		<-r.Context().Done()
	}})
	ctx, leave := context.WithCancel(context.Background())
	ended := make(chan bool)
	go func() {
		defer close(ended)
		if resp, err := p.client.Do(p.request(ctx, "/", "ann")); err == nil {
			_ = resp.Body.Close()
			p.Errorf("the client got %s", resp.Status)
		}
	}()
	receive(p, began)
	leave()
	receive(p, ended)
	if s := p.seen(); s.Status != http.StatusServiceUnavailable {
		p.Errorf("outside it is %+v", s)
	}
	p.left(l, "ann", 5)
}

func keyed(p *player) {
	tenant := ""
	p.start(App{
		Rules:  []httplimit.Rule{perUser(p.limiter("tenants", tiered.PerHour(2)))},
		Before: func(r Request) { r.With("tenant", tenant) },
		Key: func(r Request) (string, error) {
			if r.Value("tenant") == "odd" {
				return "", errors.New("the tenant is odd")
			}
			return r.Value("tenant").(string), nil
		},
	})
	for i, want := range []struct {
		tenant, left, body string
		status             int
	}{
		{"acme", "1", "served", http.StatusOK},
		{"other", "1", "served", http.StatusOK},
		{"acme", "0", "served", http.StatusOK},
		{"acme", "0", "Rate limit exceeded.\n", http.StatusTooManyRequests},
		{"", "", "The request does not identify its client.\n", http.StatusBadRequest},
		{"odd", "", "The request does not identify its client: the tenant is odd\n", http.StatusBadRequest},
	} {
		tenant = want.tenant
		if a := p.get("ann"); a.status != want.status || a.body != want.body || a.header.Get("X-RateLimit-Remaining") != want.left {
			p.Errorf("request %d: %+v, want %+v", i, a, want)
		}
	}
}

func unlimited(p *player) {
	p.start(App{})
	const text = "The service cannot accept the request now. Try again later.\n"
	if a := p.get("ann"); a.status != http.StatusServiceUnavailable || a.body != text {
		p.Errorf("%+v", a)
	}
}

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

func heldPlace(p *player) {
	rule := perUser(p.limiter("api", tiered.PerHour(10)))
	rule.AtOnce = fatal.Get(atonce.New(p.group, atonce.Policy{Name: "running", Places: 1}))(p)
	runs, goOn := make(chan bool), make(chan bool)
	p.start(App{Rules: []httplimit.Rule{rule}, Handler: func(r Request) error {
		runs <- true
		if <-goOn {
			panic("ouch")
		}
		r.Answer(http.StatusOK, "served")
		return nil
	}})
	got := make(chan answer, 1)
	for _, panics := range []bool{false, true, false} {
		go func() { got <- p.get("ann") }()
		receive(p, runs)
		if a := p.get("ann"); a.status != http.StatusTooManyRequests || a.header.Get("Retry-After") == "" {
			p.Errorf("beside one that runs: %+v", a)
		}
		goOn <- panics
		receive(p, got)
		p.eventually("the place is given back", func() bool { return rule.AtOnce.Stats().Running == 0 })
	}
}
