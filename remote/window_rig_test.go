package remote_test

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/redistest"
	"github.com/tiered-limiter/tiered-limiter/lua"
	"github.com/tiered-limiter/tiered-limiter/remote"
)

// The tests of the algorithms beside the token bucket, in the window_*_test.go files, tell every
// call its time. Memory's own clock stands still at that time, so a key lives and dies by it there;
// on the other engines the test lets it die then.

// windowKind is one algorithm under test.
type windowKind struct {
	algorithm lua.Algorithm
	limit     func(d drawer) lua.Call // Cap, Period and so on
}

// drawer draws 0 … n-1.
type drawer func(n int) int

func choose[T any](d drawer, of ...T) T { return of[d(len(of))] }

// without are the algorithms that do not have a property.
func without(p lua.Property) (all []lua.Algorithm) {
	for a := range lua.Algorithm(lua.Algorithms) {
		if !a.Has(p) {
			all = append(all, a)
		}
	}
	return all
}

var windowKinds = []windowKind{
	{lua.SlidingLog, func(d drawer) lua.Call {
		return lua.Call{Cap: choose(d, int64(3), 1, 2, 5, 10), Period: choose(d, int64(1000), 1e6, 60e6, 7)}
	}},
	{lua.FixedWindow, func(d drawer) lua.Call {
		c := lua.Call{Cap: choose(d, int64(3), 1, 2, 5, 10, 100), Period: choose(d, int64(1000), 1e6, 60e6, 3e6)}
		c.Phase = choose(d, 0, 1, c.Period/3, c.Period-1)
		return c
	}},
	{lua.TokenBuckets, func(d drawer) lua.Call {
		limit := func(period int64) lua.Limit {
			return lua.Limit{
				Cap: choose(d, int64(3), 1, 2, 5, 10, 100), Period: period,
				Tokens: choose(d, int64(1), 2, 7, 1000),
			}
		}
		l := limit(choose(d, int64(1e6), 1000, 300e3))
		c := lua.Call{Cap: l.Cap, Period: l.Period, Tokens: l.Tokens}
		for _, period := range [][]int64{{}, {60e6}, {7e6, 3600e6}}[d(3)] {
			c.Also = append(c.Also, limit(period))
		}
		return c
	}},
	{lua.SlidingWindow, func(d drawer) lua.Call {
		limit := func() lua.Limit {
			return lua.Limit{
				Cap: choose(d, int64(3), 1, 2, 5, 10, 100), Period: choose(d, int64(1e6), 1000, 10e6, 300e3),
				Span: choose(d, int64(7), 1, 2, 4, 61),
			}
		}
		l := limit()
		c := lua.Call{Cap: l.Cap, Period: l.Period, Span: l.Span}
		for range choose(d, 0, 0, 1, 2) {
			c.Also = append(c.Also, limit())
		}
		return c
	}},
}

// Every algorithm has a kind, so that its calls are recorded, compared on all engines and held
// against its definition.
func TestWindowKinds(t *testing.T) {
	for _, a := range without(lua.OneLevel) {
		if !slices.ContainsFunc(windowKinds, func(k windowKind) bool { return k.algorithm == a }) {
			t.Errorf("windowKinds does not know a %v", a)
		}
	}
}

func eachKind(t *testing.T, f func(t *testing.T, k windowKind)) {
	for _, k := range windowKinds {
		t.Run(k.algorithm.String(), func(t *testing.T) { f(t, k) })
	}
}

// call is a call of the kind, a peek as it is.
func (k windowKind) call(d drawer, bucket string, now int64) lua.Call {
	c := k.limit(d)
	c.Algorithm, c.Bucket, c.Now, c.TTL, c.Fleet = k.algorithm, bucket, now, 1e6, 1
	return c
}

// leases reports whether the kind's calls may have records.
func (k windowKind) leases() bool { return k.algorithm != lua.SlidingLog }

