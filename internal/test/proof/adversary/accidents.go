package adversary

import (
	"reflect"
	"strconv"
	"time"

	"github.com/tiered-limiter/tiered-limiter/local"
)

// This file breaks what the proof of the bound assumes, so that the price can be seen: each
// accident concedes, in tokens, what docs/internals/proof.md says that it costs.

// now reads a process' clock: monotonic, but not quite of the right rate, and it stands still while
// the machine sleeps.
func (p *process) now() time.Duration {
	d := p.world.now - p.asleep
	switch drift := p.world.scope.Drift; {
	case drift == 0:
		return d
	case p.number%2 == 0:
		return time.Duration(float64(d) * (1 - drift))
	default:
		return time.Duration(float64(d) * (1 + drift))
	}
}

// until returns how much real time passes before a process' clock shows t.
func (p *process) until(t time.Duration) time.Duration {
	return time.Duration(float64(t-p.now())*(1+2*p.world.scope.Drift)) + time.Microsecond
}

// freeze suspends the process' machine. Its pot outlives its lease, and so do the tokens that a
// call under way brings.
func (p *process) freeze(d time.Duration) {
	w := p.world
	w.concede(tokens(p.holds()))
	p.asleep += d
	p.clockError -= d // what it knows of the server's clock is as of before
	w.advance(d)
}

// holds returns the tokens that a process can spend, may yet be granted, or may put back into its
// pot.
func (p *process) holds() (tokens int64) {
	for _, b := range p.buckets {
		live, _ := b.Bucket.Peek(p.now())
		tokens += live
		for _, t := range b.takings {
			if t.from == local.FromLease {
				tokens += t.n
			}
		}
		if b.call != nil && !b.call.direct {
			tokens += max(b.call.granted, b.call.call.Want)
		}
	}
	return tokens
}

// clone replaces the last process by a copy of this one, leases included. Nothing may be under way:
// only the state of a bucket can be copied, not what others know of it. The copy notices that its
// machine stood still before it sends anything (see wake). Until then it spends what its twin
// spends too.
func (p *process) clone() bool {
	w := p.world
	last := len(w.processes) - 1
	if p.number == last {
		return false
	}
	for _, b := range p.buckets {
		if b.call != nil || b.queued || len(b.waiters) > 0 || b.crediting != nil || b.evicted {
			return false
		}
	}
	w.concede(tokens(p.holds()))
	for _, b := range w.processes[last].buckets {
		b.failed()
	}
	w.processes[last].world = nil
	q := w.start(last)
	w.processes[last] = q
	q.twin, q.seq, q.clockKnown, q.clockError, q.asleep, q.roundTrip = true, p.seq, p.clockKnown, p.clockError,
		p.asleep, p.roundTrip
	for _, b := range p.buckets {
		c := q.current()
		copyState(&c.Bucket, &b.Bucket)
		c.checkAt, c.granted, c.spent, c.debt = b.checkAt, b.granted, b.spent, b.debt
	}
	return true
}

// copyState copies a bucket at rest with what its fields point to, except its policy and its
// denial, which never change.
func copyState(to, from *local.Bucket) {
	target := reflect.ValueOf(to).Elem()
	target.Set(reflect.ValueOf(from).Elem())
	lease := target.FieldByName("hot").FieldByName("lease")
	if lease.IsNil() {
		return
	}
	lease = reflect.NewAt(lease.Type(), lease.Addr().UnsafePointer()).Elem() // can be set, unlike the field
	own := reflect.New(lease.Type().Elem())
	own.Elem().Set(lease.Elem())
	lease.Set(own)
}

// wake is what a process does when it finds that its clock stood still. It takes a new lease id,
// because a twin may use the old one, and gives up all that it held under that.
func (p *process) wake() {
	p.world.started++
	p.twin, p.id, p.unanswered = false, strconv.Itoa(p.world.started), nil
	for _, b := range append([]*bucket(nil), p.buckets...) {
		if b.call != nil {
			b.failed()
		}
		b.refunding = nil
		b.apply(b.Expire(p.now()))
		b.collect(nil)
	}
}

// copyBucket lets a replica catch up.
func (w *World) copyBucket() bool {
	if w.store.Copy == nil {
		return false
	}
	w.replica = w.store.Copy()
	return true
}

// promote makes the replica the server. What was written since is lost.
func (w *World) promote() bool {
	if w.replica == nil {
		return false
	}
	w.store, w.replica = w.replica, nil
	w.concede((*limit).all)
	w.reload()
	return true
}

// reload reads the bucket after another server took over.
func (w *World) reload() {
	s, err := w.store.state(w.scope.Algorithm, w.bucket)
	if err != nil {
		w.Failf("the bucket is damaged: %v", err)
	}
	w.state = s
	w.keyEnd = 0
	if s.Exists {
		w.keyEnd = w.server()/1000 + s.pttl
	}
}
