package tiered_test

import (
	"context"
	"io"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tiered-limiter/tiered-limiter/lua"
	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// Mistakes that a process could make with the protocol, and what each would cost.

// meddling is a store that does something else with a lease's call than execute it and answer.
type meddling struct {
	*remote.Memory
	mu     sync.Mutex
	leased int // calls that want a lease
	meddle func(n int) meddle
}

// meddle is what becomes of the n-th call that wants a lease.
type meddle int

const (
	leaveAlone meddle = iota
	loseReply         // it is executed, and breaks
	answerLate        // it is not executed, and answered
	answerStale
)

func newMeddling(f func(n int) meddle) *meddling {
	return &meddling{Memory: remote.NewMemory(), meddle: f}
}

func (s *meddling) Run(ctx context.Context, timeout time.Duration, calls []lua.Call, results []remote.Result) {
	time.Sleep(ms / 2)
	for i := range calls {
		one := func() { s.Memory.Run(ctx, timeout, calls[i:i+1], results[i:i+1]) }
		switch s.fate(calls[i]) {
		case leaveAlone:
			one()
		case loseReply:
			one()
			results[i] = remote.Result{Err: io.ErrUnexpectedEOF}
		case answerLate:
			results[i] = remote.Result{Reply: lua.Reply{Code: lua.Late, Now: time.Now().UnixMicro()}}
		case answerStale:
			results[i] = remote.Result{Reply: lua.Reply{Code: lua.Stale, Now: time.Now().UnixMicro()}}
		}
	}
	time.Sleep(ms / 2)
}

func (s *meddling) fate(c lua.Call) meddle {
	if c.Lease == "" {
		return leaveAlone
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.leased++
	return s.meddle(s.leased)
}

// spend asks for one token of "k" each millisecond for as long, and counts those admitted.
func spend(l *tiered.Limiter, length time.Duration) (admitted int64) {
	for end := tiered.Engine(l.Group()).Now() + length; tiered.Engine(l.Group()).Now() < end; time.Sleep(ms) {
		if l.Allow(context.Background(), "k").Allowed {
			admitted++
		}
	}
	return admitted
}

// hourly is a bucket of 1000 that hardly refills, so that what is admitted can be counted.
var hourly = tiered.Policy{Name: "api", Limit: tiered.PerHour(1000), FailMode: tiered.FailClosed}

// A key that was evicted and forgotten comes back while Redis still has the record of its last call.
func TestKeyThatWasForgottenComesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiter(t, newDistant(ms), hourly, &tiered.Options{MaxKeys: 1})
		warm(t, l, "k", 300)
		want(t, l.Allow(context.Background(), "other"), tiered.Granted)
		time.Sleep(20 * ms)
		if s := l.Group().Stats(); s.Leaving != 0 || s.Evictions != 1 {
			t.Fatalf("%+v: not forgotten, this shows nothing", s)
		}
		warm(t, l, "k", 300)
		s := l.Group().Stats()
		if n := s.Nodes["memory"].Calls.Stale; n != 0 {
			t.Errorf("%d calls were older than Redis remembers", n)
		}
		if s.Policies["api"].Leases.Held == 0 {
			t.Error("nothing is leased")
		}
	})
}

// Replies are lost. The next call has its own seq, and its ack shows Redis which grants were not accepted.
// Otherwise the tokens would be taken twice.
func TestCallWithoutAnAnswerIsNotSentAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newMeddling(func(n int) meddle {
			if n%3 == 0 {
				return loseReply
			}
			return leaveAlone
		})
		l := limiter(t, store, hourly, nil)
		if n := spend(l, time.Minute); n > 1017 || n < 950 {
			t.Errorf("%d admitted of 1000 and the 17 that came", n)
		}
		books(t, l.Group())
	})
}

// A grant is lost, and the next call is answered without being executed. That answer accepts nothing. Otherwise the
// lost grant would count as spent.
func TestWhatWasNotExecutedIsNotAccepted(t *testing.T) {
	for _, c := range []struct {
		name   string
		answer meddle
	}{{"stale", answerStale}, {"late", answerLate}} {
		bubble(t, c.name, func(t *testing.T) {
			store := newMeddling(func(n int) meddle {
				switch n % 4 {
				case 2:
					return loseReply
				case 3:
					return c.answer
				}
				return leaveAlone
			})
			policy := hourly
			policy.Lease.Period = 50 * ms // the pauses after two failures are shorter than a record's life
			l := limiter(t, store, policy, nil)
			if n := spend(l, time.Minute); n > 1017 || n < 950 {
				t.Errorf("%d admitted of 1000 and the 17 that came", n)
			}
			books(t, l.Group())
		})
	}
}