// lookAt reads a key of any kind.
func (e *engine) lookAt(t tester, a lua.Algorithm, bucket string) stored {
	t.Helper()
	if e.memory != nil || !a.Has(lua.Entries) {
		return e.look(t, bucket)
	}
	p := e.client.Pipeline()
	members, pttl := p.ZRangeWithScores(t.Context(), bucket, 0, -1), p.Do(t.Context(), "PTTL", bucket)
	_, _ = p.Exec(t.Context())
	ms, err := pttl.Int64()
	if err != nil || members.Err() != nil {
		t.Fatalf("no look at %q: %v, %v", bucket, err, members.Err())
	}
	if len(members.Val()) == 0 {
		return stored{nil, ms}
	}
	s := e.given(bucket, stored{map[string]string{}, ms})
	for _, m := range members.Val() {
		s.fields[m.Member.(string)] = strconv.FormatFloat(m.Score, 'f', -1, 64)
	}
	return s
}

// windowHistory makes up a history as it goes: two processes whose calls are delayed, repeated and
// now and then wrong, and a server whose clock is set. What is answered goes into the calls that
// follow.
type windowHistory struct {
	draw     drawer
	kind     windowKind
	bucket   string
	now      int64
	limit    lua.Call
	versions []lua.Call // of limit, before
	last     lua.Call   // sent before
	seq      int64
	acks     [2]int64
	replies  []lua.Reply // some of late
}

func newWindowHistory(k windowKind, bucket string, draw drawer) *windowHistory {
	h := &windowHistory{draw: draw, kind: k, bucket: bucket, now: scriptStart}
	h.limit = k.call(draw, bucket, 0)
	return h
}

// pass lets time pass, or sets the server's clock: by lengths that matter.
func (h *windowHistory) pass() {
	p := h.limit.Period
	switch h.draw(8) {
	case 0, 1: // the same instant
	case 2, 3:
		h.now += choose(h.draw, int64(1), p/4, p/2, 333)
	case 4:
		h.now += choose(h.draw, p-1, p, p+1, 2*p, 5*p)
	case 5:
		h.now += choose(h.draw, int64(1e6), 100e3, 5e6)
	case 6:
		h.now -= choose(h.draw, int64(1), p, 300e3, 1e6, 1e6+1, 3e6)
	case 7:
		if n := len(h.replies); n > 0 && h.replies[n-1].Retry > 0 {
			h.now = h.replies[n-1].Now + h.replies[n-1].Retry + choose(h.draw, int64(0), -1)
		}
	}
}

// amount draws from 0 … n+1, more often the ends.
func (h *windowHistory) amount(n int64) int64 {
	return choose(h.draw, 0, 1, n, n+1, int64(h.draw(int(n)+1)))
}

// next makes up a call.
func (h *windowHistory) next() lua.Call {
	if h.last.Bucket != "" && h.draw(8) == 0 { // the network repeats
		c := h.last
		c.Now = h.now
		return c
	}
	// another version of the policy: one of those before, or a new one
	if h.kind.algorithm == lua.SlidingWindow && h.draw(12) == 0 {
		h.versions = append(h.versions, h.limit)
		if h.limit = choose(h.draw, h.versions...); h.draw(2) == 0 {
			h.limit = h.kind.call(h.draw, h.bucket, 0)
		}
	}
	if h.draw(24) == 0 { // and another of the same numbers
		h.limit.Cap = max(1, h.limit.Cap+choose(h.draw, int64(-2), -1, 1, 2))
	}
	c := h.limit
	c.Now = h.now
	c.MaxDebt = choose(h.draw, 0, 0, c.Cap, 2*c.Cap, 1<<40)
	c.Want = h.amount(c.Cap)
	c.Min = min(c.Want, choose(h.draw, c.Want, 1, 0))
	c.TTL = choose(h.draw, int64(1e6), c.Period, c.Period/2+1)
	if h.draw(6) == 0 {
		c.Deadline = c.Now + choose(h.draw, c.TTL, c.TTL+1, 1, 0)
	}
	var seen lua.Reply
	if n := len(h.replies); n > 0 {
		seen = h.replies[h.draw(n)]
		c.Epoch = choose(h.draw, seen.Epoch, seen.Epoch, 0, seen.Epoch+1)
	}
	if h.draw(5) == 0 {
		c.At, c.To = seen.Stamp, h.amount(c.Cap)
		if h.kind.algorithm != lua.SlidingLog && h.draw(3) > 0 {
			c.To = 0 // else an error
		}
	}
	if h.draw(3) == 0 {
		h.lease(&c, seen)
	}
	return c
}

