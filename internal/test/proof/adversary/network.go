package adversary

import (
	"context"
	"fmt"
	"maps"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/tiered-limiter/tiered-limiter/internal/test/proof/invariant"
	"github.com/tiered-limiter/tiered-limiter/local"
	"github.com/tiered-limiter/tiered-limiter/lua"
	"github.com/tiered-limiter/tiered-limiter/remote"
)

// request is a call on its way to the server.
type request struct {
	process *process
	bucket  *bucket
	call    local.Call
	direct  bool // its grant is for the waiters, and no lease

	repeated int
	givenUp  bool          // by its process: the reply is not wanted
	ignored  bool          // it arrives without effect
	granted  int64         // to its lease, by an execution: may still be accepted
	expires  time.Duration // from then on its grant has ended before it arrives
	refunds  []refund      // canceled tokens among those that it returns
	credited bool
	sent     time.Duration // by its process' clock
	charged  int64         // debt, with that of the unanswered calls before it
}

// reply is an answer on its way back.
type reply struct {
	to       *request
	answer   lua.Reply
	event    int // of the admissions: when it was executed
	repeated int
}

// refund is tokens that were admitted at an event and are to be returned.
type refund struct {
	event int
	n     int64
}

// newest returns the last of the refunds, up to most tokens. The rest is burnt.
func newest(all []refund, most int64) (kept []refund) {
	for i := len(all) - 1; i >= 0 && most > 0; i-- {
		n := min(all[i].n, most)
		kept = append(kept, refund{all[i].event, n})
		most -= n
	}
	return kept
}

// request puts a call into the network.
func (w *World) request(b *bucket, c local.Call) *request {
	p := b.process
	r := &request{process: p, bucket: b, call: c, direct: c.Direct || c.Unleased, sent: p.now()}
	if c.Refund > c.Given {
		r.refunds, b.refunding = newest(b.refunding, c.Refund-c.Given), nil
	}
	w.requests = Under(w.requests, r, maxMessages)
	w.Logf("%s sends %d: want %d min %d ack %d hold %d ret %d refund %d debt %d owed %d direct %t to %d ttl %v, wanted for %v",
		p.id, c.Seq, c.Want, c.Min, c.Ack, c.Hold, c.Ret, c.Refund, c.Debt, c.Owed, c.Direct, c.To,
		time.Duration(c.TTL)*time.Microsecond, time.Duration(c.Deadline-w.server())*time.Microsecond)
	return r
}

// maxMessages bounds the messages under way in each direction; beyond it the oldest is lost.
const maxMessages = 6

// resets reports whether the call fills the bucket: it says so, or it gives more to a single bucket
// than there can be.
func (r *request) resets() bool {
	return r.call.Reset > 0 || r.call.Algorithm == lua.TokenBucket && r.call.Given > r.call.Cap+max(r.call.Cap, r.call.MaxDebt)
}

// newCall returns a call of a policy.
func (w *World) newCall(p *local.Policy) lua.Call {
	c := p.Call
	c.Bucket = w.bucket
	return c
}

// exchange has the server execute a call now, by its clock.
func (w *World) exchange(c lua.Call) lua.Reply {
	c.Now = w.server()
	if w.keyEnd > 0 && c.Now/1000 > w.keyEnd {
		w.lose() // it expired
	}
	w.updateSegment()
	w.calls++
	answer, err := w.store.Run(c)
	if err != nil {
		w.Failf("the script refuses %+v: %v", c, err)
		return answer
	}
	s, err := w.store.state(w.scope.Algorithm, w.bucket)
	if err != nil {
		w.Failf("the bucket is damaged: %v", err)
	}
	wrote := s.Exists && (s.pttl > w.state.pttl || !maps.Equal(s.fields, w.state.fields))
	before := w.state
	w.state = s
	w.trackVersions()
	if wrote {
		w.keyEnd = c.Now/1000 + s.pttl
		w.written = w.segment
		w.window = w.blockOf(w.limits[0], s.Last)
	}
	own, owned := before.Records[c.Lease]
	w.rule.executed(w, &invariant.Exchange{
		Call: &c, Reply: &answer, Before: &before.Bucket, After: &s.Bucket, Own: own, Owned: owned, Conceded: w.damaged,
	})
	return answer
}

