package local_test

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tiered-limiter/tiered-limiter/local"
	"github.com/tiered-limiter/tiered-limiter/lua"
)

// Here goroutines race for one pot, each step of which is a single instruction among those of the
// others. Whatever their order, what Redis is told must be what happened.

// record is what Redis knows of one lease. It believes what calls state, as the script does, and
// has tokens without end.
type record struct {
	out   int64 // may still be spent
	spent int64 // by what calls said, less what was given back
}

// settle executes a call. It returns the grant, and ok false if the caller says to have more than
// it was given.
func (r *record) settle(c local.Call) (grant int64, ok bool) {
	kept := c.Hold + c.Ret
	if c.Hold < 0 || kept > r.out {
		return 0, false
	}
	r.spent += r.out - kept - c.Refund
	r.out = c.Hold + c.Want
	return c.Want, true
}

// race lets up to four takers of one or two tokens, who put back some of what they took, race with
// renewals and returns. Some seeds make the pot small, so that it is often empty, and some the
// takers wasteful, so that it rarely is. It reports how many tokens they kept, and what was told to
// Redis that was not so, if anything.
func race(t *testing.T, seed uint64) (kept int64, wrong string) {
	t.Helper()
	const takes, tries = 20, 10_000
	random := rand.New(rand.NewPCG(seed, 0))
	takers, wasted := 1+random.Int64N(4), random.IntN(5)
	r := newRig(t, local.Policy{Cap: 64, Tokens: 1, Per: time.Hour, Size: 1 + random.Int64N(12)})
	r.b.NeedLease()
	var redis record
	var net, racing atomic.Int64
	exchange := func(returns bool) {
		r.b.SetDemand(1000) // so that a lease pays
		if returns {
			r.b.Retire(r.now)
			defer r.b.Revive()
		} else {
			r.b.Probe()
		}
		if pot := r.b.Pot(); pot > redis.out {
			wrong = fmt.Sprintf("%d in the pot, %d are out", pot, redis.out)
		}
		c := r.begin()
		if c.Seq == 0 {
			return
		}
		grant, ok := redis.settle(c)
		if !ok {
			wrong = fmt.Sprintf("hold %d and ret %d of %d that are out", c.Hold, c.Ret, redis.out)
		}
		r.b.Accept(r.now, c.Seq, lua.Reply{Grant: grant, Level: 50, TTLLeft: c.TTL})
	}
	var all sync.WaitGroup
	racing.Store(takers)
	for i := range takers {
		pause := local.Yields(seed, uint64(1+i))
		all.Go(func() {
			defer racing.Add(-1)
			n := 1 + i%2
			for taken, try := 0, 0; taken < takes && try < tries; try++ {
				pause()
				gen := r.b.Generation()
				if _, ok, _ := r.b.Hot().Take(r.now, n); !ok {
					continue
				}
				pause()
				if taken++; taken%5 < wasted {
					r.b.Return(r.now, n, local.FromLease, gen, nil)
				} else {
					net.Add(n)
				}
			}
		})
	}
	pause := local.Yields(seed, 99)
	for i := 0; racing.Load() > 0 && wrong == ""; i++ {
		exchange(i%3 == 2)
		pause()
	}
	all.Wait()
	for range 2 { // what is put back while a return is under way needs another
		exchange(true)
	}
	r.balance()
	if wrong == "" && (redis.out != 0 || redis.spent != net.Load()) {
		wrong = fmt.Sprintf("%d admitted, %d reported, %d still out", net.Load(), redis.spent, redis.out)
	}
	return net.Load(), wrong
}

func TestPotUnderRaces(t *testing.T) {
	schedules := 2000
	if testing.Short() {
		schedules = 500
	}
	var kept int64
	for i := range schedules {
		n, wrong := race(t, uint64(i))
		if wrong != "" {
			t.Fatalf("after %d schedules: %s", i+1, wrong)
		}
		kept += n
	}
	if least := int64(5 * schedules); kept < least {
		t.Errorf("%d tokens admitted in %d schedules, want %d at least: this tests nothing", kept, schedules, least)
	}
}

// A lease ends while its renewal is under way, and takers race with the reply: they get what it
// brings, and nothing of what has ended.
func TestNothingEndedIsTakenWhileAReplyArrives(t *testing.T) {
	schedules := 2000
	if testing.Short() {
		schedules = 500
	}
	const takers, grant = 3, 2
	for i := range schedules {
		r := newRig(t, local.Policy{Cap: 100, Tokens: 100})
		r.lease(10)
		r.now += 500 * ms
		r.b.Probe()
		r.b.SetDemand(1000)
		c := r.begin()
		end := r.b.Deadline()
		var taken atomic.Int64
		var accepted atomic.Bool
		var all sync.WaitGroup
		for range takers {
			all.Go(func() {
				for last := false; !last; {
					last = accepted.Load() // once more after the reply
					if _, ok, _ := r.b.Hot().Take(end, 1); ok {
						taken.Add(1)
					}
				}
			})
		}
		if _, ok := r.b.Accept(end, c.Seq, lua.Reply{Grant: grant, TTLLeft: us(2 * time.Second)}); !ok {
			t.Fatal("not accepted")
		}
		accepted.Store(true)
		all.Wait()
		if n := taken.Load(); n != grant {
			t.Fatalf("after %d schedules: %d taken, %d granted", i+1, n, grant)
		}
	}
}
