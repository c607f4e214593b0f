package tiered_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// asked is what a request is made with.
type asked struct {
	ctx   context.Context
	l     *tiered.Limiter
	store *remote.Memory
}

// A Decision says what its request asked for, whoever decided and however. Trace.Decision says the same.
func TestDecisionsSayTheCost(t *testing.T) {
	of := func(err error) tiered.Decision {
		var refusal *tiered.LimitedError
		if !errors.As(err, &refusal) {
			return tiered.Decision{}
		}
		return refusal.Decision
	}
	minute := tiered.PerMinute(10)
	for name, c := range map[string]struct {
		policy tiered.Policy
		ask    func(asked) tiered.Decision
		want   int64
		untold bool // no hook is told, because nothing is taken
	}{
		"Allow": {tiered.Policy{Limit: minute}, func(q asked) tiered.Decision {
			return q.l.Allow(q.ctx, "k")
		}, 1, false},
		"AllowN of a lease": {tiered.Policy{Limit: tiered.PerSecond(1000)}, func(q asked) tiered.Decision {
			for range 300 {
				q.l.Allow(q.ctx, "k")
				time.Sleep(time.Millisecond)
			}
			return q.l.AllowN(q.ctx, "k", 3)
		}, 3, false},
		"refused": {tiered.Policy{Limit: minute}, func(q asked) tiered.Decision {
			q.l.AllowN(q.ctx, "k", 8)
			return q.l.AllowN(q.ctx, "k", 4)
		}, 4, false},
		"refused again": {tiered.Policy{Limit: minute}, func(q asked) tiered.Decision {
			q.l.AllowN(q.ctx, "k", 8)
			q.l.AllowN(q.ctx, "k", 4)
			return q.l.AllowN(q.ctx, "k", 5)
		}, 5, false},
		"above the burst": {tiered.Policy{Limit: minute}, func(q asked) tiered.Decision {
			return q.l.AllowN(q.ctx, "k", 11)
		}, 11, false},
		"not positive": {tiered.Policy{Limit: minute}, func(q asked) tiered.Decision {
			return q.l.AllowN(q.ctx, "k", -1)
		}, -1, false},
		"no key": {tiered.Policy{Limit: minute}, func(q asked) tiered.Decision {
			return q.l.AllowN(q.ctx, "", 3)
		}, 3, false},
		"unlimited": {tiered.Policy{Limit: tiered.Unlimited()}, func(q asked) tiered.Decision {
			return q.l.AllowN(q.ctx, "k", 3)
		}, 3, false},
		"blocked": {tiered.Policy{Limit: tiered.Blocked()}, func(q asked) tiered.Decision {
			return q.l.AllowN(q.ctx, "k", 3)
		}, 3, false},
		"shadowed": {tiered.Policy{Limit: minute, Shadow: true}, func(q asked) tiered.Decision {
			return q.l.AllowN(q.ctx, "k", 12)
		}, 12, false},
		"fallback": {tiered.Policy{Limit: minute}, func(q asked) tiered.Decision {
			q.store.Fail(errors.New("connection refused"))
			defer q.store.Fail(nil)
			return q.l.AllowN(q.ctx, "k", 3)
		}, 3, false},
		"several limits": {
			tiered.Policy{Limit: minute, Also: []tiered.Limit{tiered.PerHour(30)}},
			func(q asked) tiered.Decision {
				return q.l.AllowN(q.ctx, "k", 3)
			}, 3, false,
		},
		"Reserve": {tiered.Policy{Limit: minute}, func(q asked) tiered.Decision {
			return q.l.ReserveN(q.ctx, "k", 3).Decision
		}, 3, false},
		"Peek": {tiered.Policy{Limit: minute}, func(q asked) tiered.Decision {
			return q.l.PeekN(q.ctx, "k", 3)
		}, 3, false},
		"Peek of no key": {tiered.Policy{Limit: minute}, func(q asked) tiered.Decision {
			return q.l.PeekN(q.ctx, "", 3)
		}, 3, false},
		"PeekLocal": {tiered.Policy{Limit: minute}, func(q asked) tiered.Decision {
			q.l.AllowN(q.ctx, "k", 3)
			d, _ := q.l.PeekLocal("k")
			return d
		}, 1, true},
		"Wait that is late": {tiered.Policy{Limit: minute}, func(q asked) tiered.Decision {
			q.l.AllowN(q.ctx, "k", 10)
			late, cancel := context.WithTimeout(q.ctx, time.Second)
			defer cancel()
			return of(q.l.WaitN(late, "k", 3))
		}, 3, false},
		"Charge of no key": {tiered.Policy{Limit: minute}, func(q asked) tiered.Decision {
			return of(q.l.Charge("", 3))
		}, 3, false},
		"All": {tiered.Policy{Limit: minute}, func(q asked) tiered.Decision {
			return tiered.All(q.l.For("a").N(2), q.l.For("b").N(3)).Allow(q.ctx) // b has room for fewer of its kind
		}, 3, false},
		"two uses of one key": {tiered.Policy{Limit: minute}, func(q asked) tiered.Decision {
			return tiered.All(q.l.For("a").N(2), q.l.For("a").N(3)).Allow(q.ctx)
		}, 5, false},
		"a limit that is carried": {tiered.Policy{Limit: minute}, func(q asked) tiered.Decision {
			return q.l.For("k").N(3).WithLimit(tiered.PerMinute(20)).Allow(q.ctx)
		}, 3, false},
		"standing": {
			tiered.Policy{Limit: tiered.PerMinute(1000), Standing: tiered.StandingOn},
			func(q asked) tiered.Decision {
				return q.l.AllowN(q.ctx, "k", 3)
			}, 3, false,
		},
	} {
		for _, traced := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					store, told, o := remote.NewMemory(), tiered.Decision{}, &tiered.Options{}
					if traced {
						o.Trace = &tiered.Trace{Decision: func(d tiered.Decision) { told = d }}
					}
					c.policy.Name = "api"
					l, err := tiered.New(store, c.policy, o)
					if err != nil {
						t.Fatal(err)
					}
					time.Sleep(2 * time.Minute) // shares are there
					d := c.ask(asked{t.Context(), l, store})
					if d.Policy != "api" || d.Cost != c.want {
						t.Errorf("%+v: cost %d, want %d", d, d.Cost, c.want)
					}
					synctest.Wait()
					if traced && !c.untold && told.Cost != c.want {
						t.Errorf("the hook was told of cost %d, want %d", told.Cost, c.want)
					}
					if err := l.Close(context.Background()); err != nil {
						t.Error(err)
					}
				})
			})
		}
	}
}

// AllowEach, AllowSeparately and PeekEach write the cost of each use.
func TestEachDecisionSaysItsCost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, _ := told(t, tiered.Policy{Limit: tiered.PerMinute(10), Also: []tiered.Limit{tiered.PerHour(100)}})
		uses := []tiered.Use{l.For("c").N(11), l.For("b").N(3), l.For("a").N(2)} // c is refused
		check := func(what string, each []tiered.Decision, want ...int64) {
			t.Helper()
			for i, d := range each {
				if d.Cost != want[i] {
					t.Errorf("%s: cost %d, want %d: %+v", what, d.Cost, want[i], d)
				}
			}
		}
		each := make([]tiered.Decision, 3)
		tiered.All(uses...).AllowEach(t.Context(), each)
		check("AllowEach", each, 11, 3, 2)
		tiered.AllowSeparately(t.Context(), uses, each)
		check("AllowSeparately", each, 11, 3, 2)
		each, err := l.PeekEach(t.Context(), "a")
		if err != nil || len(each) != 2 {
			t.Fatal(each, err)
		}
		check("PeekEach", each, 1, 1)
	})
}
