package adversary

import (
	"math"
	"math/bits"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/tiered-limiter/tiered-limiter/internal/fifo"
	"github.com/tiered-limiter/tiered-limiter/local"
)

// digest is a hash of all that the future of a world depends on. The state of the shipped code is
// read field by field, by reflection: a field that is added to it cannot be forgotten here.
//
// 64 bits: among ten million states the odds that two share a digest, so that one is not followed
// up, are 1 in 400 000.
func (w *World) digest() uint64 {
	d := digester{world: w, h: 1469598103934665603}
	d.add(uint64(w.now), uint64(w.offset), uint64(w.keyEnd))
	for _, l := range w.limits {
		d.add(uint64(l.conceded), uint64(l.from))
	}
	d.bucket()
	for _, p := range w.processes {
		d.process(p)
	}
	for _, r := range w.requests {
		d.request(r)
	}
	d.add(uint64(len(w.requests)))
	for _, r := range w.replies {
		d.request(r.to)
		d.value(reflect.ValueOf(r.answer))
		d.add(uint64(r.repeated))
	}
	d.admissions()
	return d.h
}

type digester struct {
	world *World
	h     uint64
}

// add mixes numbers in, in order (the finisher of MurmurHash3 over a running sum).
func (d *digester) add(xs ...uint64) {
	for _, x := range xs {
		h := bits.RotateLeft64(d.h, 27)*0x9e3779b97f4a7c15 + x
		h ^= h >> 33
		h *= 0xff51afd7ed558ccd
		h ^= h >> 33
		d.h = h
	}
}

// bucket adds what the store keeps.
func (d *digester) bucket() {
	fields, _ := d.world.store.Read(d.world.bucket)
	names := make([]string, 0, len(fields))
	for name := range fields {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		d.text(name)
		d.text(fields[name])
	}
}

func (d *digester) text(s string) {
	d.add(uint64(len(s)))
	for _, c := range []byte(s) {
		d.add(uint64(c))
	}
}

func (d *digester) process(p *process) {
	d.text(p.id)
	d.add(uint64(p.variant), uint64(p.seq), uint64(p.clockError), uint64(p.roundTrip), flag(p.clockKnown),
		uint64(len(p.buckets)))
	current, inUse := p.cache.Find(id)
	for _, b := range p.buckets {
		d.add(flag(b.queued), uint64(b.checkAt), flag(b.call != nil), flag(inUse && b == current), flag(b.evicted),
			uint64(len(b.waiters)), uint64(len(b.takings)), flag(b.crediting != nil))
		d.value(reflect.ValueOf(&b.Bucket).Elem())
		for _, t := range b.takings {
			d.add(uint64(t.n), uint64(t.from), uint64(t.gen))
			d.value(reflect.ValueOf(t.stamp))
		}
		for _, part := range b.refunding {
			d.refund(part)
		}
		for _, wait := range b.waiters {
			d.add(uint64(wait.n), uint64(wait.gen), uint64(wait.since))
		}
	}
	for _, t := range p.late {
		d.add(uint64(t.n), flag(t.id == p.id))
		d.value(reflect.ValueOf(t.stamp))
	}
}

func flag(b bool) uint64 {
	if b {
		return 1
	}
	return 0
}

// request adds a message, and what has become of it.
func (d *digester) request(r *request) {
	d.text(r.process.id)
	d.add(uint64(r.repeated), flag(r.givenUp), flag(r.ignored), uint64(r.granted), flag(r.credited))
	for _, part := range r.refunds {
		d.refund(part)
	}
}

// refund adds tokens that are refunded, and when they were admitted.
func (d *digester) refund(r refund) {
	d.add(uint64(r.n), uint64(d.world.admissions.events[r.event].at))
}

// admissions adds when the tokens that can be refunded were admitted, and what may still count of
// the rest.
func (d *digester) admissions() {
	w := d.world
	for _, p := range w.processes {
		all := slices.Clone(p.late)
		for _, b := range p.buckets {
			all = append(all, b.takings...)
		}
		for _, t := range all {
			if t.event >= 0 {
				d.add(uint64(w.admissions.events[t.event].at))
			}
		}
	}
	w.rule.digest(w, d)
}

// value adds any value, by its kind. Locks, functions and channels do not affect the future; what
// waits in a channel is collected after every step.
func (d *digester) value(v reflect.Value) {
	switch v.Kind() {
	case reflect.Bool:
		d.add(flag(v.Bool()))
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		d.add(uint64(v.Int()))
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64, reflect.Uintptr:
		d.add(v.Uint())
	case reflect.Float32, reflect.Float64:
		d.add(math.Float64bits(v.Float()))
	case reflect.String:
		d.text(v.String())
	case reflect.Slice, reflect.Array:
		d.add(uint64(v.Len()))
		for i := range v.Len() {
			d.value(v.Index(i))
		}
	case reflect.Struct:
		if skipped[v.Type()] {
			return
		}
		if strings.HasPrefix(v.Type().String(), "atomic.Pointer[") { // whose first field says to what
			to := v.Type().Field(0).Type.Elem().Elem()
			d.value(reflect.NewAt(reflect.PointerTo(to), v.Field(2).Addr().UnsafePointer()).Elem())
			return
		}
		for i := range v.NumField() {
			d.value(v.Field(i))
		}
	case reflect.Pointer:
		d.add(flag(v.IsNil()))
		if !v.IsNil() && !skipped[v.Type().Elem()] {
			d.value(v.Elem())
		}
	}
}

// skipped are types that are not added: a policy never changes, and waiters are added by name.
var skipped = map[reflect.Type]bool{
	reflect.TypeFor[sync.Mutex]():    true,
	reflect.TypeFor[time.Location](): true,
	reflect.TypeFor[local.Policy]():  true,
	reflect.TypeFor[local.Waiter]():  true,

	reflect.TypeFor[fifo.Place[*local.Waiter]](): true,
}
