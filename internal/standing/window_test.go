package standing

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/tiered-limiter/tiered-limiter/lua"
)

// windowed is a fleet whose processes have shares of windows. It is single-threaded.
type windowed struct {
	*rand.Rand
	now       int64 // of the nodes, in µs
	length    int64
	processes []*windowedProcess
	limits    []int64 // tokens of all shares, of each limit that a key may have
	keys      []int64 // where their windows begin
	taken     []int64 // in the running window of each key
	most      []int64 // the most that its shares may admit in it
	began     []int64
}

type windowedProcess struct {
	Shares
	limits []Limits
	base   int64 // of its clock
	fast   int64 // by so many thousandths
	last   Use
	of     int // the key of last
	began  int64
	tokens int64
}

// clock is the time of a process.
func (p *windowedProcess) clock(now int64) time.Duration {
	d := now - p.base
	return micros(d + d*p.fast/1000)
}

// learn has a process learn the time of the nodes.
func (f *windowed) learn(p *windowedProcess) {
	from := f.now - f.Int64N(2000)
	p.Clock(p.clock(f.now), from, from+2000)
}

// join adds a process without a fraction.
func (f *windowed) join() {
	p := &windowedProcess{base: f.now - f.Int64N(1e9), fast: f.Int64N(17) - 8}
	p.OpenWindows(3)
	for _, tokens := range f.limits {
		l, _ := SplitWindow(2*tokens, micros(f.length), 4)
		p.limits = append(p.limits, p.Begin(p.clock(f.now), l))
	}
	f.learn(p)
	f.processes = append(f.processes, p)
}

// lend gives all processes other fractions, first less and then more.
func (f *windowed) lend() {
	part := int64(lua.Pool) / int64(len(f.processes))
	to := make([]int64, len(f.processes))
	for i := range to {
		to[i] = f.Int64N(part + 1)
		if f.IntN(3) == 0 {
			to[i] = part
		}
	}
	for _, more := range []bool{false, true} {
		for i, p := range f.processes {
			if has := p.stretch().fraction; (to[i] > has) == more {
				p.set(p.clock(f.now), to[i], p.clock(f.now)+time.Hour)
			}
		}
	}
}

func (f *windowed) step() {
	switch f.IntN(6) {
	case 0:
		f.now += f.Int64N(f.length / 2)
	case 1: // about an edge
		k := f.IntN(len(f.keys))
		f.now = max(f.now, f.began[k]+f.length+f.Int64N(4000)-2000)
	case 2:
		f.now += f.Int64N(1000)
	}
	for k := range f.keys {
		if begin := f.now - (f.now-f.keys[k])%f.length; begin != f.began[k] {
			f.began[k], f.taken[k], f.most[k] = begin, 0, 0
		}
	}
	i := f.IntN(len(f.processes))
	p := f.processes[i]
	switch f.IntN(12) {
	case 0:
		f.lend()
	case 1:
		f.processes[i].Over(p.clock(f.now)) // it dies
		f.processes = append(f.processes[:i:i], f.processes[i+1:]...)
		f.join()
	case 2:
		p.Clear(p.clock(f.now))
	case 3:
		if !p.last.Empty() && p.Return(f.hash(p.of), p.last, p.tokens) && f.began[p.of] == p.began {
			f.taken[p.of] -= p.tokens
		}
		p.last = Use{}
	case 4, 5, 6:
		f.learn(p)
	case 7, 8: // all that there is
		k := f.IntN(len(f.keys))
		for _, p := range f.processes {
			for l := range f.limits {
				if n := p.Level(f.at(p, k), f.hash(k), p.limits[l]); n > 0 {
					f.takeOf(p, k, l, max(n-f.Int64N(4), 1))
				}
			}
		}
	default:
		f.takeOf(p, f.IntN(len(f.keys)), f.IntN(len(f.limits)), 1+f.Int64N(9))
	}
}

// hash has two keys meet in one place.
func (f *windowed) hash(key int) uint64 { return uint64(key%3) << 61 }

// at is a moment of a key in a process.
func (f *windowed) at(p *windowedProcess, key int) At {
	t := p.Times(p.clock(f.now))
	return At{t.now, t.Window(t.From()-(t.From()-f.keys[key])%f.length, f.length)}
}

// takeOf takes n tokens of a key by one of its limits, and reports whether they were there.
func (f *windowed) takeOf(p *windowedProcess, k, l int, n int64) bool {
	at := f.at(p, k)
	var u Use
	level := p.Level(at, f.hash(k), p.limits[l])
	left, ok := p.Take(at, f.hash(k), p.limits[l], n, &u)
	if ok != (level >= n) || ok && left != level-n {
		panic(fmt.Sprintf("of %d tokens %d were taken: %v, and %d are left", level, n, ok, left))
	}
	if !ok {
		return false
	}
	if p.last = (Use{}); f.IntN(2) == 0 {
		p.last, p.of, p.began, p.tokens = u, k, f.began[k], n
	}
	f.taken[k] += n
	f.most[k] = max(f.most[k], f.limits[l])
	return true
}

// In no window do the shares of all processes admit more than the part that they share, however
// fractions, limits and processes change, and whatever clocks are off within what is promised.
func TestSharesOfWindows(t *testing.T) {
	seeds, used := uint64(5000), int64(0)
	if testing.Short() {
		seeds = 500
	}
	for seed := range seeds {
		f := &windowed{Rand: rand.New(rand.NewPCG(seed, 7)), now: 1_763_640_000_000_000, length: 60_000_000, limits: []int64{40, 90, 1e8}}
		for k := range 4 {
			f.keys = append(f.keys, int64(k)*f.length/4+f.Int64N(1000))
		}
		f.taken, f.most, f.began = make([]int64, 4), make([]int64, 4), make([]int64, 4)
		for range 1 + f.IntN(4) {
			f.join()
		}
		for i := range 2000 {
			f.step()
			for k := range f.keys {
				if used = max(used, f.taken[k]); f.taken[k] > f.most[k] {
					t.Fatalf("seed %d, step %d: shares of key %d admitted %d of %d in a window", seed, i, k, f.taken[k], f.most[k])
				}
			}
		}
	}
	if used < 99e6 {
		t.Errorf("of 1e8 tokens at most %d were used: this shows nothing", used)
	}
}