// execute delivers a request to the server.
func (w *World) execute(r *request) {
	if r.ignored {
		return
	}
	before := w.state.Records[r.call.Lease]
	answer := w.exchange(r.call.Call)
	w.Logf("%s %d executed: %+v, %v", r.process.id, r.call.Seq, answer, w.state.fields)
	done := answer.Code == lua.Granted || answer.Code == lua.Denied
	w.toldInTime(&r.call.Call, &answer)
	if done && answer.Flags&lua.Adopted != 0 && w.scope.Lossless {
		w.Failf("%s: what it holds was not on record, though nothing was lost", r.process.id)
	}
	if done && !r.call.Direct {
		r.process.charge(r)
	}
	if done && r.call.Debt > 0 && !r.resets() && w.forgotten == 0 && (before.Debt == 0 || r.call.Ack >= before.Seq) &&
		!w.damaged {
		w.rule.debtCharged(w, r)
	}
	dated := r.call.Deadline > 0 && r.call.Deadline <= w.server()+r.call.TTL
	if told := answer.Flags&lua.Unapplied != 0; done && !told && !dated && r.call.Refund+r.call.Reset > 0 {
		w.Failf("%s %d: what it gives back did not count, and the reply does not say so", r.process.id, r.call.Seq)
	} else if told && done && dated && !w.scope.windows() {
		w.Failf("%s %d: what it gives back counted, and the reply says otherwise", r.process.id, r.call.Seq)
	}
	// A fixed window forgets the record of a call when its clock is set back: the network's copy
	// counts once more. That is the price that docs/internals/proof.md names.
	again := w.setBacks > 0 && w.scope.Algorithm == lua.FixedWindow
	if done && dated && (!r.credited || again) {
		switch {
		case r.resets():
			r.credited = true
			w.concedeUncovered()
			w.rule.reset(w, r)
		case r.call.Refund > 0:
			r.credited = true
			w.credited += r.call.Refund - r.call.Given
			w.rule.refund(w, r, answer.Flags)
		}
	}
	if answer.Code == lua.Granted || answer.Code == lua.Replay {
		if r.direct {
			w.undelivered += answer.Grant
		} else if answer.Grant > 0 { // an answer without tokens prolongs no other one's
			r.granted = max(r.granted, answer.Grant)
			left := time.Duration(min(r.call.TTL, answer.TTLLeft)) * time.Microsecond
			r.expires = max(r.expires, r.sent+left-left/100)
		}
	}
	w.replies = Under(w.replies, &reply{to: r, answer: answer, event: w.newEvent()}, maxMessages)
}

// flow sends everything that is due, executes it in order, and delivers the replies.
func (w *World) flow() {
	for _, p := range w.processes {
		for _, b := range append([]*bucket(nil), p.buckets...) {
			if b.queued {
				b.send()
			}
		}
	}
	for ; len(w.requests) > 0; w.requests = w.requests[1:] {
		w.execute(w.requests[0])
	}
	for ; len(w.replies) > 0; w.replies = w.replies[1:] {
		w.replies[0].to.process.deliver(w.replies[0])
	}
}

// outsider takes n tokens directly, or none; 0 takes all there are.
func (w *World) outsider(n int64) {
	c := w.newCall(w.policies[0])
	c.Want, c.Min = n, n
	switch {
	case n == 0:
		c.Want, c.Min = c.Cap, 1
	case n > c.Cap:
		return
	}
	answer := w.exchange(c)
	w.Logf("an outsider asked for %d: %+v, %v", n, answer, w.state.fields)
	w.admit(w.newEvent(), answer.Grant)
	w.takenByOutsiders += answer.Grant
}

// deliver delivers a reply. The bucket has to know by itself whether it still wants it.
func (p *process) deliver(r *reply) {
	w, b := p.world, r.to.bucket
	if w == nil {
		return // the process is dead
	}
	p.clockKnown = true
	wanted := b.call == r.to && !r.to.givenUp
	pot, _ := b.Bucket.Peek(p.now())
	seq, a := r.to.call.Seq, r.answer
	switch a.Code {
	case lua.Granted, lua.Denied, lua.Replay:
		effect, accepted := b.Accept(p.now(), seq, a)
		if accepted != wanted {
			w.Failf("%s: reply to %d: accepted %t, wanted %t", p.id, seq, accepted, wanted)
		}
		if accepted {
			p.accepted(b, r)
			b.outgrown(r.to.call.Policy)
		}
		spent := b.spent
		b.collect(r)
		if accepted && r.to.direct {
			left, _ := b.Bucket.Peek(p.now())
			b.direct(r, b.spent-spent, pot-left)
		}
		b.apply(effect)
	case lua.Late:
		if wanted {
			p.clockError = 0 // its clock is corrected
			b.failed()       // the first time it is sent again
		}
		b.apply(b.Late(p.now(), seq, a.Stamp))
	default:
		if wanted {
			b.failed()
		}
		b.apply(b.Fail(p.now(), seq, false))
	}
	b.collect(nil)
	w.Logf("%s hears of %d, wanted %t", p.id, seq, wanted)
}

