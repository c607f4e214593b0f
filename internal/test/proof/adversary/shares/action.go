package shares

import (
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/tiered-limiter/tiered-limiter/internal/standing"
	"github.com/tiered-limiter/tiered-limiter/lua"
)

// action is something that can happen. do reports whether it was possible.
type action struct {
	name   string
	weight int
	do     func(w *world, r *rand.Rand) bool
}

// actions are what happens at no price, by weight.
var actions = []action{
	{"send", 6, func(w *world, r *rand.Rand) bool { return w.send(w.any(r)) }},
	{"execute", 6, func(w *world, r *rand.Rand) bool { return w.arrive(r, false) }},
	{"execute, and once more later", 2, func(w *world, r *rand.Rand) bool { return w.arrive(r, true) }},
	{"lose a poll", 1, func(w *world, r *rand.Rand) bool { return pull(&w.polls, r) != nil }},
	{"deliver", 6, func(w *world, r *rand.Rand) bool { return w.answer(r, false) }},
	{"deliver, and once more later", 1, func(w *world, r *rand.Rand) bool { return w.answer(r, true) }},
	{"lose a reply", 1, func(w *world, r *rand.Rand) bool { return pull(&w.replies, r) != nil }},
	{"poll", 8, func(w *world, r *rand.Rand) bool { w.poll(w.any(r)); return true }},
	{"all poll", 4, func(w *world, _ *rand.Rand) bool { w.round(); return true }},

	{"take", 8, func(w *world, r *rand.Rand) bool {
		return w.take(w.any(r), w.key(r), 1+r.Int64N(3))
	}},
	{"drain a share", 4, func(w *world, r *rand.Rand) bool { w.drain(w.any(r), w.key(r)); return true }},
	{"drain all", 3, func(w *world, r *rand.Rand) bool {
		k := w.key(r)
		for _, p := range w.processes {
			w.drain(p, k)
		}
		w.direct(k, r.IntN(len(w.versions)), 1<<40)
		return true
	}},
	{"drain all, by one limit after the other", 3, func(w *world, r *rand.Rand) bool {
		k := w.key(r)
		some := r.Int64N(4) // what each process may leave of the first
		for i, to := range r.Perm(len(w.versions)) {
			for _, p := range w.processes {
				p.current[k] = to
				if i > 0 {
					w.take(p, k, 1) // or takes the place over
					w.drain(p, k)
				} else if n := p.shares.Level(w.at(p, k), p.hashes[k], p.limits[to]) - some; n > 0 {
					w.take(p, k, n)
				}
			}
			w.direct(k, to, 1<<40)
		}
		return true
	}},
	{"take from Redis", 3, func(w *world, r *rand.Rand) bool {
		w.direct(w.key(r), r.IntN(len(w.versions)), 1+r.Int64N(40))
		return true
	}},
	{"put back", 8, func(w *world, r *rand.Rand) bool { return w.putBack(w.any(r), r) }},
	{"refund later", 2, func(w *world, r *rand.Rand) bool { return w.refund(w.any(r), w.key(r), 1+r.Int64N(3)) }},

	{"wait", 8, func(w *world, r *rand.Rand) bool {
		w.advance(time.Duration(r.Int64N(int64(3 * time.Second))))
		return true
	}},
	{"wait long", 3, func(w *world, r *rand.Rand) bool {
		w.advance(time.Duration(r.Int64N(int64(70 * time.Second))))
		return true
	}},
	{"wait until a right ends", 4, func(w *world, r *rand.Rand) bool {
		p := w.any(r)
		left := p.shares.State(w.clock(p)).Left
		w.advance(left + time.Duration(r.IntN(3)-1)*time.Microsecond)
		return left > 0
	}},
	{"time goes by", 6, func(w *world, r *rand.Rand) bool { // some poll, and some not
		silent := -1
		if r.IntN(2) == 0 {
			silent = r.IntN(len(w.processes))
		}
		for range 1 + r.IntN(26) {
			for i, p := range w.processes {
				if i != silent {
					w.poll(p)
				}
			}
			w.advance(3 * time.Second)
		}
		return true
	}},

	{"crash", 2, func(w *world, r *rand.Rand) bool { w.replace(r.IntN(len(w.processes)), r); return true }},
	{"leave", 3, func(w *world, r *rand.Rand) bool {
		i := r.IntN(len(w.processes))
		w.leave(i, r)
		if r.IntN(2) == 0 {
			w.round() // the others grow
		}
		return true
	}},
	{"a clock jumps, and the process notices", 1, func(w *world, r *rand.Rand) bool {
		p := w.any(r)
		p.offset += time.Duration(r.Int64N(int64(2*time.Minute))) + 1
		p.shares.Over(w.clock(p))
		return true
	}},
	{"clear", 1, func(w *world, r *rand.Rand) bool { p := w.any(r); p.shares.Clear(w.clock(p)); return true }},
	{"set policy", 1, func(w *world, r *rand.Rand) bool {
		p := w.any(r)
		for i, v := range w.versions {
			p.limits[i] = p.shares.Begin(w.clock(p), v.shares...)
		}
		return true
	}},
	{"a key gets another limit", 4, func(w *world, r *rand.Rand) bool {
		p, k, to := w.any(r), w.key(r), r.IntN(len(w.versions))
		if p.current[k] == to {
			return false
		}
		p.current[k] = to
		return true
	}},
	{"the table's clock is set back", 1, func(w *world, r *rand.Rand) bool {
		w.offset -= time.Duration(r.Int64N(int64(time.Hour)))
		return true
	}},
	// At no price, it jumps ahead once in the life of a record.
	{"the table's clock jumps ahead", 1, func(w *world, r *rand.Rand) bool {
		if !w.rules.Jumps || w.now < w.jumped+standing.TTL+lua.TableStep {
			return false
		}
		w.jump(r)
		return true
	}},
	{"the table is lost", 1, func(w *world, r *rand.Rand) bool {
		if !w.rules.Losses {
			return false
		}
		w.forget()
		w.advance(time.Microsecond) // an epoch begins at an instant of its own
		if r.IntN(2) == 0 {         // somebody new is the first to ask
			i := r.IntN(len(w.processes))
			w.replace(i, r)
			w.poll(w.processes[i])
		}
		return true
	}},
}

