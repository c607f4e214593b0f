package tiered_test

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tiered-limiter/tiered-limiter/internal/rig/redistest"
	"github.com/tiered-limiter/tiered-limiter/lua"
	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// disturbed is a store at the end of a bad wire: pipelines get lost on the way there or back, arrive twice, or late.
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

// Requests and replies are lost, doubled and delayed, and processes close and come back. A bucket that hardly refills
// admits no more than it has. In the end its ledger balances: missing tokens were admitted, or their grant was lost.
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
				Lease:    tiered.Lease{Period: 20 * time.Millisecond},
				FailMode: tiered.FailClosed,
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
			// In vain: direct takes whose reply was lost or that came twice, and leases that ended while their return
			// was under way.
			if lost := burst - left - total; lost > burst/10 {
				t.Errorf("%d tokens of %d are lost", lost, burst)
			}
		})
	}
}

// A foreign or damaged value under a bucket's name stays as it is, affects no other key, and appears in no log.
func TestForeignAndDamagedBuckets(t *testing.T) {
	server := redistest.Start(t)
	client := server.Client()
	store := remote.NewRedis(server.StoreClient(), nil)
	var log bytes.Buffer
	g := must(tiered.NewGroup(store, &tiered.Options{
		// a busy machine is no outage
		Logger: slog.New(slog.NewTextHandler(&log, nil)), Budget: 10 * time.Second, Timeout: 10 * time.Second,
	}))
	l := must(g.NewLimiter(tiered.Policy{Name: "api", Limit: tiered.PerHour(10), FailMode: tiered.FailClosed}))
	damage := func(key, field, value string) func(string) error {
		return func(name string) error {
			if d := l.Allow(ctx, key); !d.Allowed {
				t.Errorf("%+v", d)
			}
			return client.HSet(ctx, name, field, value).Err()
		}
	}
	for key, plant := range map[string]func(name string) error{
		"secret-string": func(n string) error { return client.Set(ctx, n, "x", 0).Err() },
		"secret-list":   func(n string) error { return client.RPush(ctx, n, "x").Err() },
		"secret-hash":   func(n string) error { return client.HSet(ctx, n, "a", "b").Err() },
		"secret-nan":    damage("secret-nan", "l", "nan"),
		"secret-minus":  damage("secret-minus", "o", "-5"),
	} {
		name := store.Key("api", key)
		ok(t, plant(name))
		before := client.Dump(ctx, name).Val()
		for range 3 {
			d := l.Allow(ctx, key)
			if d.Allowed || d.Reason != tiered.Unavailable || strings.Contains(d.Err().Error(), "secret") {
				t.Errorf("%s: %+v, %v", key, d, d.Err())
			}
		}
		if err := l.Reset(ctx, key); err == nil || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: Reset says %v", key, err)
		}
		if client.Dump(ctx, name).Val() != before {
			t.Errorf("%s: what was there was overwritten", key)
		}
		if d := l.Allow(ctx, "good-"+key); !d.Allowed {
			t.Errorf("another key suffers: %+v", d)
		}
	}
	if s := g.Stats(); s.Policies["api"].Faults.Rejected < 5 {
		t.Errorf("%+v", s)
	}
	for name, n := range g.Stats().Nodes {
		if n.Outages.Breaker != "closed" {
			t.Errorf("node %s counts as gone", name)
		}
	}
	ok(t, g.Close(ctx))
	if strings.Contains(log.String(), "secret") {
		t.Errorf("the log says %s", log.String())
	}
}