// lease makes a call one of a process.
func (h *windowHistory) lease(c *lua.Call, seen lua.Reply) {
	p := h.draw(2)
	h.seq++
	c.Lease, c.Seq = string(rune('A'+p)), h.seq
	if h.draw(4) == 0 {
		c.Debt = 1 + choose(h.draw, h.amount(c.Cap), 4*h.amount(c.Cap))
		c.Owed = choose(h.draw, 0, 0, 1, c.Debt)
		c.Seen = choose(h.draw, seen.Overflow, seen.Overflow, 0, 1<<40)
		c.Fleet = 1 + int64(h.draw(3))
		c.Since = max(1, choose(h.draw, c.Now, c.Now-c.Period, c.Now-c.Period+1, seen.Stamp, c.Now+5))
	}
	if h.draw(10) == 0 {
		c.Reset = max(1, choose(h.draw, c.Now, seen.Now, c.Now-c.Period/2, c.Now+1e6))
	}
	if !h.kind.leases() {
		return
	}
	c.To = choose(h.draw, c.To, c.To, 1)
	c.Ack = choose(h.draw, min(h.acks[p], h.seq-1), h.seq-1, 0)
	h.acks[p] = h.seq
	if h.draw(3) == 0 {
		c.Refund, c.At = h.amount(c.Cap), seen.Stamp
		c.Deadline = c.Now + choose(h.draw, c.TTL, c.TTL+1, 1)
	}
	if h.draw(2) == 0 {
		c.Hold = h.amount(c.Cap)
	} else if h.draw(2) == 0 {
		c.Ret = h.amount(c.Cap)
	}
}

// learn takes note of an answer.
func (h *windowHistory) learn(c lua.Call, a answer) {
	h.last = c
	if a.err == "" {
		h.replies = append(h.replies[max(0, len(h.replies)-3):], a.reply)
	}
}

// Every reply, all that is stored and every time to live are the same on the three engines.
func TestWindowHistories(t *testing.T) {
	eachKind(t, func(t *testing.T, k windowKind) {
		others := []*engine{realEngine(t)}
		if !redistest.Guarded() { // make test has played miniredis, whatever the Redis is
			others = append(others, miniEngine(t))
		}
		codes, flags, played := map[lua.Code]int{}, lua.Flags(0), 0
		histories := 200
		if testing.Short() {
			histories = 100
		}
		rare := func() bool { // a stale reply is one in thousands
			return !testing.Short() && k.leases() && codes[lua.Stale] == 0 && played < 10*histories
		}
		for played < histories || rare() {
			rapid.Check(t, func(t *rapid.T) {
				played++
				h := newWindowHistory(k, fmt.Sprintf("{window/%d}%s", played, k.algorithm),
					func(n int) int { return rapid.IntRange(0, n-1).Draw(t, "n") })
				memory := &engine{name: "memory", memory: remote.NewMemory()}
				t.Repeat(map[string]func(*rapid.T){"call": func(t *rapid.T) {
					h.pass()
					before := memory.memory.Fields(h.bucket)
					// its time is over
					if memory.memory.StopClock(h.now); before != nil && memory.memory.Fields(h.bucket) == nil {
						memory.memory.Del(h.bucket) // the clock may be set back
						for _, e := range others {
							e.client.Del(t.Context(), h.bucket)
						}
					}
					before = memory.memory.Fields(h.bucket)
					c := h.next()
					foreseen := dryRun(t, c, append(others, memory))
					want := memory.call(t, c)
					if foreseen != nil && want.reply.Code != lua.Replay && want.reply.Code != lua.Stale &&
						!foreseen.foresees(want) {
						t.Fatalf("%+v -> %v, and a dry run said %v", c, want, *foreseen)
					}
					after := memory.lookAt(t, k.algorithm, h.bucket)
					wrote := !maps.Equal(before, after.fields)
					quiet := c.Lease == "" && want.reply.Grant == 0 && c.At == 0 // and so nothing is settled
					quiet = quiet && before["g"] == after.fields["g"] && before["u"] == after.fields["u"]
					// A call that changes what governs writes, and one that notes that it still
					// does.
					quiet = quiet && before["r"] == after.fields["r"] && before["h"] == after.fields["h"]
					if wrote && (want.err != "" || quiet && want.reply.Flags&lua.SteppedBack == 0) {
						t.Fatalf("%+v -> %v has written %v", c, want, after)
					}
					for _, e := range others {
						begun := time.Now()
						got := e.call(t, c)
						if got != want {
							t.Fatalf("%s: %+v\n%v, want\n%v\nbefore: %v", e.name, c, got, want, before)
						}
						left := e.lookAt(t, k.algorithm, h.bucket)
						if !maps.Equal(left.fields, after.fields) {
							t.Fatalf("%s: %+v -> %v stored\n%v, want\n%v\nbefore\n%v", e.name, c, got, left.fields,
								after.fields, before)
						}
						// Redis reads its clock in whole ms, and may stand still in between.
						if passed := time.Since(begun).Milliseconds(); e.server != nil && wrote &&
							(left.pttl > after.pttl+2 || left.pttl < after.pttl-passed-2) {
							t.Fatalf("%s: %+v lives %d ms, want %d, looked at within %d ms", e.name, c, left.pttl,
								after.pttl, passed)
						}
					}
					h.learn(c, want)
					if want.err == "" {
						codes[want.reply.Code]++
						flags |= want.reply.Flags
					}
				}})
			})
		}
		t.Logf("%d histories: codes %v, flags %b", played, codes, flags)
		for code := lua.Granted; code <= lua.Late; code++ {
			if !testing.Short() && codes[code] == 0 && (k.leases() || code != lua.Replay && code != lua.Stale) {
				t.Errorf("code %d did not come up", code)
			}
		}
	})
}

