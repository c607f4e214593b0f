package legal

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"time"

	"github.com/tiered-limiter/tiered-limiter/lua"
	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
	"github.com/tiered-limiter/tiered-limiter/tiered/atonce"
	"github.com/tiered-limiter/tiered-limiter/tiered/httplimit"
)

// What runs at the same time, beside the rate limits: a request takes its place first, as in
// httplimit, and gives it back if the rate limit refuses.

// placing gives a plan a policy of what runs at the same time.
func (d *drawer) placing(p *Plan) {
	p.AtOnce = atonce.Policy{
		Name: "places", Places: 1 + d.IntN(4), Life: pick(d, second, 2*second, 10*second),
		FailMode: pick(d, tiered.FailClosed, tiered.FailClosed, tiered.FailClosed, tiered.FailLocal, tiered.FailOpen),
	}
	if d.one(2) {
		return
	}
	// A plan of little else: processes that are in each other's way, and all that disturbs them.
	p.only(p.Class, tiered.Policy{Limit: tiered.PerSecond(pick(d, int64(5), 100, 1000)), FailMode: tiered.FailClosed})
	p.Processes, p.Repeats, p.AtOnce.FailMode = 2+d.IntN(2), p.Class != Calm && d.one(2), tiered.FailClosed
	about := []Verb{Restart, Crash, Forget, Back, Lossy, Slow, Repeat, Down, Well, Well}
	for range 10 + d.IntN(30) {
		s := d.step(p)
		for !slices.Contains(about, s.Verb) {
			s = d.step(p)
		}
		s.After, s.Limit = pick(d, 0, 20*ms, 300*ms, 1500*ms), tiered.Limit{}
		p.Steps = append(append(p.Steps, s), d.enters(p)...)
	}
}

// enters draws requests of some processes that need a place and a token.
func (d *drawer) enters(p *Plan) (scene []Step) {
	key := d.IntN(keys)
	for range 1 + d.IntN(4) {
		scene = append(scene, Step{
			Verb: Enter, Who: d.IntN(p.Processes), Which: d.IntN(len(p.Policies)), Key: key, N: 1 + d.IntN(8),
			After: pick(d, 0, 0, 3*ms, 30*ms, 300*ms, 1500*ms), Pause: pick(d, 0, ms, 20*ms, 20*ms, 200*ms, 3*second),
		})
	}
	return scene
}

// entry is a request that has a place. It counts until its process has not been heard of for a
// life, or is killed.
type entry struct {
	by    *process
	until time.Duration
}

// places is what a process knows of its places.
type places struct {
	*atonce.Limiter
	limit func(http.Handler) http.Handler
	until [keys]time.Duration // until then the last executed claim counts; guarded by player.mu
}

// newPlaces starts the places of a process, if the plan has any.
func (p *process) newPlaces() (err error) {
	policy := p.player.plan.AtOnce
	if policy.Places == 0 {
		return nil
	}
	if p.places.Limiter, err = atonce.New(p.group, policy); err != nil {
		return err
	}
	p.places.limit, err = httplimit.New([]httplimit.Rule{
		{AtOnce: p.places.Limiter, Key: httplimit.Header("Key"), Missing: httplimit.Refuse},
	}, nil)
	return err
}

// enter makes N requests that run for Pause, while the next steps are played.
func (p *process) enter(s *Step) {
	w := p.player
	for range s.N {
		w.meanwhile(func(lane time.Duration) {
			decided := make(chan struct{})
			w.background(func() { p.request(lane, s, decided) }) // it may outlive its process
			<-decided
		})
	}
}

// request takes a place, asks the rate limit, and runs. decided is closed when it runs, or is
// refused.
func (p *process) request(lane time.Duration, s *Step, decided chan struct{}) {
	w, key := p.player, s.Key
	entered := false
	h := p.places.limit(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		entered = true
		e := w.begin(p, key)
		d := p.ask(lane, s.Which, key, 1, true, tiered.Limit{})
		close(decided)
		if d.Allowed {
			time.Sleep(s.Pause)
		}
		w.enter(lane)
		w.mu.Lock()
		delete(w.entries[key], e)
		w.mu.Unlock()
	}))
	r, answer := httptest.NewRequest(http.MethodGet, "/", nil), httptest.NewRecorder()
	r.Header.Set("Key", keyName(key))
	before := w.enter(lane)
	h.ServeHTTP(answer, r)
	if entered {
		return
	}
	if took := w.now() - before; took > w.plan.Options.Budget && !w.plan.Real {
		w.faultf("late", "a place was refused after %v", took)
	}
	if answer.Code != http.StatusTooManyRequests && w.plan.Class == Calm && !w.plan.Real {
		w.faultf("health", "a place was refused with %d, and nothing is wrong", answer.Code)
	}
	time.Sleep(lane) // as after an answer of a rate limit
	close(decided)
}