// From some moment on every call is answered "late", so nothing is written any more. The lease ends when its record
// does, and other processes get its tokens.
func TestRefusalExtendsNoLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		refuse := false
		store := newMeddling(func(int) meddle {
			if refuse {
				return answerLate
			}
			return leaveAlone
		})
		policy := tiered.Policy{
			Name: "api", Limit: tiered.PerSecond(1000), Lease: tiered.Lease{Size: 250},
			FailMode: tiered.FailClosed,
		}
		a, b := limiter(t, store, policy, nil), limiter(t, &distant{Memory: store.Memory, trip: ms}, policy, nil)
		warm(t, a, "k", 300)
		held := func() int64 {
			bucket, _ := tiered.Engine(a.Group()).Cache.Find(tiered.Core(a).ID("k"))
			n, _ := bucket.Peek(tiered.Engine(a.Group()).Now())
			return n
		}
		for range 3000 {
			a.Allow(ctx, "k")
			if time.Sleep(4 * ms); held() > 200 {
				break
			}
		}
		store.mu.Lock()
		refuse = true
		store.mu.Unlock()
		if held() <= 200 {
			t.Fatal("no lease: this shows nothing")
		}
		for range 80 { // it goes on being used, for 1.6 s
			a.Allow(ctx, "k")
			time.Sleep(20 * ms)
		}
		// In one instant, b takes what Redis has and a what it believes to hold.
		start := time.Now()
		total := int64(0)
		for n := int64(1000); n > 0; n -= 10 {
			if b.AllowN(ctx, "k", n).Allowed {
				total += n
				break
			}
		}
		if total < 900 {
			t.Fatalf("b got %d: this shows nothing", total)
		}
		for a.Allow(ctx, "k").Tier == tiered.Local {
			total++
		}
		if bound := 1000 + 1000*time.Since(start).Seconds(); float64(total) > bound+1e-3 {
			t.Errorf("%d admitted at once, bound %.1f", total, bound)
		}
		store.mu.Lock()
		refuse = false
		store.mu.Unlock()
	})
}

// A process without requests returns its lease and sends nothing more. If replies caused renewals, it would lease and
// return again for as long as it remembers the demand.
func TestOnlyDecisionsAskForRenewals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newDistant(ms)
		l := limiter(t, store, tiered.Policy{Limit: tiered.PerSecond(2000)}, nil)
		warm(t, l, "k", 2000)
		before := store.calls.Load()
		time.Sleep(20 * time.Second)
		if n := store.calls.Load() - before; n < 1 || n > 2 {
			t.Errorf("%d calls for a key that nobody asks for, want its return, after a renewal that was under way", n)
		}
		if held := l.Stats().Leases.Held; held != 0 {
			t.Errorf("%d tokens still held", held)
		}
	})
}

// A lease is renewed with a shorter life, because round trips became short, and the reply is lost. The lease ends
// when its record does, not at its former end.
func TestLostReplyOfAShorterLife(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		memory := remote.NewMemory()
		far, near := &distant{Memory: memory, trip: 140 * ms}, &distant{Memory: memory, trip: ms}
		options := &tiered.Options{Budget: 200 * ms, Timeout: 200 * ms, Random: func() float64 { return 0.5 }}
		policy := tiered.Policy{Name: "api", Limit: tiered.PerSecond(100).WithBurst(400), FailMode: tiered.FailClosed}
		a, b := limiter(t, far, policy, options), limiter(t, near, policy, options)
		for range 300 { // a lease of four seconds
			a.Allow(ctx, "k")
			time.Sleep(20 * ms)
		}
		far.near.Store(true)
		for i := range 300 { // and now of one
			a.Allow(ctx, strconv.Itoa(i))
		}
		far.loseReplies.Store(true)
		for n := far.calls.Load(); far.calls.Load() == n; time.Sleep(5 * ms) {
			a.Allow(ctx, "k")
		}
		far.loseRequests.Store(true)
		lost := tiered.Engine(a.Group()).Now()
		bucket, _ := tiered.Engine(a.Group()).Cache.Find(tiered.Core(a).ID("k"))
		for range 9 { // used, so that it does not go home, but slowly; until its room has filled, were it over
			if held, _ := bucket.Peek(tiered.Engine(a.Group()).Now()); held == 0 && tiered.Engine(a.Group()).Now() < lost+900*ms {
				t.Fatal("nothing is held: this shows nothing")
			}
			time.Sleep(200 * ms)
			a.Allow(ctx, "k")
		}
		// In one instant, b takes what Redis has and a what it believes to hold.
		start := time.Now()
		want(t, b.AllowN(ctx, "k", 400), tiered.Granted)
		total := int64(400)
		for a.Allow(ctx, "k").Allowed {
			total++
		}
		if bound := 400 + 100*time.Since(start).Seconds(); float64(total) > bound+1e-3 {
			t.Errorf("%d admitted at once, bound %.1f", total, bound)
		}
		far.loseReplies.Store(false)
		far.loseRequests.Store(false)
	})
}