// direct records when the tokens count that a direct take's reply brought the waiters: what it
// granted, when it was executed; what came out of the pot, now. Its grant for a waiter that has
// left is returned. Like every token that is returned, it counts as admitted until then.
func (b *bucket) direct(r *reply, admitted, ofPot int64) {
	w := b.process.world
	w.admit(r.event, r.answer.Grant)
	if left := r.answer.Grant - (admitted - ofPot); left > 0 {
		b.refunding = append(b.refunding, refund{r.event, left})
	}
	w.admit(w.newEvent(), ofPot)
}

// charge records that a call was executed, with the debt that it reports. Debt of unanswered calls
// before it counts towards that. Debt that is reported no more, because its bucket gave it up,
// stays charged.
func (p *process) charge(r *request) {
	charged := int64(0)
	if last := p.unanswered; last != nil && r.call.Ack < last.call.Seq {
		charged = last.charged
	} else if last != nil {
		p.writtenOff += last.charged
	}
	r.charged = max(charged, r.call.Debt)
	p.unanswered = r
}

// accepted records an accepted reply.
func (p *process) accepted(b *bucket, r *reply) {
	w := p.world
	b.call = nil
	if r.to.call.Lease != "" {
		b.calls.Accepts()
	}
	b.granted += r.answer.Grant
	if r.to.direct {
		w.undelivered -= r.answer.Grant
	}
	if p.unanswered == r.to {
		p.writtenOff += r.to.charged - r.to.call.Debt
		p.unanswered = nil
	}
	if r.to.credited && !r.to.resets() {
		w.credited -= r.to.call.Refund - r.to.call.Given
	}
	if p.stale != nil && !r.to.direct {
		p.stale.event = max(p.stale.event, r.event) // these tokens were out from then on
	}
}

// table is the name of the table of standing shares in a store without a prefix.
const table = "{~0}st1"

// Store is where the bucket lives: a store whose contents can be read and removed.
type Store struct {
	Calls  remote.Store
	Table  string // the name of the table of standing shares
	Read   func(name string) (fields map[string]string, pttl int64)
	Remove func(name string)
	Copy   func() *Store // nil if there is no replica
	Stands bool          // its own clock stands still: what is left of a key's time is exact
}

// OnMemory returns a store in memory.
func OnMemory() *Store { return onMemory(remote.NewMemory()) }

func onMemory(m *remote.Memory) *Store {
	return &Store{
		Copy:   func() *Store { return onMemory(m.Clone()) },
		Calls:  m,
		Table:  table,
		Read:   func(bucket string) (map[string]string, int64) { return m.Fields(bucket), m.PTTL(bucket) },
		Remove: m.Del,
		Stands: true, // in a bubble
	}
}

// OnRedis returns a store on a server, or on miniredis. The shipped code loads and runs the
// scripts.
func OnRedis(client *redis.Client) *Store {
	ctx := context.Background()
	return &Store{
		Calls: remote.NewRedis(client, nil),
		Table: "tl:" + table, // buckets are named by the worlds, and the table by the store
		Read: func(bucket string) (map[string]string, int64) {
			p := client.Pipeline()
			fields, pttl := p.HGetAll(ctx, bucket), p.Do(ctx, "PTTL", bucket)
			_, _ = p.Exec(ctx)
			ms, err := pttl.Int64()
			if err != nil || fields.Err() != nil {
				panic(fmt.Sprintf("adversary: no look at the bucket: %v, %v", err, fields.Err()))
			}
			return fields.Val(), ms
		},
		Remove: func(bucket string) {
			if err := client.Del(ctx, bucket).Err(); err != nil {
				panic(fmt.Sprintf("adversary: DEL: %v", err))
			}
		},
	}
}

// Run executes one call. The network is ours, so an error is either the script's or a broken test.
func (b *Store) Run(c lua.Call) (lua.Reply, error) {
	var r [1]remote.Result
	b.Calls.Run(context.Background(), 10*time.Second, []lua.Call{c}, r[:])
	return r[0].Reply, r[0].Err
}

// state is what a bucket stores.
type state struct {
	invariant.Bucket
	fields map[string]string
	pttl   int64 // ms
}

// integer reads a field that is a whole number, 0 if there is none.
func (s *state) integer(field string) (n int64, err error) {
	if v := s.fields[field]; v != "" {
		if n, err = strconv.ParseInt(v, 10, 64); err != nil {
			err = fmt.Errorf("field %s is %q", field, v)
		}
	}
	return n, err
}

func (b *Store) state(a lua.Algorithm, bucket string) (s state, err error) {
	s.fields, s.pttl = b.Read(bucket)
	left := invariant.Unseen
	if b.Stands {
		left = time.Duration(s.pttl) * time.Millisecond
	}
	s.Bucket, err = invariant.Parse(a, s.fields, left)
	return s, err
}
