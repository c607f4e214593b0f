package shares

import (
	"strconv"
	"strings"
	"time"

	"github.com/tiered-limiter/tiered-limiter/lua"
)

// rounding is how much of a token a level in Redis, a float, may be off.
const rounding = 1e-6

func (w *world) admit(k int, n int64, by string) {
	w.admissions++
	for i, b := range w.ideals[k] {
		b.Admit(int64(w.now), n)
		w.Logf("key %d: %d admitted by %s, %.3f left by limit %d", k, n, by, float64(w.most[i].Burst)-b.Depth(), i+1)
		w.exceeds(k, i, 0, "%d admitted by %s", n, by)
	}
}

func (w *world) give(k int, n int64) {
	for _, b := range w.ideals[k] {
		b.Refund(int64(w.now), n)
	}
	w.Logf("key %d: %d given back", k, n)
}

// exceeds judges what an ideal bucket with one whole limit of a key admitted, and more than that.
func (w *world) exceeds(k, i int, more int64, format string, args ...any) {
	b := w.ideals[k][i]
	b.Refund(int64(w.now), 0) // as it is now
	over := b.Depth() + float64(more-w.most[i].Burst)
	if over <= rounding {
		return
	}
	w.over = max(w.over, over)
	if !w.rules.Priced {
		w.Failf("key %d, limit %d: %.6f tokens over the bound: "+format, append([]any{k, i + 1, over}, args...)...)
	}
}

// check checks all that must hold now.
func (w *world) check() {
	for k := range w.ideals {
		w.attack(k)
	}
	if w.rules.Priced || w.Fault != "" {
		return
	}
	sum := int64(0)
	fields, _ := w.table.Read(w.table.Table)
	if w.there && len(fields) == 0 { // or this judges nothing, and the next world finds what this one wrote
		w.Failf("the table is not under the name %s", w.table.Table)
	}
	for _, p := range w.processes {
		s := p.shares.State(w.clock(p))
		used := int64(s.Fraction * lua.Pool)
		sum += used
		if used == 0 || strconv.FormatInt(p.epoch, 10) != fields["c"] {
			continue // a new table does not know it yet
		}
		record := strings.Split(fields["m"+p.member], "|")
		if len(record) != 3 {
			w.Failf("process %d uses %d units, and the table has no record of it", p.number, used)
		} else if out, _ := strconv.ParseInt(record[1], 10, 64); out < used {
			w.Failf("process %d uses %d units of %d on record", p.number, used, out)
		}
	}
	if sum > lua.Pool {
		w.Failf("the processes use %d units of %d", sum, lua.Pool)
	}
}

// attack asks whether the bound would be broken if everybody took all that there is of a key, now.
func (w *world) attack(k int) {
	there := int64(0)
	for i := range w.versions {
		there = max(there, w.run(w.bucketCall(k, i)).Level)
	}
	for _, p := range w.processes {
		there += p.shares.Level(w.at(p, k), p.hashes[k], p.limits[p.current[k]])
	}
	for i := range w.most {
		if there > 0 {
			w.exceeds(k, i, there, "%d tokens can be taken at this moment", there)
		}
	}
}

// heal lets the network and all processes be well for so long that everything that was lost is
// over. Then each has its equal part.
func (w *world) heal() {
	w.polls, w.replies = nil, nil
	for range 26 {
		w.round()
		w.check()
		w.advance(3 * time.Second)
	}
	for _, p := range w.processes {
		if s := p.shares.State(w.clock(p)); int64(s.Fraction*lua.Pool) != lua.Pool/int64(len(w.processes)) {
			w.Failf("78 s after all is well, process %d of %d has %+v", p.number, len(w.processes), s)
		}
	}
}
