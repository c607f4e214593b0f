package sim

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strconv"
	"time"

	"github.com/tiered-limiter/tiered-limiter/sim/measure"
	"github.com/tiered-limiter/tiered-limiter/sim/scenario"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// patience is how long callers wait for a process that stands still: who came earlier is gone when it goes on.
const patience = time.Second

// stream is the requests of one traffic statement, or of a flood of keys.
type stream struct {
	run    *run
	what   *scenario.Traffic
	limit  int // index in Scenario.Limits
	random *rand.Rand
	keys   func() string // the next request's
	begin  time.Duration
	end    time.Duration

	// Who is there, as of a version of the fleet.
	version int
	live    []*process
	slots   zipf
}

// newStream is the stream number i of a scenario's traffic. Whatever it draws depends on the seed and its number.
func (r *run) newStream(i int) *stream {
	t := &r.scenario.Traffic[i]
	s := &stream{
		run: r, what: t, limit: r.limitOf(t.Limit), end: time.Duration(r.scenario.Length),
		random: named(r.seed, fmt.Sprintf("traffic %d", i)), version: -1,
	}
	s.keys = s.someKeys(t.Keys, t.KeySkew, fmt.Sprintf("new %d-", i))
	return s
}

// newFlood is the stream of keys that a flood asks for, each once, of the first limit.
func (r *run) newFlood(i int, begin, end time.Duration) *stream {
	f := &r.scenario.Faults[i]
	rate := float64(f.Keys) / (end - begin).Seconds()
	s := &stream{
		run: r, what: &scenario.Traffic{Shape: "poisson", Rate: rate}, begin: begin, end: end,
		random: named(r.seed, fmt.Sprintf("flood %d", i)), version: -1,
	}
	s.keys = s.someKeys(-1, 0, fmt.Sprintf("flood %d-", i))
	return s
}

// someKeys returns who chooses keys: out of so many, or new ones each time.
func (s *stream) someKeys(n int64, skew float64, fresh string) func() string {
	switch {
	case n < 0:
		var count int64
		return func() string { count++; return fresh + strconv.FormatInt(count, 10) }
	case n <= 1:
		return func() string { return "key 0" }
	}
	z, names := newZipf(int(n), skew), make([]string, n)
	return func() string {
		i := z.draw(s.random)
		if names[i] == "" {
			names[i] = "key " + strconv.Itoa(i)
		}
		return names[i]
	}
}

// open makes requests until the end, whatever becomes of those before.
func (s *stream) open() {
	r := s.run
	r.asking.Add(1)
	defer r.asking.Add(-1)
	for next := s.begin; ; {
		if next = s.after(next); next >= s.end {
			return
		}
		r.sleepUntil(next)
		if p := s.process(); p != nil {
			key, cost, leave := s.keys(), s.cost(), s.leave()
			r.asking.Add(1)
			r.requests.Go(func() {
				defer r.asking.Add(-1)
				r.ask(p, s.limit, key, cost, leave)
			})
		}
	}
}

// after draws when the request after one is made: a Poisson process of the rate at each time, by thinning one of the highest
// rate. Times are whole nanoseconds, each later than the one before, and as good as never those of another stream.
func (s *stream) after(t time.Duration) time.Duration {
	most := s.most()
	for {
		t += 1 + time.Duration(min(s.random.ExpFloat64()/most*float64(time.Second), float64(s.end)))
		if t >= s.end || s.steady() || s.random.Float64()*most < s.rate(t) {
			return t
		}
	}
}

func (s *stream) steady() bool { return s.what.Shape == "poisson" }

// most is the highest rate, and rate that at a time, in requests per second.
func (s *stream) most() float64 {
	switch t := s.what; t.Shape {
	case "bursts":
		return t.Rate * float64(t.Every) / float64(t.For)
	case "ramp", "diurnal":
		return max(t.Rate, t.To)
	default:
		return t.Rate
	}
}