// foresees reports whether an answer to a dry run says what the call was answered. Beside the
// larger limit of another process a level is cut to the caller's cap.
func (a answer) foresees(b answer) bool {
	x, y := a.reply, b.reply
	return a.err == b.err && x.Code == y.Code && x.Grant == y.Grant && (x.Retry == y.Retry || y.Grant > 0) &&
		(x.Level == y.Level+y.Grant || x.Flags&lua.OtherTerms != 0)
}

// dryRun makes a dry run of a lease's call on engines, which agree and write nothing. It returns
// nil for other calls.
func dryRun(t tester, c lua.Call, all []*engine) (foreseen *answer) {
	t.Helper()
	if c.Lease == "" {
		return nil
	}
	c.Seq = 0
	for _, e := range all {
		before := e.lookAt(t, c.Algorithm, c.Bucket).fields
		got := e.call(t, c)
		if after := e.lookAt(t, c.Algorithm, c.Bucket).fields; !maps.Equal(before, after) {
			t.Fatalf("%s: a dry run %+v -> %v has written\n%v, before\n%v", e.name, c, got, after, before)
		}
		if foreseen != nil && got != *foreseen {
			t.Fatalf("%s: a dry run %+v\n%v, want\n%v", e.name, c, got, *foreseen)
		}
		foreseen = &got
	}
	return foreseen
}

// memoryEngine is a Memory whose clock stands still at the time of the calls.
func memoryEngine() *engine { return &engine{name: "memory", memory: remote.NewMemory()} }

// at executes a call at a time: it is told, and Memory's clock stands at it.
func (e *engine) at(t tester, now int64, c lua.Call) answer {
	t.Helper()
	if c.Now = now; e.memory != nil {
		e.memory.StopClock(now)
	}
	return e.call(t, c)
}

// take is a direct take of n tokens.
func take(c lua.Call, n int64) lua.Call {
	c.Want, c.Min = n, n
	return c
}

// settling is a call with a lease id that asks for nothing.
func settling(c lua.Call, seq int64, change func(c *lua.Call)) lua.Call {
	c.Lease, c.Seq = "A", seq
	change(&c)
	return c
}
