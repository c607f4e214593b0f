package shares

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"time"

	"github.com/tiered-limiter/tiered-limiter/internal/standing"
	"github.com/tiered-limiter/tiered-limiter/internal/test/proof/adversary"
	"github.com/tiered-limiter/tiered-limiter/internal/test/proof/ideal"
	"github.com/tiered-limiter/tiered-limiter/lua"
	"github.com/tiered-limiter/tiered-limiter/remote"
)

// epoch is the store's time at the start, µs since 1970.
const epoch = int64(1_763_640_000_000_000)

// world is a fleet, its table and its buckets. It is single-threaded and has no clock: what it does
// follows from its schedule alone.
type world struct {
	adversary.Journal

	rules Rules
	table *adversary.Store
	there bool             // the table was written
	keys  *adversary.Store // their buckets
	seed  uint64

	versions  []version // of the policy, which processes use
	parts     int64     // eighths of the limits that the shares have
	processes []*process
	windows   bool            // the limits are fixed windows
	ideals    [][]bounded     // of each key and limit: all that is admitted must fit in at the instant at which it happens
	phases    []int64         // of each key, where its windows begin
	refunds   []int64         // calls that refunded, of each key
	most      []standing.Rate // the largest of each limit

	now        time.Duration // real time since epoch
	offset     time.Duration // of the table's clock
	jumped     time.Duration // when it last jumped ahead
	polls      []*message
	replies    []*message
	started    int // processes so far
	ids        int
	admissions int
	over       float64
}

// bounded is what must admit all that is admitted of a key.
type bounded interface {
	Admit(at, n int64)
	Refund(at, n int64)
	Depth() float64 // what is used of its burst
}

// window is a fixed window of the buckets' clock.
type window struct {
	world        *world
	key          int
	number, used int64
}

func (x *window) Admit(_, n int64)  { x.goOn(); x.used += n }
func (x *window) Refund(_, n int64) { x.goOn(); x.used = max(x.used-n, 0) }
func (x *window) Depth() float64    { return float64(x.used) }

// goOn begins another window if the last one is over.
func (x *window) goOn() {
	if n := x.world.number(x.key); n != x.number {
		x.number, x.used = n, 0
	}
}

// version is a policy's limits, and the parts of them that the buckets and the shares have.
type version struct {
	rates, rests []standing.Rate
	shares       []standing.Limit
}

// split splits one of n limits into eighths.
func (v *version) split(rate standing.Rate, windows bool, n int, parts int64) (standing.Limit, standing.Rate, error) {
	if windows {
		l, rest := standing.SplitWindow(rate.Burst, rate.Per, parts)
		return l, standing.Rate{Burst: rest, Tokens: rest, Per: rate.Per}, nil
	}
	if n > 1 {
		return standing.SplitInPeriod(rate, parts)
	}
	return standing.Split(rate, parts)
}

// process is one of the fleet.
type process struct {
	shares *standing.Shares
	number int
	since  time.Duration // real time from which its clock runs as follows
	offset time.Duration // of its clock, then
	drift  int64         // of its clock, ‰

	hashes   []uint64          // of the keys
	limits   []standing.Limits // of each version
	current  []int             // the version of each key
	uses     []use             // the last that may be put back
	admitted []int64           // of each key, and not refunded
	member   string            // its id in the table, as last told
	epoch    int64             // of the table, as last told
}

// use is what was taken from the share of a key.
type use struct {
	standing.Use
	key    int
	window int64 // in which it was taken
}

// message is a poll on its way, or the reply.
type message struct {
	from  *process
	poll  lua.Poll
	reply lua.PollReply
	seen  int // copies that arrived
}

// maxMessages is how many messages are on their way in each direction. Beyond it the oldest is
// lost.
const maxMessages = 8

func newWorld(s Schedule, stores func() *adversary.Store) *world {
	r := rand.New(rand.NewPCG(s.Seed, 1<<40))
	w := &world{
		rules: s.Rules, seed: s.Seed, table: stores(), keys: stores(), now: time.Hour, jumped: -time.Hour,
	}
	w.draw(r)
	for range 1 + r.IntN(2) {
		var all []bounded
		for _, l := range w.most {
			if w.windows {
				all = append(all, &window{world: w, key: len(w.phases)})
				w.phases = append(w.phases, r.Int64N(l.Per.Microseconds()))
				continue
			}
			all = append(all, ideal.NewPolicer(l.Tokens, l.Per, l.Burst))
		}
		w.ideals, w.refunds = append(w.ideals, all), append(w.refunds, 0)
	}
	for range 2 + r.IntN(2) {
		w.processes = append(w.processes, w.start(r))
	}
	if r.IntN(8) > 0 {
		w.warm(r)
	}
	return w
}