// any returns one of the processes.
func (w *world) any(r *rand.Rand) *process { return w.processes[r.IntN(len(w.processes))] }

func (w *world) key(r *rand.Rand) int { return r.IntN(len(w.ideals)) }

// jump sets the table's clock ahead.
func (w *world) jump(r *rand.Rand) {
	w.offset += time.Duration(r.Int64N(int64(2 * time.Minute)))
	w.jumped = w.now
}

// leave closes a process. Another one takes its place. Its last poll may arrive at any time.
func (w *world) leave(i int, r *rand.Rand) {
	p := w.processes[i]
	p.shares.Close(w.clock(p))
	w.send(p)
	if r.IntN(3) > 0 && len(w.polls) > 0 {
		last := len(w.polls) - 1
		m := w.polls[last]
		w.polls = w.polls[:last]
		w.execute(m)
	}
	w.replace(i, r)
}

// pull removes one of the messages, the oldest or newest more often than others.
func pull(all *[]*message, r *rand.Rand) *message {
	n := len(*all)
	if n == 0 {
		return nil
	}
	i := [...]int{0, n - 1, r.IntN(n)}[r.IntN(3)]
	m := (*all)[i]
	*all = append((*all)[:i:i], (*all)[i+1:]...)
	return m
}

// arrive has one of the polls arrive. A copy may stay on its way.
func (w *world) arrive(r *rand.Rand, again bool) bool {
	m := pull(&w.polls, r)
	if m == nil {
		return false
	}
	if m.seen++; again && m.seen < 3 {
		w.polls = append(w.polls, m)
	}
	w.execute(m)
	return true
}

// answer has one of the replies arrive. A copy may stay on its way.
func (w *world) answer(r *rand.Rand, again bool) bool {
	m := pull(&w.replies, r)
	if m == nil {
		return false
	}
	if m.seen++; again && m.seen < 3 {
		w.replies = append(w.replies, m)
	}
	w.deliver(m)
	return true
}

// step does what step i of the schedule is.
func (w *world) step(i int, all []action, weight int) {
	r := rand.New(rand.NewPCG(w.seed, uint64(i)))
	n := r.IntN(weight)
	for _, a := range all {
		if n -= a.weight; n < 0 {
			w.Step(i, fmt.Sprintf("%v  %s", w.now, a.name))
			a.do(w, r)
			return
		}
	}
}
