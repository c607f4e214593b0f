package sim

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"strconv"
	"time"

	"github.com/tiered-limiter/tiered-limiter/sim/scenario"
	"github.com/tiered-limiter/tiered-limiter/tiered"
	"github.com/tiered-limiter/tiered-limiter/tiered/atonce"
)

// callerTimeout is how long callers wait for a process that stands still. Those that came earlier
// are gone when it continues.
const callerTimeout = time.Second

// stream is the requests of one traffic statement, or of a flood of keys.
type stream struct {
	run    *run
	what   *scenario.Traffic
	limit  int // index in Scenario.Limits
	random *rand.Rand
	keys   func() string // returns that of the next request
	begin  time.Duration
	end    time.Duration

	live  *[]*process // as the fleet last had them
	slots zipf
}

// newStream returns the stream of the scenario's i-th traffic. What it draws depends on the seed
// and i.
func (r *run) newStream(i int) *stream {
	t := &r.scenario.Traffic[i]
	s := &stream{
		run: r, what: t, limit: r.limitOf(t.Limit), end: time.Duration(r.scenario.Length),
		random: newRand(r.seed, fmt.Sprintf("traffic %d", i)),
	}
	s.keys = s.keyChooser(t.Keys, t.KeySkew, fmt.Sprintf("new %d-", i))
	return s
}

// newFlood returns the stream of the keys of a flood, each once, of the first limit.
func (r *run) newFlood(i int, begin, end time.Duration) *stream {
	f := &r.scenario.Faults[i]
	rate := float64(f.Keys) / (end - begin).Seconds()
	s := &stream{
		run: r, what: &scenario.Traffic{Shape: "poisson", Rate: rate}, begin: begin, end: end,
		random: newRand(r.seed, fmt.Sprintf("flood %d", i)),
	}
	s.keys = s.keyChooser(-1, 0, fmt.Sprintf("flood %d-", i))
	return s
}

