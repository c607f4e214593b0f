package shares

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/tiered-limiter/tiered-limiter/internal/test/proof/adversary"
	"github.com/tiered-limiter/tiered-limiter/lua"
)

// TestWhatBrokenAssumptionsCost breaks what the proof assumes of standing shares, one assumption at
// a time, once in each schedule. It compares what was admitted beyond the bound, or could have
// been, with the price in docs/internals/proof.md. -v prints the worst that was seen.
func TestWhatBrokenAssumptionsCost(t *testing.T) {
	schedules := uint64(6000)
	if testing.Short() {
		schedules = 1000
	}
	for i, a := range []struct {
		name  string
		price string
		do    func(w *world, r *rand.Rand) (price float64) // tokens of one key
	}{
		{"a process' machine sleeps, and the process notices at its first look", "what it has: f R", sleep},
		{"the clock of a process is a tenth slow", "what it has at the end of its right: f R", slow},
		{"a replica is promoted that missed the last writes", "f R, and φ·r·f until the next poll", failover},
		{"the table's clock jumps ahead again and again", "f R, and φ·r·f until the next poll", jumps},
		{"a process does not split the limit", "R, and φ·r until it is noticed", outsider},
	} {
		t.Run(a.name, func(t *testing.T) {
			worst, price, happened := 0.0, 0.0, 0
			for seed := range schedules {
				s := Random(seed+uint64(i)<<32, 60)
				s.Rules = Rules{Priced: true}
				w := newWorld(s, adversary.OnMemory)
				conceded := 0.0
				s.extra = []action{{a.name, 5, func(w *world, r *rand.Rand) bool {
					if conceded == 0 {
						conceded = a.do(w, r)
					}
					return true
				}}}
				o := s.play(w, false)
				if o.Fault != "" {
					t.Fatalf("seed %d: %s", s.Seed, o.Fault)
				}
				if -o.Slack > conceded {
					t.Fatalf("seed %d: %.3f tokens over the bound, at a price of %.3f\n%s", s.Seed, -o.Slack, conceded,
						adversary.Describe(s, Stores(adversary.OnMemory)))
				}
				if conceded > 0 {
					happened++
				}
				if -o.Slack > worst {
					worst, price = -o.Slack, conceded
				}
			}
			if worst == 0 || happened < int(schedules)/2 {
				t.Errorf("it cost %.3f tokens and happened in %d schedules: this shows nothing", worst, happened)
			}
			t.Logf("%s: %s; worst seen %.1f tokens of %.1f", a.name, a.price, worst, price)
		})
	}
}

// share returns f·R of a process, and φ·r·f for some time: of the largest limit.
func (w *world) share(f float64, d time.Duration) float64 {
	most := 0.0
	for _, l := range w.most {
		most = max(most, float64(l.Burst*w.parts/8)+float64(l.Tokens*w.parts)/8*float64(d)/float64(l.Per))
	}
	return f * most
}

func (w *world) fraction(p *process) float64 { return p.shares.State(w.clock(p)).Fraction }

// goOn lets time pass in which all but one process are well.
func (w *world) goOn(but *process, d time.Duration) {
	for end := w.now + d; w.now < end; w.advance(3 * time.Second) {
		for _, p := range w.processes {
			if p != but {
				w.poll(p)
			}
		}
	}
}

func sleep(w *world, r *rand.Rand) float64 {
	p := w.any(r)
	price := w.share(w.fraction(p), 0)
	before := w.clock(p)
	w.goOn(p, time.Duration(60+r.IntN(120))*time.Second)
	p.since, p.offset = w.now, before // its clock stood still, too
	w.check()
	w.drain(p, w.key(r))
	p.offset += time.Minute
	p.shares.Over(w.clock(p))
	return price
}

func slow(w *world, r *rand.Rand) float64 {
	p := w.any(r)
	price := w.share(w.fraction(p), time.Second) // 59.4 s by its clock are a second more than the record lives
	p.since, p.offset, p.drift = w.now, w.clock(p), -100
	for w.fraction(p) > 0 && w.Fault == "" { // it is silent until its right ends
		for _, q := range w.processes {
			if q != p {
				w.poll(q)
			}
		}
		w.advance(time.Second / 4)
		w.check()
	}
	p.since, p.offset, p.drift = w.now, w.clock(p), 0
	return price
}

func failover(w *world, r *rand.Rand) float64 {
	replica := w.table.Copy()
	for range 1 + r.IntN(2) {
		if r.IntN(2) == 0 {
			w.leave(r.IntN(len(w.processes)), r)
		}
		w.round()
	}
	w.table = replica
	w.polls, w.replies = nil, nil // the connections broke
	if r.IntN(2) == 0 {           // somebody new asks first
		i := r.IntN(len(w.processes))
		w.replace(i, r)
		w.poll(w.processes[i])
	}
	price := 0.0
	for _, p := range w.processes {
		price += w.share(w.fraction(p), 3*time.Second)
	}
	w.check()
	w.advance(3 * time.Second)
	w.check()
	w.round()
	return price
}

func jumps(w *world, r *rand.Rand) float64 {
	p := w.any(r)
	price := w.share(w.fraction(p), time.Second)
	for range 14 {
		w.offset += 10 * time.Second
		for _, q := range w.processes {
			if q != p {
				w.poll(q)
			}
		}
	}
	w.check()
	w.advance(time.Second)
	w.check()
	w.poll(p)
	return price
}

func outsider(w *world, r *rand.Rand) float64 {
	k, until := w.key(r), w.now+3*time.Second
	for w.now < until {
		c := w.callOf(k, w.most)
		c.Want, c.Min = 1+r.Int64N(c.LeastCap()), 1
		w.admit(k, w.run(c).Grant, "a bucket with the whole limit")
		w.check()
		w.advance(time.Duration(r.Int64N(int64(time.Second))))
		w.check()
	}
	w.direct(k, 0, lua.Pool)
	return w.share(1, 4*time.Second)
}
