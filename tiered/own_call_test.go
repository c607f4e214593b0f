package tiered_test

import (
	"bytes"
	"context"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tiered-limiter/tiered-limiter/internal/defaults"
	"github.com/tiered-limiter/tiered-limiter/lua"
	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// prompt is a store a millisecond away that keeps the timeout of a call, so that requests may make
// their calls themselves. It notes which goroutine makes each.
type prompt struct {
	*distant
	stalls  atomic.Bool // calls are executed, but nothing answers
	running atomic.Int64

	mu   sync.Mutex
	made []madeCall
}

// madeCall is one call to Redis.
type madeCall struct {
	by       string // the goroutine
	timeout  time.Duration
	calls    int
	answered bool
}

func newPrompt() *prompt { return &prompt{distant: newDistant(ms)} }

func (s *prompt) KeepsTimeout() bool { return true }

func (s *prompt) Run(ctx context.Context, timeout time.Duration, calls []lua.Call, results []remote.Result) {
	s.running.Add(1)
	defer s.running.Add(-1)
	answered := !s.stalls.Load()
	s.mu.Lock()
	s.made = append(s.made, madeCall{goroutine(), timeout, len(calls), answered})
	s.mu.Unlock()
	if answered {
		s.distant.Run(ctx, timeout, calls, results)
		return
	}
	s.Memory.Run(ctx, timeout, calls, results)
	time.Sleep(timeout)
	for i := range calls {
		results[i] = remote.Result{Err: context.DeadlineExceeded}
	}
}

// Presence is reported as calls are made.
func (s *prompt) Presence(
	ctx context.Context, timeout time.Duration, n remote.Node, p remote.Process,
) (remote.Census, error) {
	if s.stalls.Load() {
		time.Sleep(timeout)
		return remote.Census{}, context.DeadlineExceeded
	}
	return s.distant.Presence(ctx, timeout, n, p)
}

// take returns the runs since the last time.
func (s *prompt) take() []madeCall {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := s.made
	s.made = nil
	return all
}

// goroutine names the goroutine that calls it.
func goroutine() string {
	var room [64]byte
	return string(bytes.Fields(room[:runtime.Stack(room[:], false)])[1])
}

// heard returns a Limiter whose process has had some answers, and its store.
func heard(t *testing.T, o *tiered.Options) (*tiered.Limiter, *prompt) {
	t.Helper()
	s := newPrompt()
	l := limiter(t, s, direct("api", 1000), o)
	time.Sleep(second)
	for i := range 20 {
		want(t, l.Allow(ctx, fmt.Sprint("before", i)), tiered.Granted)
	}
	s.take()
	return l, s
}

// A request makes its own call if nothing can hold it up for longer than it waits.
func TestWhoMakesTheCall(t *testing.T) {
	for _, c := range []struct {
		name string
		ask  func(t *testing.T, l *tiered.Limiter, s *prompt)
		own  bool
	}{
		{"Allow", func(_ *testing.T, l *tiered.Limiter, _ *prompt) { l.Allow(ctx, "k") }, true},
		{"no context", func(_ *testing.T, l *tiered.Limiter, _ *prompt) { l.Allow(nil, "k") }, true}, //nolint:staticcheck // it is allowed
		{"AllowN", func(_ *testing.T, l *tiered.Limiter, _ *prompt) { l.AllowN(ctx, "k", 7) }, true},
		{"Reserve", func(_ *testing.T, l *tiered.Limiter, _ *prompt) { l.ReserveN(ctx, "k", 1) }, true},
		{"with a deadline far ahead", func(_ *testing.T, l *tiered.Limiter, _ *prompt) {
			ends, cancel := context.WithTimeout(ctx, second)
			defer cancel()
			l.Allow(ends, "k")
		}, true},
		{"with a deadline before Budget", func(_ *testing.T, l *tiered.Limiter, _ *prompt) {
			ends, cancel := context.WithTimeout(ctx, defaults.Budget)
			defer cancel()
			l.Allow(ends, "k")
		}, false},
		{"several keys", func(_ *testing.T, l *tiered.Limiter, _ *prompt) { tiered.All(l.For("k"), l.For("j")).Allow(ctx) }, false},
		{"Wait", func(t *testing.T, l *tiered.Limiter, _ *prompt) { ok(t, l.Wait(ctx, "k")) }, false},
		{"Peek", func(_ *testing.T, l *tiered.Limiter, _ *prompt) { l.Peek(ctx, "k") }, false},
		{"Refund", func(t *testing.T, l *tiered.Limiter, _ *prompt) { ok(t, l.Refund(ctx, "before1", 1)) }, false},
		{"an answer did not come", func(t *testing.T, l *tiered.Limiter, s *prompt) {
			s.stalls.Store(true)
			l.Allow(ctx, "other")
			time.Sleep(defaults.Timeout + ms) // the call that follows the first at once has failed too
			s.stalls.Store(false)
			s.take()
			l.Allow(ctx, "k")
		}, false},
		{"answers are slow", func(_ *testing.T, l *tiered.Limiter, s *prompt) {
			s.trip = defaults.Budget/4 + ms
			for i := range 4 {
				l.Allow(ctx, fmt.Sprint("slow", i))
			}
			s.take()
			l.Allow(ctx, "k")
		}, false},
		{"a probe", func(t *testing.T, l *tiered.Limiter, s *prompt) {
			s.stalls.Store(true)
			for i := 0; l.Group().Stats().Nodes["memory"].Outages.Breaker == "closed"; i++ {
				l.Allow(ctx, fmt.Sprint("gone", i))
			}
			s.take()
			for i := range 2000 { // also when a probe is due, or under way
				l.Allow(ctx, fmt.Sprint("k", i))
				time.Sleep(ms)
			}
			s.stalls.Store(false)
		}, false},
	} {
		bubble(t, c.name, func(t *testing.T) {
			l, s := heard(t, nil)
			c.ask(t, l, s)
			runs := s.take()
			if len(runs) == 0 {
				t.Fatal("Redis was not asked")
			}
			for _, r := range runs {
				if (r.by == goroutine()) != c.own || c.own && (r.timeout > defaults.Budget || r.calls != 1) {
					t.Errorf("%+v, and the request is on goroutine %s: want its own call %v", r, goroutine(), c.own)
				}
			}
		})
	}
	bubble(t, "a store that may take longer", func(t *testing.T) {
		s := newPrompt()
		type embeds struct{ *prompt } // what it embeds keeps its timeout, and who says so for it is the one who embeds
		l := limiter(t, struct{ remote.Store }{embeds{s}}, direct("api", 1000), nil)
		for i := range 20 {
			want(t, l.Allow(ctx, fmt.Sprint("before", i)), tiered.Granted)
		}
		for _, r := range s.take() {
			if r.by == goroutine() {
				t.Fatalf("%+v on the request's goroutine", r)
			}
		}
	})
}

// When Redis begins to stand still, each request is decided within Budget. Those who make their own
// calls then lose a connection each: there are no more of them than senders, and senders make the
// calls after them. What came meanwhile is sent when the first of them gives up.
func TestRedisStallsUnderOwnCalls(t *testing.T) {
	const most = 2
	synctest.Test(t, func(t *testing.T) {
		l, s := heard(t, nil)
		before := l.Group().Stats().Nodes["memory"].Calls.Overruns
		s.stalls.Store(true)
		var all sync.WaitGroup
		var byRedis, byFailMode atomic.Int64
		ask := func(i int) {
			all.Go(func() {
				time.Sleep(time.Duration(i) * ms)
				start := time.Now()
				d := l.Allow(ctx, fmt.Sprint("k", i))
				if took := time.Since(start); took > defaults.Budget {
					t.Errorf("%v after %v, and waits for %v", d, took, defaults.Budget)
				}
				switch d.Tier {
				case tiered.Remote:
					byRedis.Add(1)
				case tiered.Failover:
					byFailMode.Add(1)
				}
			})
		}
		const requests = 19
		for i := range requests {
			ask(i)
		}
		time.Sleep(defaults.Budget - ms/2)
		s.stalls.Store(false) // what is sent from now on is answered
		all.Wait()
		own := 0
		for _, r := range s.take() {
			if r.timeout <= defaults.Budget && !r.answered {
				own++
			}
		}
		if own == 0 || own > most {
			t.Errorf("%d requests lost their connections, want at most %d, and one at least", own, most)
		}
		overruns := l.Group().Stats().Nodes["memory"].Calls.Overruns - before
		if n := byFailMode.Load(); n != overruns || n > int64(own)+1 || n+byRedis.Load() != requests {
			t.Errorf("%d of %d by the fail mode and %d by Redis, %d overruns: want the %d that made their calls, and perhaps one",
				n, requests, byRedis.Load(), overruns, own)
		}
		for i := range 20 {
			want(t, l.Allow(ctx, fmt.Sprint("again", i)), tiered.Granted)
		}
		if runs := s.take(); runs[len(runs)-1].by != goroutine() {
			t.Error("Redis answers again, and requests do not make their calls themselves")
		}
	})
}

// A request that is canceled while it makes its own call takes nothing. It has its answer when
// Redis answers, or after Budget.
func TestCanceledWhileItMakesItsCall(t *testing.T) {
	for _, stalls := range []bool{false, true} {
		bubble(t, fmt.Sprint("stalls ", stalls), func(t *testing.T) {
			l, s := heard(t, nil)
			s.stalls.Store(stalls)
			ends, cancel := context.WithCancel(ctx)
			time.AfterFunc(ms/2, cancel)
			start := time.Now()
			d := l.AllowN(ends, "k", 7)
			if took := time.Since(start); d.Reason != tiered.Canceled || took > defaults.Budget || !stalls && took > ms {
				t.Errorf("%v after %v", d, took)
			}
			if runs := s.take(); len(runs) == 0 || runs[0].by != goroutine() {
				t.Errorf("%+v, want its own call", runs)
			}
			s.stalls.Store(false)
			time.Sleep(second) // what goes back needs a moment
			if d := l.Peek(ctx, "k"); d.Remaining != 1000 && !stalls || d.Remaining < 993 {
				t.Errorf("%d left of 1000", d.Remaining)
			}
			ends, cancel = context.WithCancel(ctx)
			cancel()
			if d := l.Allow(ends, "j"); d.Reason != tiered.Canceled {
				t.Errorf("canceled before: %v", d)
			}
			time.Sleep(second)
			if d := l.Peek(ctx, "j"); d.Remaining != 1000 {
				t.Errorf("%d left of 1000, canceled before", d.Remaining)
			}
		})
	}
}

// meanwhile is a context that has something happen after a request has looked at what its process
// holds, and before it makes its call: its deadline is asked for then.
type meanwhile struct {
	context.Context
	happens func()
}

func (m *meanwhile) Deadline() (time.Time, bool) {
	if happens := m.happens; happens != nil {
		m.happens = nil
		happens()
	}
	return m.Context.Deadline()
}

// A request finds out at the last moment that it needs no call, because another one has put tokens
// back. What the process then holds may be so little that a renewal is due.
func TestNoCallIsNeededAfterAll(t *testing.T) {
	for name, ask := range map[string]func(l *tiered.Limiter, c context.Context, n int64) error{
		"AllowN":   func(l *tiered.Limiter, c context.Context, n int64) error { return l.AllowN(c, "k", n).Err() },
		"ReserveN": func(l *tiered.Limiter, c context.Context, n int64) error { return l.ReserveN(c, "k", n).Err() },
		"WaitN":    func(l *tiered.Limiter, c context.Context, n int64) error { return l.WaitN(c, "k", n) },
	} {
		bubble(t, name, func(t *testing.T) {
			s := newPrompt()
			l := limiter(t, s, tiered.Policy{
				Name: "api", Limit: tiered.PerSecond(1000), Lease: tiered.Lease{Size: 100},
			}, nil)
			time.Sleep(second)
			met := 0
			for turn := range 400 {
				ok(t, l.AllowN(ctx, "k", 1).Err())
				time.Sleep(200 * ms)
				d := l.ReserveN(ctx, "k", int64(5+7*(turn%11)))
				s.take()
				c := &meanwhile{ctx, func() { d.Cancel() }}
				ok(t, ask(l, c, int64(3+11*(turn%9))))
				if c.happens == nil && len(s.take()) == 0 {
					met++
				}
			}
			if met == 0 {
				t.Error("no request found that it needs no call")
			}
			time.Sleep(2 * second)
			if left := l.Peek(ctx, "k").Remaining; left != 1000 {
				t.Errorf("%d left of 1000", left)
			}
		})
	}
}

// Close waits for requests that make their calls themselves, also one that comes after a Close
// whose context ended, and after it none does.
func TestCloseWaitsForOwnCalls(t *testing.T) {
	for _, hurry := range []bool{false, true} {
		bubble(t, fmt.Sprint("a hurried one before ", hurry), func(t *testing.T) {
			l, s := heard(t, nil)
			s.stalls.Store(true)
			go l.Allow(ctx, "k")
			time.Sleep(ms)
			if hurry {
				soon, cancel := context.WithTimeout(ctx, ms)
				defer cancel()
				if err := l.Close(soon); err == nil {
					t.Error("Close did not wait")
				}
			}
			_ = l.Close(ctx)
			if n := s.running.Load(); n > 0 {
				t.Errorf("%d calls are under way after Close", n)
			}
			s.take()
			for i := range 10 {
				l.Allow(ctx, fmt.Sprint("after", i))
			}
			if runs := s.take(); len(runs) > 0 {
				t.Errorf("after Close: %+v", runs)
			}
			time.Sleep(second)
		})
	}
}