func (s *stream) rate(at time.Duration) float64 {
	switch t := s.what; t.Shape {
	case "bursts":
		if at%time.Duration(t.Every) < time.Duration(t.For) {
			return s.most()
		}
		return 0
	case "ramp":
		return t.Rate + (t.To-t.Rate)*float64(at)/float64(s.end)
	case "diurnal":
		wave := (1 - math.Cos(2*math.Pi*float64(at)/float64(t.Every))) / 2 // from rate, up to the other and back
		return t.Rate + (t.To-t.Rate)*wave
	default:
		return t.Rate
	}
}

// process chooses who is asked, among those who are there: the first slots more often, if the traffic is skewed.
func (s *stream) process() *process {
	if f := s.run.fleet; f.changed(s.version) {
		s.live, s.version = f.live()
		s.slots = newZipf(len(s.live), s.what.ProcSkew)
	}
	if len(s.live) == 0 {
		return nil
	}
	return s.live[s.slots.draw(s.random)]
}

func (s *stream) cost() int64 {
	least := max(s.what.Cost, 1)
	if s.what.MaxCost <= least {
		return least
	}
	return least + s.random.Int64N(s.what.MaxCost-least+1)
}

// leave is when the caller leaves, 0 for never.
func (s *stream) leave() time.Duration {
	if s.what.Cancel == 0 || s.random.Float64() >= s.what.Cancel {
		return 0
	}
	return 1 + time.Duration(s.random.Int64N(int64(time.Millisecond)))
}

// clients are as many clients as the statement has, each of whom waits for its answer before it asks again.
func (s *stream) clients(i int) {
	for c := range s.what.Clients {
		own := *s
		own.random = named(s.run.seed, fmt.Sprintf("traffic %d, client %d", i, c))
		own.keys = own.someKeys(s.what.Keys, s.what.KeySkew, fmt.Sprintf("new %d-%d-", i, c))
		s.run.traffic.Go(own.client)
	}
}

// client is one of them.
func (s *stream) client() {
	r := s.run
	r.asking.Add(1)
	defer r.asking.Add(-1)
	for {
		if !s.pause(s.think()) {
			return
		}
		key, cost := s.keys(), s.cost()
		for try := 0; ; try++ {
			p := s.process()
			if p == nil {
				break
			}
			d, heard := r.ask(p, s.limit, key, cost, s.leave())
			if heard && d.Allowed || try >= s.what.Retry {
				break
			}
			// All who were refused may hear of the same time, and nobody comes at the very instant.
			again := max(d.RetryAfter, time.Duration(s.what.Think))
			if !s.pause(again + time.Duration(s.random.Int64N(int64(time.Millisecond)))) {
				return
			}
		}
	}
}

// way is the mean time between an answer and the next request of a client that does not think: what its own network and the
// service itself take. Else a client that is admitted would ask again at the same instant, for ever.
const way = time.Millisecond

// think draws how long it takes until a client asks again.
func (s *stream) think() time.Duration {
	return time.Duration(s.random.ExpFloat64() * float64(way+time.Duration(s.what.Think)))
}

// pause waits, and reports whether the run goes on then.
func (s *stream) pause(d time.Duration) bool {
	if at := s.run.at(); d > s.end-at {
		return false // also when d is for ever
	}
	time.Sleep(d)
	return true
}

// ask makes one request, and reports what became of it, if the caller heard of that. Who asks counts in asking, but for who
// waits for a process that stands still.
func (r *run) ask(p *process, limit int, key string, cost int64, leave time.Duration) (d tiered.Decision, heard bool) {
	came := r.at()
	if p.still.isShut() {
		r.asking.Add(-1)
		p.still.pass()
		r.asking.Add(1)
	}
	if r.at()-came > patience || p.dead.Load() {
		return d, false
	}
	at, q := r.at(), measure.Request{}
	if r.tape == nil {
		q = r.asked(at, p.number, limit, key, cost)
	}
	d, at, took, told := p.decide(limit, key, cost, leave)
	heard = told && !p.dead.Load() // else the connection of the caller broke
	switch {
	case r.tape != nil:
		r.recorded(at, took, p.number, limit, key, cost, d, heard)
	case heard:
		r.decided(at+took, q, d)
	}
	return d, heard
}
