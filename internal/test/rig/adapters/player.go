package adapters

import (
	"context"
	"io"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/fatal"
	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/testgroup"
	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/watch"
	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
	"github.com/tiered-limiter/tiered-limiter/tiered/httplimit"
)

// patience is how long a player waits for what must happen. Only a test that fails waits for so
// long.
const patience = 20 * time.Second

// player plays a row.
type player struct {
	*testing.T
	serve   Serve
	group   *tiered.Group
	address string
	stop    func() error
	client  http.Client
	after   chan Seen
	ended   bool
}

// limiter returns a Limiter with a policy.
func (p *player) limiter(name string, limit tiered.Limit) *tiered.Limiter {
	p.Helper()
	if p.group == nil {
		p.group = testgroup.New(p.T, watch.Over(p.T, remote.NewMemory()), nil)
	}
	return testgroup.NewLimiter(p.T, p.group, tiered.Policy{Name: name, Limit: limit})
}

// perUser is the usual rule.
func perUser(l *tiered.Limiter) httplimit.Rule {
	return httplimit.Rule{Limiter: l, Key: httplimit.Header("X-User"), Missing: httplimit.Refuse}
}

// start serves an app, whose Before and Handler may be nil, until the end of the test. Its After is
// the player's.
func (p *player) start(app App) {
	p.Helper()
	if p.stop != nil {
		p.end()
	}
	if app.Before == nil {
		app.Before = func(Request) {}
	}
	if app.Handler == nil {
		app.Handler = func(r Request) error {
			r.Answer(http.StatusOK, "served")
			return nil
		}
	}
	after := make(chan Seen, 100)
	app.After = func(s Seen) { after <- s }
	ln := fatal.Get(net.Listen("tcp", "127.0.0.1:0"))(p)
	p.after, p.address, p.ended = after, ln.Addr().String(), false
	p.client = http.Client{Transport: &http.Transport{}, Timeout: patience}
	p.stop = p.serve(p.T, app, ln)
	p.Cleanup(p.end)
}

// end ends the server, once.
func (p *player) end() {
	p.client.CloseIdleConnections()
	if p.ended {
		return
	}
	p.ended = true
	if err := p.stop(); err != nil {
		p.Errorf("the server ended with %v", err)
	}
}

// answer is what a client got.
type answer struct {
	status int
	body   string
	header http.Header
}

// get asks for "/" as a user, with header fields.
func (p *player) get(user string, fields ...string) answer { return p.getPath("/", user, fields...) }

func (p *player) getPath(path, user string, fields ...string) answer {
	p.Helper()
	resp := fatal.Get(p.client.Do(p.request(context.Background(), path, user, fields...)))(p)
	defer resp.Body.Close()
	body := fatal.Get(io.ReadAll(resp.Body))(p)
	return answer{resp.StatusCode, string(body), resp.Header}
}

func (p *player) request(ctx context.Context, path, user string, fields ...string) *http.Request {
	p.Helper()
	r := fatal.Get(http.NewRequestWithContext(ctx, http.MethodGet, "http://"+p.address+path, nil))(p)
	if user != "" {
		r.Header.Set("X-User", user)
	}
	for i := 0; i+1 < len(fields); i += 2 {
		r.Header.Set(fields[i], fields[i+1])
	}
	return r
}

// seen returns what the outer middleware saw of the next request.
func (p *player) seen() Seen { return receive(p, p.after) }

// receive receives from a channel, and fails the test if nothing comes.
func receive[T any](p *player, from <-chan T) (v T) {
	p.Helper()
	select {
	case v = <-from:
	case <-time.After(patience):
		p.Fatal("it does not happen")
	}
	return v
}

// eventually waits until ok.
func (p *player) eventually(what string, ok func() bool) {
	p.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(patience); !ok(); <-tick.C {
		if time.Now().After(end) {
			p.Fatalf("it does not come to this: %s", what)
		}
	}
}

// left waits until a user has so many tokens. What goes back, or is charged, needs up to 50 ms.
func (p *player) left(l *tiered.Limiter, user string, want int64) {
	p.Helper()
	n := int64(0)
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(time.Millisecond) {
		if n = l.Peek(context.Background(), user).Remaining; n == want {
			return
		}
	}
	p.Errorf("%s has %d tokens left, want %d", user, n, want)
}
