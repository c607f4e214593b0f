package remote_test

import (
	"fmt"
	"maps"
	"strconv"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/tiered-limiter/tiered-limiter/lua"
)

// The tests of versions of a policy that share a key: sliding windows of other lengths and
// precisions, side by side.

// version is a policy's part of a call: limits as {tokens, length, block}, µs.
func version(bucket string, limits ...[3]int64) lua.Call {
	c := of(lua.SlidingWindow, bucket, limits[0][0], limits[0][1], limits[0][2])
	for _, l := range limits[1:] {
		c.Also = append(c.Also, lua.Limit{Cap: l[0], Tokens: l[0], Period: l[2], Span: (l[1]+l[2]-1)/l[2] + 1})
	}
	return c
}

// lengthOf is that of every interval in which a limit admits its tokens at most.
func lengthOf(l lua.Limit) int64 { return (l.Span - 1) * l.Period }

// tagOf names a limit's fields.
func tagOf(l lua.Limit) string { return fmt.Sprintf("%dx%d", l.Period, l.Span) }

// A new period or precision begins with what the old one counted, and what either admits counts in
// both. In any order of calls by both, an instant admits what the limit says.
func TestVersionsCountEachOther(t *testing.T) {
	for _, c := range []struct {
		name     string
		versions [][][3]int64
		want     int64 // admitted in an instant
	}{
		{"another precision", [][][3]int64{{{20, minute, sec}}, {{20, minute, 2 * sec}}}, 20},
		{
			"three precisions",
			[][][3]int64{{{20, minute, sec}}, {{20, minute, 2 * sec}}, {{20, minute, 7 * sec}}},
			20,
		},
		{"a lower limit, a bit longer", [][][3]int64{{{20, minute, sec}}, {{18, 61 * sec, sec}}}, 20},
		{"a shorter one", [][][3]int64{{{20, minute, sec}}, {{20, sec, sec / 10}}}, 20},
		{"a longer one", [][][3]int64{{{20, sec, sec / 10}}, {{20, minute, sec}}}, 20},
		{"one limit more", [][][3]int64{{{20, minute, sec}}, {{20, minute, sec}, {30, 60 * minute, 10 * sec}}}, 20},
		{"one limit less", [][][3]int64{{{20, minute, sec}, {14, 60 * minute, 10 * sec}}, {{20, minute, sec}}}, 20},
		{"the order of the limits", [][][3]int64{
			{{20, minute, sec}, {14, sec, sec}},
			{{14, sec, sec}, {20, minute, sec}},
		}, 14},
		{"more versions than are kept", [][][3]int64{
			{{20, minute, sec}},
			{{20, minute, 2 * sec}},
			{{20, minute, 3 * sec}},
			{{20, minute, 4 * sec}},
			{{20, minute, 5 * sec}},
			{{20, minute, 6 * sec}},
			{{20, 10 * minute, 10 * sec}},
		}, 20},
	} {
		for _, e := range engines(t) {
			for _, together := range []bool{false, true} { // in turns, or one after the other
				admitted := int64(0)
				ask := func(v int) {
					x := version(fmt.Sprint(c.name, together), c.versions[v]...)
					admitted += e.at(t, scriptStart, take(x, 1)).reply.Grant
				}
				for i := range 30 * len(c.versions) {
					if together {
						ask(i % len(c.versions))
					} else {
						ask(i / 15 % len(c.versions)) // and once more: 15 of each, twice
					}
				}
				if admitted != c.want {
					t.Errorf("%s, %s, in turns %v: %d admitted in an instant, want %d", e.name, c.name, together,
						admitted, c.want)
				}
			}
		}
	}
}

// versionsRun is a key that processes of several versions share, and who judges what they are
// granted.
type versionsRun struct {
	*rapid.T
	draw     drawer
	all      []*engine // the first is Memory
	bucket   string
	versions []lua.Call
	now, seq int64
	procs    [2]versionsProcess
	admitted []spent
	first    map[string]int64 // by tag: everything admitted from then on is known to it
	until    map[string]int64 // by tag: it is known to be in use till then
}