// draw draws the limits: one, or two with periods by which Redis tells them apart; of each one to
// three versions.
func (w *world) draw(r *rand.Rand) {
	w.most = []standing.Rate{{Per: time.Second}}
	if r.IntN(3) == 0 {
		w.most = []standing.Rate{{Per: 8 * time.Second}, {Per: 32 * time.Second}}
	}
	if w.windows = !w.rules.Priced && w.seed%4 == 3; w.windows {
		w.most = []standing.Rate{{Per: time.Duration(1+r.Int64N(120)) * time.Second}}
	}
	w.parts = 1 + r.Int64N(lua.MostShared)
	for n := range 1 + r.IntN(3) {
		var v version
		for i := range w.most {
			most := &w.most[i]
			rate := standing.Rate{Burst: 1 + r.Int64N(39), Tokens: 1 + r.Int64N(8), Per: most.Per}
			rate.Tokens *= int64(most.Per / time.Second)
			if w.rules.Priced {
				rate.Tokens *= 8 // shares fill within seconds
			}
			if n > 0 && i > 0 { // only the first limit of several can change
				rate = w.versions[0].rates[i]
			}
			l, rest, err := v.split(rate, w.windows, len(w.most), w.parts)
			if err != nil {
				panic(err)
			}
			v.rates, v.rests, v.shares = append(v.rates, rate), append(v.rests, rest), append(v.shares, l)
			most.Burst, most.Tokens = max(most.Burst, rate.Burst), max(most.Tokens, rate.Tokens)
		}
		w.versions = append(w.versions, v)
	}
}

// start returns a new process.
func (w *world) start(r *rand.Rand) *process {
	w.started++
	p := &process{
		shares: new(standing.Shares), number: w.started,
		since: w.now, offset: time.Hour + time.Duration(r.Int64N(int64(time.Hour))),
		admitted: make([]int64, len(w.ideals)), current: make([]int, len(w.ideals)),
	}
	if w.rules.Drift {
		p.drift = r.Int64N(19) - 9
	}
	p.shares.Open(1)
	p.shares.OpenWindows(1)
	for k := range w.ideals {
		p.hashes = append(p.hashes, uint64(k)<<63)
		if w.seed%4 == 0 {
			p.hashes[k] = 0 // they meet in one place
		}
		p.current[k] = r.IntN(len(w.versions))
	}
	for _, v := range w.versions {
		p.limits = append(p.limits, p.shares.Begin(w.clock(p), v.shares...))
	}
	w.learn(p)
	return p
}

// learn has a process learn what the buckets' clock shows.
func (w *world) learn(p *process) {
	early := int64(w.now) % 3000
	p.shares.Clock(w.clock(p), w.server()-early, w.server()+3000-early)
}

// at is a moment of a process and a key.
func (w *world) at(p *process, k int) standing.At {
	at := standing.At{Now: w.clock(p)}
	if w.windows {
		t, length := p.shares.Times(at.Now), w.most[0].Per.Microseconds()
		at.Window = t.Window(t.From()-(t.From()-w.phases[k])%length, length)
	}
	return at
}

// clock reads a process' clock.
func (w *world) clock(p *process) time.Duration {
	d := w.now - p.since
	return p.offset + d + d/1000*time.Duration(p.drift)
}

// server reads the clock of the buckets, µs. The table's may be set.
func (w *world) server() int64 { return epoch + w.now.Microseconds() }

// warm goes on until every process has its part, and some time more.
func (w *world) warm(r *rand.Rand) {
	for range 24 {
		w.round()
		w.advance(3 * time.Second)
	}
	for range r.IntN(10) {
		w.round()
		w.advance(3 * time.Second)
	}
}

// advance lets time pass, in whole µs.
func (w *world) advance(d time.Duration) {
	w.now += max(d.Truncate(time.Microsecond), time.Microsecond)
}

// send has a process poll the table.
func (w *world) send(p *process) bool {
	poll, ok := p.shares.Poll(w.clock(p), func() string {
		w.ids++
		return strconv.Itoa(w.ids)
	})
	if !ok {
		return false
	}
	p.member, p.epoch = poll.Member, poll.Epoch
	w.polls = adversary.Under(w.polls, &message{from: p, poll: poll}, maxMessages)
	w.Logf("%d polls: %+v", p.number, poll)
	return true
}

// execute has a poll arrive at the table.
func (w *world) execute(m *message) {
	poll := m.poll
	poll.Now = w.server() + w.offset.Microseconds()
	c, err := w.table.Calls.Presence(context.Background(), 10*time.Second, w.table.Calls.TableNode(), remote.Process{
		ID: "fleet", TTL: time.Minute, Poll: poll,
	})
	if err == nil {
		err = c.Poll.Err
	}
	if err != nil {
		w.Failf("the script refuses %+v: %v", poll, err)
		return
	}
	w.there = w.there || c.Poll.Reply.Code == lua.PollDone
	w.replies = adversary.Under(w.replies, &message{from: m.from, poll: m.poll, reply: c.Poll.Reply}, maxMessages)
	w.Logf("poll %s %d executed: %+v", m.poll.Member, m.poll.Seq, c.Poll.Reply)
}

// deliver has a reply arrive.
func (w *world) deliver(m *message) {
	w.learn(m.from)
	m.from.shares.Accept(w.clock(m.from), m.poll.Member, m.poll.Seq, m.reply)
	w.Logf("%d hears of %d: %+v", m.from.number, m.poll.Seq, m.from.shares.State(w.clock(m.from)))
}

