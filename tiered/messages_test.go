package tiered_test

import (
	"context"
	"io"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/redistest"
	"github.com/tiered-limiter/tiered-limiter/lua"
	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// disturbed is a store at the end of a bad wire: pipelines get lost on the way there or back,
// arrive twice, or late.
type disturbed struct {
	remote.Store
	mu     sync.Mutex
	random *rand.Rand
	late   sync.WaitGroup
}

func (d *disturbed) roll() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.random.IntN(100)
}

func (d *disturbed) Run(ctx context.Context, timeout time.Duration, calls []lua.Call, results []remote.Result) {
	fail := func() {
		for i := range calls {
			results[i] = remote.Result{Err: io.ErrUnexpectedEOF}
		}
	}
	switch n := d.roll(); {
	case n < 4: // the request is lost
		fail()
	case n < 8: // the reply is lost
		d.Store.Run(ctx, timeout, calls, results)
		fail()
	case n < 12: // the request arrives twice, and the second answer is the one that is seen
		d.Store.Run(ctx, timeout, calls, make([]remote.Result, len(calls)))
		d.Store.Run(ctx, timeout, calls, results)
	case n < 16: // the request arrives late, perhaps after the next one
		copied := append([]lua.Call(nil), calls...)
		wait := time.Duration(d.roll()) * time.Millisecond
		d.late.Go(func() {
			time.Sleep(wait)
			d.Store.Run(context.Background(), timeout, copied, make([]remote.Result, len(copied)))
		})
		fail()
	default:
		d.Store.Run(ctx, timeout, calls, results)
	}
}

// Requests and replies are lost, doubled and delayed, and processes close and come back. A bucket
// that hardly refills admits no more than it has. In the end its ledger balances: missing tokens
// were admitted, or their grant was lost.
func TestLostDoubledAndLateMessages(t *testing.T) {
	stores := map[string]func(t *testing.T) remote.Store{
		"memory": func(*testing.T) remote.Store { return remote.NewMemory() },
		"redis": func(t *testing.T) remote.Store {
			store := must(remote.Open(redistest.Start(t).URL(), nil))
			t.Cleanup(func() { _ = store.Close() })
			return store
		},
	}
	for name, open := range stores {
		t.Run(name, func(t *testing.T) {
			wire := &disturbed{Store: open(t), random: rand.New(rand.NewPCG(1, 2))}
			const burst, processes = 6000, 4
			policy := tiered.Policy{
				Name: "api", Limit: tiered.PerDay(1000).WithBurst(burst),
				Lease: tiered.Lease{Period: 20 * time.Millisecond}, FailMode: tiered.FailClosed,
			}
			patient := tiered.Options{Budget: 10 * time.Second, Timeout: 10 * time.Second} // a busy machine loses no message
			var admitted [processes]int64
			var all sync.WaitGroup
			for i := range processes {
				all.Go(func() {
					for range 3 { // a deploy, twice
						l, err := tiered.New(wire, policy, &patient)
						if err != nil {
							t.Error(err)
							return
						}
						// A number of requests and not a time: a busy machine admits few in a time.
						for most := admitted[i] + 300; admitted[i] < most; time.Sleep(time.Millisecond) {
							if l.Allow(context.Background(), "k").Allowed {
								admitted[i]++
							}
						}
						ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
						ok(t, l.Close(ctx))
						cancel()
					}
				})
			}
			all.Wait()
			wire.late.Wait()

			l := limiter(t, wire.Store, policy, &patient)
			left := l.Peek(context.Background(), "k").Remaining
			total := int64(0)
			for _, n := range admitted {
				total += n
			}
			t.Logf("%d admitted, %d left of %d: %d granted in vain", total, left, burst, burst-left-total)
			if total+left > burst+1 {
				t.Errorf("%d admitted and %d left of a bucket of %d", total, left, burst)
			}
			if total < 1000 || left < 100 {
				t.Errorf("%d admitted, %d left: this shows nothing", total, left)
			}
			// In vain: direct takes whose reply was lost or that came twice, and leases that ended
			// while their return was under way.
			if lost := burst - left - total; lost > burst/10 {
				t.Errorf("%d tokens of %d are lost", lost, burst)
			}
		})
	}
}

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
		if l.Allow(ctx, "k").Allowed {
			admitted++
		}
	}
	return admitted
}

// hourly is a bucket of 1000 that hardly refills, so that what is admitted can be counted.
var hourly = tiered.Policy{Name: "api", Limit: tiered.PerHour(1000), FailMode: tiered.FailClosed}

// A grant is lost, and the next call is answered without being executed. That answer accepts
// nothing. Otherwise the lost grant would count as spent.
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