// versionsProcess is one process, and the version that it has at present.
type versionsProcess struct {
	id       string
	version  int
	ack, pot int64
	end      int64 // of the pot
}

// call executes a call on all engines, and notes which limits are new to the key.
func (r *versionsRun) call(c lua.Call) lua.Reply {
	memory := r.all[0].memory
	// it may be over by Memory's clock, which is that of the calls
	if memory.StopClock(r.now); memory.Fields(r.bucket) == nil {
		for _, e := range r.all[1:] {
			e.client.Del(r.Context(), r.bucket)
		}
	}
	before := memory.Fields(r.bucket)
	want := r.all[0].at(r, r.now, c)
	after := r.all[0].lookAt(r, lua.SlidingWindow, r.bucket)
	if want.err != "" {
		r.Fatalf("%+v: %v", c, want)
	}
	for _, e := range r.all[1:] {
		if got := e.at(r, r.now, c); got != want {
			r.Fatalf("%s: %+v\n%v, want\n%v\nbefore %v", e.name, c, got, want, before)
		}
		if left := e.lookAt(r, lua.SlidingWindow, r.bucket); !maps.Equal(left.fields, after.fields) {
			r.Fatalf("%s: %+v stored\n%v, want\n%v\nbefore %v", e.name, c, left.fields, after.fields, before)
		}
	}
	if n := strings.Count(after.fields["u"], ";") + 1; n > 4 {
		r.Fatalf("%d versions are kept: %v", n, after.fields)
	}
	for text := range strings.SplitSeq(after.fields["u"], ";") {
		tags, until, _ := strings.Cut(text, "@")
		end, _ := strconv.ParseInt(until, 10, 64) // none, where there is one version
		for tag := range strings.SplitSeq(tags, ",") {
			r.until[tag] = max(r.until[tag], end)
		}
	}
	for tag := range r.first { // what more versions are kept than there is room for is forgotten at no price
		if after.fields[tag] == "" && r.until[tag] <= r.now {
			delete(r.first, tag)
			delete(r.until, tag)
		}
	}
	for _, l := range limitsOf(c) {
		tag := tagOf(l)
		if _, known := r.first[tag]; known || after.fields[tag] == "" {
			continue
		}
		first := r.now
		for _, v := range r.versions {
			for _, other := range limitsOf(v) {
				if from, known := r.first[tagOf(other)]; known && before[tagOf(other)] != "" &&
					lengthOf(other) >= lengthOf(l) {
					first = min(first, from)
				}
			}
		}
		r.first[tag] = first
	}
	return want.reply
}

// in is what was admitted in the length up to now, from an instant on.
func (r *versionsRun) in(length, from int64) (n int64) {
	for _, s := range r.admitted {
		if s.at > r.now-length && s.at >= from {
			n += s.n
		}
	}
	return n
}

// admit judges n tokens that are admitted now. No interval as long as the shortest limit holds more
// than the largest version allows.
func (r *versionsRun) admit(n int64) {
	r.admitted = append(r.admitted, spent{r.now, n})
	shortest, largest := int64(1)<<50, int64(0)
	for _, v := range r.versions {
		least := v.Cap
		for _, l := range limitsOf(v) {
			shortest, least = min(shortest, lengthOf(l)), min(least, l.Cap)
		}
		largest = max(largest, least)
	}
	if got := r.in(shortest, 0); got > largest {
		r.Fatalf("%d admitted within %d µs, no version allows more than %d: %v\n%v",
			got, shortest, largest, r.admitted, r.all[0].memory.Fields(r.bucket))
	}
}

// direct takes tokens. A version that is granted some keeps its own limits, whichever version took
// the rest.
func (r *versionsRun) direct(v lua.Call, n int64) {
	a := r.call(take(v, n))
	if a.Grant == 0 {
		return
	}
	r.admit(a.Grant)
	for _, l := range limitsOf(v) {
		if got := r.in(lengthOf(l), r.first[tagOf(l)]); got > l.Cap {
			r.Fatalf("%d admitted in the %d µs of a limit of %d: %v\n%v",
				got, lengthOf(l), l.Cap, r.admitted, r.all[0].memory.Fields(r.bucket))
		}
	}
}

