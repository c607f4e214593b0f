package remote_test

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"testing"

	"pgregory.net/rapid"

	"github.com/tiered-limiter/tiered-limiter/lua"
)

// calendarCaller is a process that works out the windows of a limit itself. It holds a lease, and
// spends it before it ends.
type calendarCaller struct {
	id    string
	edges []int64 // of its windows; the first lies before the history, the last after it
	seq   int64
	hold  int64
	until int64 // of the lease
}

// window gives a call the window of an instant.
func (p *calendarCaller) window(c *lua.Call, instant int64) {
	i, found := slices.BinarySearch(p.edges, instant)
	if !found {
		i--
	}
	i = min(max(i, 0), len(p.edges)-2)
	c.Phase, c.Period = p.edges[i], p.edges[i+1]-p.edges[i]
}

// drawEdges draws windows of different lengths.
func drawEdges(draw drawer, first int64) (edges []int64) {
	for at := first; at < scriptStart+60e6; at += 1500e3 + int64(draw(3000))*1e3 {
		edges = append(edges, at)
	}
	return append(edges, scriptStart+120e6)
}

// Windows of the calendar: what three processes admit between two edges is never more than the
// quota, whichever of them has these edges. Some are wrong about the server's clock, have another
// time zone's data or another billing day. Who is in another window than the key does nothing, and
// is told the key's time. All engines answer and store the same.
func TestWindowsThatCallersWorkOut(t *testing.T) {
	others := []*engine{realEngine(t), miniEngine(t)}
	played, late, shared := 0, 0, 0
	rapid.Check(t, func(t *rapid.T) {
		played++
		draw := func(n int) int { return rapid.IntRange(0, n-1).Draw(t, "n") }
		memory, bucket := memoryEngine(), fmt.Sprintf("{calendar/%d}", played)
		first := drawEdges(draw, scriptStart-10e6)
		procs := []*calendarCaller{{id: "A", edges: first}, {id: "B", edges: first}, {id: "C", edges: first}}
		switch draw(3) {
		case 1: // an hour's difference at some edges
			edges := slices.Clone(first)
			for i := 1; i < len(edges)-1; i++ {
				edges[i] += choose(draw, int64(0), 300e3, -300e3)
			}
			procs[1].edges = edges
		case 2: // another day
			procs[1].edges = drawEdges(draw, scriptStart-10e6+int64(draw(2000))*1e3)
		}
		var edges []int64
		for _, p := range procs {
			edges = append(edges, p.edges...)
		}
		slices.Sort(edges)
		edges = slices.Compact(edges)
		quota := choose(draw, int64(10), 3, 40)
		used := map[int]int64{} // by the first edge
		spend := func(now, n int64) {
			i, found := slices.BinarySearch(edges, now)
			if !found {
				i--
			}
			if used[i] += n; used[i] > quota {
				t.Fatalf("%d of %d were admitted between %d and %d", used[i], quota, edges[i], edges[i+1])
			}
		}
		now, stepped := scriptStart, false
		t.Repeat(map[string]func(*rapid.T){"call": func(t *rapid.T) {
			p := procs[draw(len(procs))]
			now += choose(draw, int64(0), 1, 50e3, 250e3, 700e3, 2500e3)
			if i, _ := slices.BinarySearch(p.edges, now); i < len(p.edges)-1 && draw(4) == 0 {
				now = max(now, p.edges[i]-int64(draw(3))+1) // beside an edge
			}
			if draw(40) == 0 {
				now, stepped = now-choose(draw, int64(1), 400e3, 1e6, 5e6), true
			}
			for _, p := range procs {
				if p.hold > 0 && now < p.until && draw(2) == 0 {
					n := 1 + int64(draw(int(p.hold)))
					if p.hold -= n; !stepped {
						spend(now, n)
					}
				}
				if now >= p.until {
					p.hold = 0
				}
			}
			c := lua.Call{Bucket: bucket, Algorithm: lua.FixedWindow, Cap: quota, TTL: 1e6, Fleet: 1}
			p.window(&c, now+choose(draw, int64(0), 0, 0, 1, -1, 200e3, -200e3, 1e6, -1e6))
			c.Want = choose(draw, int64(1), 2, quota/2+1)
			c.Min = choose(draw, int64(1), c.Want)
			if draw(3) > 0 {
				p.seq++
				c.Lease, c.Seq, c.Ack, c.Hold = p.id, p.seq, p.seq-1, p.hold
				if draw(4) == 0 {
					c.Hold, c.Ret, p.hold = 0, p.hold, 0
				}
			}
			if memory.memory.StopClock(now); memory.memory.Fields(bucket) == nil {
				for _, e := range others {
					e.client.Del(t.Context(), bucket)
				}
			}
			before := memory.memory.Fields(bucket)
			a := memory.at(t, now, c)
			after := memory.memory.Fields(bucket)
			for _, e := range others {
				if got := e.at(t, now, c); got != a {
					t.Fatalf("%s: %+v at %d\n%v, want\n%v", e.name, c, now, got, a)
				}
				if got := e.look(t, bucket).fields; !maps.Equal(got, after) {
					t.Fatalf("%s: %+v at %d stored\n%v, want\n%v", e.name, c, now, got, after)
				}
			}
			if a.err != "" {
				t.Fatal(a.err)
			}
			if a.reply.Code == lua.Late {
				if late++; !maps.Equal(before, after) || a.reply.Now != now {
					t.Fatalf("a late call wrote %v over %v, or told %d at %d", after, before, a.reply.Now, now)
				}
				key := now
				if last, _ := strconv.ParseInt(before["t"], 10, 64); last > now && last-now <= lua.MaxBack.Microseconds() {
					key = last // it waits for the clock
				}
				if at := a.reply.Stamp; at != key || at >= c.Phase && at < c.Phase+c.Period {
					t.Fatalf("at %d a late call for %d to %d is told %d as the key's time: want %d", now, c.Phase, c.Phase+c.Period, at, key)
				}
				return
			}
			if now < c.Phase && !stepped || now >= c.Phase+c.Period {
				t.Fatalf("%+v was executed at %d", c, now)
			}
			if edge := c.Phase + c.Period; a.reply.Retry > edge-now || now+a.reply.TTLLeft > edge {
				t.Fatalf("%+v at %d: %+v goes beyond the edge", c, now, a.reply)
			} else if a.reply.Code == lua.Denied && after["e"] == "" && now+a.reply.Retry != edge {
				t.Fatalf("%+v at %d: a refusal names %d, not the edge", c, now, now+a.reply.Retry)
			}
			switch {
			case c.Lease != "":
				p.hold, p.until = c.Hold+a.reply.Grant, now+a.reply.TTLLeft
				shared++
			case !stepped:
				spend(now, a.reply.Grant)
			}
		}})
	})
	if late == 0 || shared == 0 {
		t.Errorf("%d late calls, %d leases", late, shared)
	}
}