// poll is a poll that nothing happens to.
func (w *world) poll(p *process) {
	if w.send(p) {
		last := len(w.polls) - 1
		m := w.polls[last]
		w.polls = w.polls[:last]
		w.execute(m)
		if w.Fault != "" {
			return
		}
		last = len(w.replies) - 1
		w.deliver(w.replies[last])
		w.replies = w.replies[:last]
	}
}

// round has all processes poll.
func (w *world) round() {
	for _, p := range w.processes {
		w.poll(p)
	}
}

// take takes n tokens from a share of a key.
func (w *world) take(p *process, k int, n int64) bool {
	var u standing.Use
	if _, ok := p.shares.Take(w.at(p, k), p.hashes[k], p.limits[p.current[k]], n, &u); !ok {
		return false
	}
	if p.uses = append(p.uses, use{u, k, w.number(k)}); len(p.uses) > 4 {
		p.uses = p.uses[1:]
	}
	p.admitted[k] += n
	w.admit(k, n, "a share of process "+strconv.Itoa(p.number))
	return true
}

// drain takes all that a share of a key has.
func (w *world) drain(p *process, k int) {
	if n := p.shares.Level(w.at(p, k), p.hashes[k], p.limits[p.current[k]]); n > 0 && !w.take(p, k, n) {
		w.Failf("a share that has %d tokens refuses them", n)
	}
}

// putBack puts up to n tokens of one of the last takes back.
func (w *world) putBack(p *process, r *rand.Rand) bool {
	if len(p.uses) == 0 {
		return false
	}
	i := r.IntN(len(p.uses))
	u := p.uses[i]
	n := min(1+r.Int64N(3), p.admitted[u.key])
	if n == 0 || !p.shares.Return(p.hashes[u.key], u.Use, n) {
		return false
	}
	p.uses = append(p.uses[:i:i], p.uses[i+1:]...)
	p.admitted[u.key] -= n
	if u.window == w.number(u.key) {
		w.give(u.key, n)
	}
	return true
}

// number is that of the window of a key, 0 for a bucket.
func (w *world) number(k int) int64 {
	if !w.windows {
		return 0
	}
	return (w.server() - w.phases[k]) / w.most[0].Per.Microseconds()
}

// bucketCall returns a call of a key's bucket by a version of the policy.
func (w *world) bucketCall(k, version int) lua.Call {
	return w.callOf(k, w.versions[version].rests)
}

// callOf returns a call of a key's bucket with limits.
func (w *world) callOf(k int, limits []standing.Rate) lua.Call {
	c := lua.Call{
		Bucket: w.bucket(k), Algorithm: lua.TokenBucket, Cap: limits[0].Burst, Tokens: limits[0].Tokens,
		Period: limits[0].Per.Microseconds(), TTL: time.Second.Microseconds(), Fleet: 1, Now: w.server(),
	}
	if w.windows {
		c.Algorithm, c.Tokens, c.Phase = lua.FixedWindow, c.Cap, w.phases[k]
	}
	for _, l := range limits[1:] {
		c.Algorithm = lua.TokenBuckets
		c.Also = append(c.Also, lua.Limit{Cap: l.Burst, Tokens: l.Tokens, Period: l.Per.Microseconds()})
	}
	return c
}

func (w *world) bucket(k int) string { return fmt.Sprintf("{k%d}tb2", k) }

// run executes a call of a bucket.
func (w *world) run(c lua.Call) lua.Reply {
	r, err := w.keys.Run(c)
	if err != nil {
		w.Failf("the script refuses %+v: %v", c, err)
	}
	return r
}

// direct takes up to n tokens from the bucket of a key.
func (w *world) direct(k, version int, n int64) {
	c := w.bucketCall(k, version)
	c.Want, c.Min = min(n, c.LeastCap()), 1
	if got := w.run(c).Grant; got > 0 {
		w.admit(k, got, "the bucket")
	}
}

// refund gives n tokens that a share admitted back to the bucket, as a late Cancel does.
func (w *world) refund(p *process, k int, n int64) bool {
	if n = min(n, p.admitted[k]); n == 0 || w.windows { // a window takes a refund only of what it counted
		return false
	}
	w.refunds[k]++
	c := w.bucketCall(k, p.current[k])
	c.Lease, c.Seq, c.Ack, c.Refund, c.Deadline = "r", w.refunds[k], w.refunds[k]-1, n, c.Now+c.TTL
	w.run(c)
	p.admitted[k] -= n
	w.give(k, n)
	return true
}

// replace ends a process, and another one takes its place.
func (w *world) replace(i int, r *rand.Rand) { w.processes[i] = w.start(r) }

// forget has the store lose the table.
func (w *world) forget() {
	w.table.Remove(w.table.Table)
	w.there = false
}

// end leaves nothing behind in the stores.
func (w *world) end() {
	w.forget()
	for k := range w.ideals {
		w.keys.Remove(w.bucket(k))
	}
}