// lease is a renewal of a process, or a return; its reply may be lost.
func (r *versionsRun) lease(p *versionsProcess) {
	if r.now >= p.end {
		p.pot = 0
	}
	r.seq++
	c := r.versions[p.version]
	c.Lease, c.Seq, c.Ack, c.TTL = p.id, r.seq, p.ack, choose(r.draw, sec, 3*sec, sec/2)
	switch r.draw(4) {
	case 0:
		c.Ret, p.pot = p.pot, 0
	case 1:
		c.To = 1
		fallthrough
	default:
		c.Hold, c.Want = p.pot, int64(r.draw(int(c.Cap)+1))
		c.Min = min(c.Want, 1)
	}
	p.end = min(p.end, r.now+c.TTL)
	a := r.call(c)
	if c.To == 1 {
		r.admit(a.Grant)
		a.Grant = 0
	}
	if r.draw(5) > 0 {
		p.ack, p.pot, p.end = c.Seq, c.Hold+a.Grant, r.now+a.TTLLeft
	}
}

// No interleaving of versions admits more than the largest of them, in any interval as long as the
// shortest limit, leased or direct; nor does a version admit more than its own limits by its own
// takes. The store is Memory, and a real Redis says the same.
func TestVersionsInAnyOrder(t *testing.T) {
	server := realEngine(t)
	runs, most := 0, 0
	rapid.Check(t, func(t *rapid.T) {
		runs++
		r := &versionsRun{
			T: t, draw: func(n int) int { return rapid.IntRange(0, n-1).Draw(t, "n") },
			all:    []*engine{memoryEngine(), server},
			bucket: fmt.Sprintf("{versions/%d}", runs), now: scriptStart, first: map[string]int64{},
			until: map[string]int64{},
			procs: [2]versionsProcess{{id: "A"}, {id: "B"}},
		}
		for range 2 + r.draw(5) {
			var limits [][3]int64
			for range 1 + r.draw(2) {
				length := choose(r.draw, 4*sec, 4*sec, 5*sec, 12*sec, 500_000)
				limits = append(limits, [3]int64{
					choose(r.draw, int64(5), 10, 3), length,
					length / choose(r.draw, int64(4), 8, 3),
				})
			}
			if v := version(r.bucket, limits...); len(v.Also) == 0 || tagOf(limitsOf(v)[0]) != tagOf(v.Also[0]) {
				r.versions = append(r.versions, v)
			}
		}
		if len(r.versions) == 0 {
			return
		}
		t.Repeat(map[string]func(*rapid.T){
			"pass": func(*rapid.T) { r.now += choose(r.draw, int64(1), 333_333, sec, 2*sec, 5*sec, 100_000) },
			"take": func(*rapid.T) {
				v := choose(r.draw, r.versions...)
				r.direct(v, choose(r.draw, int64(1), 2, v.Cap))
			},
			"renew": func(*rapid.T) { r.lease(&r.procs[r.draw(2)]) },
			"spend": func(*rapid.T) {
				if p := &r.procs[r.draw(2)]; p.pot > 0 && r.now < p.end {
					n := 1 + int64(r.draw(int(p.pot)))
					p.pot -= n
					r.admit(n)
				}
			},
			"change": func(*rapid.T) { r.procs[r.draw(2)].version = r.draw(len(r.versions)) },
			"": func(*rapid.T) {
				most = max(most, strings.Count(r.all[0].memory.Fields(r.bucket)["u"], ";")+1)
			},
		})
	})
	t.Logf("%d runs, %d versions of one key at most", runs, most)
	if most < 4 && !testing.Short() { // 20 runs may not get there
		t.Errorf("no more than %d versions met", most)
	}
}