// begin records that a request runs, and judges how many do.
func (w *player) begin(p *process, key int) *entry {
	w.mu.Lock()
	defer w.mu.Unlock()
	e, now, running := &entry{p, p.places.until[key]}, w.now(), 0
	if w.entries == nil {
		w.entries = map[int]map[*entry]bool{}
	}
	if w.entries[key] == nil {
		w.entries[key] = map[*entry]bool{}
	}
	w.entries[key][e] = true
	for o := range w.entries[key] {
		if now < o.until && !o.by.isDead() {
			running++
		}
	}
	w.line("key %d: process %d enters, %d run", key, p.slot, running)
	// What a fail mode lets run is not promised.
	if w.plan.AtOnce.FailMode == tiered.FailClosed && running > w.plan.AtOnce.Places && !w.ahead && !w.plan.Real {
		w.fault("places", "key %d: %d run of %d places", key, running, w.plan.AtOnce.Places)
	}
	return e
}

func (p *process) isDead() bool {
	p.wire.mu.Lock()
	defer p.wire.mu.Unlock()
	return p.wire.dead
}

// claimed records which claims the store has executed. What a process has counts for a life from
// when the claim left, unless that was over before.
func (w *player) claimed(from *wire, sent time.Duration, c *lua.Claims, results []remote.ClaimResult) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for i, one := range c.Each {
		r := results[i]
		w.line("%s seq %d hold %d want %d: %+v %v", one.Bucket, one.Seq, one.Hold, one.Want, r.Reply, r.Err)
		if r.Err != nil {
			if !w.plan.Real {
				w.fault("health", "at %v the store refuses %+v: %v", w.now(), one, r.Err)
			}
			continue
		}
		if r.Reply.Code != lua.ClaimDone || one.Seq == 0 {
			continue
		}
		until := sent + w.plan.AtOnce.Life
		for key := range keys {
			if one.Bucket != from.PlacesName(w.plan.AtOnce.Name, keyName(key)) {
				continue
			}
			from.process.places.until[key] = max(from.process.places.until[key], until)
			for e := range w.entries[key] {
				if e.by == from.process && w.now() < e.until {
					e.until = max(e.until, until)
				}
			}
		}
	}
}

// Claim is a round trip, as Run is.
func (w *wire) Claim(_ context.Context, timeout time.Duration, c *lua.Claims, results []remote.ClaimResult) {
	n, dead := w.state()
	sent, lane := w.player.now(), w.laneAt(w.Node(c.Each[0].Bucket))
	dice := func(what uint64) uint64 {
		return mix(w.salt, 8, hashText(c.Each[0].Bucket), uint64(c.Each[0].Seq), what)
	}
	fails := func(err error) {
		for i := range c.Each {
			results[i] = remote.ClaimResult{Err: err}
		}
	}
	switch {
	case dead:
		fails(errDead)
		return
	case n.down && !n.hangs:
		w.arrive(lane, w.player.plan.Trip)
		fails(io.EOF)
		return
	}
	there, back := w.way(n, dice(1)), w.way(n, dice(2))
	lost := func(what uint64) bool { return int(dice(what)%100) < n.loss }
	done := make(chan []remote.ClaimResult, 1)
	execute := func() []remote.ClaimResult {
		if n, dead := w.state(); n.down || dead {
			return nil
		}
		w.tick()
		answers := make([]remote.ClaimResult, len(c.Each))
		w.Store.Claim(context.Background(), 10*second, c, answers)
		w.player.claimed(w, sent, c, answers)
		return answers
	}
	w.player.background(func() {
		if n.down || lost(3) {
			return
		}
		w.arrive(lane, there)
		answers := execute()
		if n.repeat && dice(4)%2 == 0 {
			w.player.background(func() {
				w.arrive(lane, time.Duration(dice(5)%uint64(2*second)))
				execute()
			})
		}
		if !lost(6) && answers != nil {
			time.Sleep(back)
			w.player.enter(lane - 40)
			done <- answers
		}
	})
	timer := time.NewTimer(timeout + time.Duration(1+dice(7)%1000))
	defer timer.Stop()
	select {
	case answers := <-done:
		copy(results, answers)
	case <-timer.C:
		fails(context.DeadlineExceeded)
	}
}

// checkPlaces checks in the end that each process in turn gets all places of each key, and that
// nothing runs. Before, those of killed processes may be missing for a life.
func (w *player) checkPlaces() {
	if w.plan.AtOnce.Places == 0 || w.plan.Real {
		return
	}
	for key := range keys { // after a clock was set back, a life begins with the first call
		w.enter(0)
		place, _ := w.slots[0].places.Acquire(context.Background(), keyName(key))
		place.Release()
	}
	time.Sleep(w.plan.AtOnce.Life + second)
	for _, p := range w.slots {
		if s := p.places.Stats(); s.Running != 0 {
			w.faultf("places", "process %d has %d places, and nothing runs", p.slot, s.Running)
		}
		for key := range keys {
			w.enter(0)
			ctx, cancel := context.WithTimeout(context.Background(), 100*ms+8*w.plan.Trip)
			place, err := p.places.For(keyName(key)).N(w.plan.AtOnce.Places).Wait(ctx)
			cancel()
			if err != nil {
				u, _ := p.places.Peek(context.Background(), keyName(key))
				w.faultf("places", "key %d: process %d does not get all places: %v; Redis knows of %d", key, p.slot, err, u.Running)
			}
			place.Release()
		}
	}
}