// keyChooser returns a function that chooses among n keys. n < 0 makes a new key each time.
func (s *stream) keyChooser(n int64, skew float64, fresh string) func() string {
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

// open makes requests until the end. It does not wait for their decisions.
func (s *stream) open() {
	r := s.run
	r.undecided.Add(1)
	defer r.undecided.Add(-1)
	for next := s.begin; ; {
		if next = s.nextArrival(next); next >= s.end {
			return
		}
		r.sleepUntil(next)
		if p := s.chooseProcess(); p != nil {
			q := s.request()
			q.leave = s.cancelAfter()
			r.undecided.Add(1)
			r.requests.Go(func() {
				defer r.undecided.Add(-1)
				r.ask(p, q)
			})
		}
	}
}

// nextArrival draws the time of the request after one at t: a Poisson process with the rate at each
// time, thinned from one with the maximum rate. Times are whole nanoseconds, each later than the
// one before, and almost never those of another stream.
func (s *stream) nextArrival(t time.Duration) time.Duration {
	for {
		_, most := s.rate(t)
		t += 1 + time.Duration(min(s.random.ExpFloat64()/most*float64(time.Second), float64(s.end)))
		if t >= s.end || s.what.Shape == "poisson" {
			return t
		}
		if now, _ := s.rate(t); s.random.Float64()*most < now {
			return t
		}
	}
}

// rate returns the rate at a time, and the highest at any, in requests per second.
func (s *stream) rate(at time.Duration) (now, most float64) {
	switch t := s.what; t.Shape {
	case "bursts":
		if most = t.Rate * float64(t.Every) / float64(t.For); at%time.Duration(t.Every) < time.Duration(t.For) {
			now = most
		}
		return now, most
	case "ramp":
		return t.Rate + (t.To-t.Rate)*float64(at)/float64(s.end), max(t.Rate, t.To)
	case "diurnal":
		wave := (1 - math.Cos(2*math.Pi*float64(at)/float64(t.Every))) / 2 // from rate, up to the other and back
		return t.Rate + (t.To-t.Rate)*wave, max(t.Rate, t.To)
	default:
		return t.Rate, t.Rate
	}
}

// chooseProcess chooses among the live processes. If the traffic is skewed, low slots come more
// often.
func (s *stream) chooseProcess() *process {
	if now := s.run.fleet.live.Load(); now != s.live {
		s.live, s.slots = now, newZipf(len(*now), s.what.ProcSkew)
	}
	if len(*s.live) == 0 {
		return nil
	}
	return (*s.live)[s.slots.draw(s.random)]
}

// request is what a stream asks for.
type request struct {
	limit int
	key   string
	cost  int64
	leave time.Duration // after it the caller is gone; 0 is never
	runs  time.Duration // with a place; 0 is at once, and without one
}

// request draws a request.
func (s *stream) request() request {
	q := request{limit: s.limit, key: s.keys(), cost: s.cost()}
	if s.what.Runs > 0 {
		q.runs = 1 + time.Duration(s.random.ExpFloat64()*float64(s.what.Runs))
	}
	return q
}

func (s *stream) cost() int64 {
	least := max(s.what.Cost, 1)
	if s.what.MaxCost <= least {
		return least
	}
	return least + s.random.Int64N(s.what.MaxCost-least+1)
}

// cancelAfter draws when the caller gives up; 0 means never.
func (s *stream) cancelAfter() time.Duration {
	if s.what.Cancel == 0 || s.random.Float64() >= s.what.Cancel {
		return 0
	}
	return 1 + time.Duration(s.random.Int64N(int64(time.Millisecond)))
}

// clients starts the statement's clients. Each waits for its answer before it asks again.
func (s *stream) clients(i int) {
	for c := range s.what.Clients {
		own := *s
		own.random = newRand(s.run.seed, fmt.Sprintf("traffic %d, client %d", i, c))
		own.keys = own.keyChooser(s.what.Keys, s.what.KeySkew, fmt.Sprintf("new %d-%d-", i, c))
		s.run.traffic.Go(own.client)
	}
}

// client makes the requests of one client.
func (s *stream) client() {
	r := s.run
	r.undecided.Add(1)
	defer r.undecided.Add(-1)
	for {
		if !s.pause(s.think()) {
			return
		}
		q := s.request()
		for try := 0; ; try++ {
			p := s.chooseProcess()
			if p == nil {
				break
			}
			q.leave = s.cancelAfter()
			d, heard := r.ask(p, q)
			if heard && d.Allowed || try >= s.what.Retry {
				break
			}
			// All clients that were refused may get the same time, and none comes back at that very
			// instant.
			again := max(d.RetryAfter, time.Duration(s.what.Think))
			if !s.pause(again + time.Duration(s.random.Int64N(int64(time.Millisecond)))) {
				return
			}
		}
	}
}

// clientTime is the mean time between an answer and the next request of a client that does not
// think: its network and the service itself. Without it an admitted client would ask again at the
// same instant, for ever.
const clientTime = time.Millisecond

// think draws the time until a client asks again.
func (s *stream) think() time.Duration {
	return time.Duration(s.random.ExpFloat64() * float64(clientTime+time.Duration(s.what.Think)))
}

// pause waits, and reports whether the run goes on then.
func (s *stream) pause(d time.Duration) bool {
	if at := s.run.at(); d > s.end-at {
		return false // also when d is for ever
	}
	time.Sleep(d)
	return true
}

// ask makes one request and returns its decision, when it has run. heard is false if the caller did
// not hear it. The caller counts in undecided, except while it waits for a process that stands
// still, and while it runs.
func (r *run) ask(p *process, q request) (d tiered.Decision, heard bool) {
	came := r.at()
	if p.pause.isShut() {
		r.undecided.Add(-1)
		p.pause.pass()
		r.undecided.Add(1)
	}
	if r.at()-came > callerTimeout || p.dead.Load() {
		return d, false
	}
	if q.runs == 0 {
		return r.decided(p, q)
	}
	p.running.Add(1)
	defer p.running.Add(-1)
	place, refused := r.enter(p, q)
	if place == nil {
		return refused, !p.dead.Load()
	}
	if d, heard = r.decided(p, q); d.Allowed {
		r.undecided.Add(-1)
		time.Sleep(q.runs + time.Duration(r.slower.Load()))
		p.pause.pass()
		r.undecided.Add(1)
	}
	if !p.dead.Load() {
		r.meter.Ended(r.at(), p.number, q.key)
		place.Release()
	}
	return d, heard
}

// enter takes a place for a request. Without one it returns what httplimit answers.
func (r *run) enter(p *process, q request) (*atonce.Place, tiered.Decision) {
	p.store.enter()
	began := r.at()
	place, err := p.places.Acquire(context.Background(), q.key)
	p.pause.pass()
	if at := r.at(); err == nil {
		r.meter.Took(at, p.number, q.limit, q.key, at-began)
	} else {
		r.meter.Took(at, p.number, q.limit, "", at-began)
	}
	return place, tiered.Decision{Reason: tiered.Limited, RetryAfter: time.Second}
}

// decided makes a request of its limit.
func (r *run) decided(p *process, q request) (d tiered.Decision, heard bool) {
	var own tiered.Limit
	if perKey := r.policies[q.limit].PerKey; perKey != nil {
		own = perKey(q.key)
	}
	asked := r.meter.Asked(r.at(), p.number, q.limit, q.key, q.cost, own)
	d = p.decide(q.limit, q.key, q.cost, q.leave)
	if p.dead.Load() {
		return d, false // the connection of the caller broke
	}
	r.meter.Decided(r.at(), asked, d)
	return d, true
}
