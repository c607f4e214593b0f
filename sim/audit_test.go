package sim

import (
	"context"
	"maps"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tiered-limiter/tiered-limiter/internal/invariant"
	"github.com/tiered-limiter/tiered-limiter/local"
	"github.com/tiered-limiter/tiered-limiter/lua"
	"github.com/tiered-limiter/tiered-limiter/remote"
)

// rig is a Memory that an auditor watches, one process of it, and what lies about either.
type rig struct {
	*audit
	memory *remote.Memory
	bucket *local.Bucket
	base   time.Time
	seq    int64
	lies   map[string]string // fields that are not as they are stored
}

func newRig(t *testing.T) *rig {
	r := &rig{
		audit: newAudit(time.Now(), 0), memory: remote.NewMemory(), bucket: new(local.Bucket), base: time.Now(),
		lies: map[string]string{},
	}
	r.bucket.Init(&local.Policy{
		Cap: 100, Tokens: 10, Per: time.Second, NanosPerToken: 1e8,
		Timeout: 50 * time.Millisecond, Uniform: func() float64 { return 0.5 },
	}, "k")
	t.Cleanup(func() {
		if err := r.memory.Close(); err != nil {
			t.Error(err)
		}
	})
	return r
}

// values are those of the Memory, but for the lies.
func (r *rig) someFields(bucket string, fields ...string) []string {
	v := r.memory.Values(bucket, fields...)
	for i, f := range fields {
		if lie, ok := r.lies[f]; ok && len(v) > 0 {
			v[i] = lie
		}
	}
	return v
}

func (r *rig) allFields(bucket string) map[string]string {
	all := r.memory.Fields(bucket)
	maps.Copy(all, r.lies)
	return all
}

// left is the Memory's, but for a lie in ms.
func (r *rig) ttl(bucket string) time.Duration {
	ms := r.memory.PTTL(bucket)
	if lie, ok := r.lies["ttl"]; ok {
		ms, _ = strconv.ParseInt(lie, 10, 64)
	}
	return time.Duration(ms) * time.Millisecond
}

// call is the next one of process 1.
func (r *rig) call(want, ack, hold, ret int64) *lua.Call {
	r.seq++
	return &lua.Call{
		Bucket: "b", Cap: 100, Tokens: 10, Period: 1e6, Want: want, Min: min(want, 1), TTL: 1e6, Fleet: 1,
		Lease: "one", Seq: r.seq, Ack: ack, Hold: hold, Ret: ret, Deadline: r.clock() + 50_000,
	}
}

func (r *rig) clock() int64 { return time.Now().UnixMicro() }

// run executes a call, if do is nil as the Memory does.
func (r *rig) run(c *lua.Call, change func(*lua.Reply)) {
	r.execute(r, 1, c, func() (lua.Reply, bool) {
		var res [1]remote.Result
		r.memory.Run(context.Background(), 0, []lua.Call{*c}, res[:])
		if change != nil {
			change(&res[0].Reply)
		}
		return res[0].Reply, res[0].Err == nil
	})
}

// What Redis makes of a call is held against the rules: each lie about it is seen, and the truth is not called one.
func TestAuditSeesRedis(t *testing.T) {
	tell := func(field, lie string) func(r *rig, c *lua.Call) {
		return func(r *rig, c *lua.Call) { r.lies[field] = lie; r.run(c, nil) }
	}
	for _, c := range []struct {
		rule string // a part of what is said, empty for nothing
		do   func(r *rig, c *lua.Call)
	}{
		{"", func(r *rig, c *lua.Call) { r.run(c, nil) }},
		{"the level is not", tell("l", "51.5")},
		{"the level is not", tell("l", "49.4")},
		{"the escrow is not", tell("o", "69")},
		{"the overflow is not", tell("s", "6144")},
		{"a bucket's time", tell("z", "1000")},
		{"does not know the limit", tell("r", "100/11/1000000")},
		{"damaged", tell("r", "100/10")},
		{"does not cover", tell("pone", "2|20|49|20|946684801500000|0")},
		{"is not on record", tell("pone", "1|20|50|20|946684801500000|0")},
		{"does not end one ttl", tell("pone", "2|20|50|20|946684801500001|0")},
		{"the charge differs", tell("pone", "2|20|50|20|946684801500000|1")},
		{"damaged", tell("pone", "2|20")},
		{"damaged", tell("l", "many")},
		{"not written", func(r *rig, c *lua.Call) {
			r.execute(nowhere{}, 1, c, func() (lua.Reply, bool) {
				return lua.Reply{Code: lua.Granted, Grant: 20, Now: r.clock()}, true
			})
		}},
		{"after its deadline", func(r *rig, c *lua.Call) { r.run(c, func(*lua.Reply) { c.Deadline = r.clock() }) }},
		{"late before its deadline", func(r *rig, c *lua.Call) { r.run(c, func(x *lua.Reply) { x.Code = lua.Late }) }},
		{"stale", func(r *rig, c *lua.Call) { r.run(c, func(x *lua.Reply) { x.Code = lua.Stale }) }},
		{"after a newer", func(r *rig, c *lua.Call) { r.run(c, func(x *lua.Reply) { c.Seq = 1 }) }},
		{"does not cover", func(r *rig, c *lua.Call) { r.run(c, func(x *lua.Reply) { x.Grant = 19 }) }},
		{"than the least", func(r *rig, c *lua.Call) {
			r.grants(c, 5)
			r.run(c,
				func(x *lua.Reply) { x.Grant, c.Min = 5, 10 })
		}},
		{"than there was", func(r *rig, c *lua.Call) {
			c.Want = 90
			r.grants(c, 90)
			r.run(c, func(x *lua.Reply) { x.Grant = 90 })
		}},
		{"denied what", func(r *rig, c *lua.Call) {
			r.grants(c, 0)
			r.run(c, func(x *lua.Reply) { x.Code, x.Grant = lua.Denied, 0 })
		}},
		{"forgotten before", func(r *rig, c *lua.Call) { r.memory.Del("b"); r.run(c, nil) }},
		{"", func(r *rig, c *lua.Call) { r.memory.Del("b"); r.storeLost(); r.run(c, nil) }},
		{"", func(r *rig, c *lua.Call) { r.memory.Step(-time.Hour); c.Deadline -= 3600_000_000; r.run(c, nil) }},
		// A glance writes nothing: the lease that is over is on record as before, and its room fills from its end on.
		{"", func(r *rig, c *lua.Call) {
			time.Sleep(600 * time.Millisecond)
			r.run(&lua.Call{Bucket: "b", Cap: 100, Tokens: 10, Period: 1e6, TTL: 1e6, Fleet: 1}, nil)
			time.Sleep(200 * time.Millisecond)
			c.Lease, c.Seq, c.Ack, c.Hold, c.Deadline = "two", 1, 0, 0, 0
			r.run(c, nil)
		}},
		// Another limit counts from its first call on, also of one that is refused.
		{"", func(r *rig, c *lua.Call) {
			limited := &lua.Call{Bucket: "b", Cap: 40, Tokens: 1, Period: 7e6, Want: 40, Min: 40, TTL: 1e6, Fleet: 1}
			r.run(limited, nil)
			time.Sleep(300 * time.Millisecond)
			limited.Cap, limited.Tokens, limited.Want, limited.Min = 1000, 1000, 10, 10
			r.run(limited, nil)
			c.Hold, c.Deadline = 30, 0
			r.run(c, nil)
		}},
		{"the level is not", func(r *rig, c *lua.Call) { // as if the rate had counted before
			c.Tokens = 20
			tell("l", "55")(r, c)
		}},
		// A clock that was set ahead, and back: what ended meanwhile does not come back.
		{"", func(r *rig, c *lua.Call) { r.memory.Del("b"); r.clockMoved(time.Hour); r.run(c, nil) }},
		{"forgotten before", func(r *rig, c *lua.Call) { r.memory.Del("b"); r.clockMoved(time.Second); r.run(c, nil) }},
		{"holds more", func(r *rig, c *lua.Call) { c.Hold = 31; r.run(c, nil) }},
		{"the caller's part", func(r *rig, c *lua.Call) {
			r.grants(c, 19)
			r.run(c,
				func(x *lua.Reply) { x.Grant = 19 })
		}},
		{"next sweep", tell("g", "946684801500000")},
		{"the wants are not", tell("w", "21")},
		{"not the one that it was", tell("c", "946684800000001")},
		// It is full in 5 s and its lease over in 1 s, and a second more is margin.
		{"", tell("ttl", "6000")},
		{"a key ends before", tell("ttl", "5998")},
		{"a key never ends", tell("ttl", "0")},
	} {
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t)
			first := r.call(30, 0, 0, 0)
			r.sent(1, time.Since(r.base), first, r.bucket, never)
			r.run(first, nil)
			r.returned(1, []lua.Call{*first}, []remote.Result{{}})
			time.Sleep(500 * time.Millisecond)
			r.sweeps(t)
			second := r.call(20, 1, 30, 0)
			r.holders[holderKey{1, "b"}].last.Lease = "one"
			c.do(r, second)
			r.says(t, c.rule)
		})
	}
}

// grants has the bucket say that it grants the second call n tokens of the 70 that there are, beside the 30 that it
// holds.
func (r *rig) grants(c *lua.Call, n int64) {
	r.lies["l"], r.lies["o"] = strconv.FormatInt(70-n, 10), strconv.FormatInt(30+n, 10)
	r.lies["w"] = strconv.FormatInt(c.Want, 10)
	r.lies["pone"] = lua.Record{Seq: c.Seq, Grant: n, Out: 30 + n, Want: c.Want, End: r.clock() + c.TTL}.String()
}

// sweeps checks that there is a record to compare with.
func (r *rig) sweeps(t *testing.T) {
	t.Helper()
	if e := r.buckets["b"].Records["one"]; e.Seq != 1 || e.Out != 30 {
		t.Fatalf("on record is %+v", e)
	}
}

// nowhere is a Redis in which nothing is.
type nowhere struct{}

func (nowhere) someFields(string, ...string) []string { return nil }
func (nowhere) allFields(string) map[string]string    { return nil }
func (nowhere) ttl(string) time.Duration              { return 0 }

// says checks what the auditor has found.
func (r *rig) says(t *testing.T, rule string) {
	t.Helper()
	v := r.verdict()
	if (rule == "") != (v.Broken == 0) || !strings.Contains(v.First, rule) {
		t.Errorf("want %q, and the auditor says %+v", rule, v)
	}
}

// What a process says is held against what it has.
func TestAuditSeesAProcess(t *testing.T) {
	for _, c := range []struct {
		rule string
		do   func(r *rig, c *lua.Call) // before it leaves
	}{
		{"", func(*rig, *lua.Call) {}},
		{"less than it does", func(r *rig, c *lua.Call) { c.Hold-- }},
		{"more than its record", func(r *rig, c *lua.Call) { c.Hold += 3 }},
		{"a part of what it holds", func(r *rig, c *lua.Call) { c.Ret = 1 }},
		{"accepted last", func(r *rig, c *lua.Call) { c.Ack-- }},
		{"not newer", func(r *rig, c *lua.Call) { c.Seq = 1 }},
		{"no deadline", func(r *rig, c *lua.Call) { c.Deadline = 0 }},
		{"owes more", func(r *rig, c *lua.Call) { c.Debt = 1 }},
		{"one lease id", func(r *rig, c *lua.Call) { r.leases["one"] = 2 }},
		{"under way", func(r *rig, c *lua.Call) {
			before := *c
			r.sent(1, time.Since(r.base), &before, r.bucket, never)
			c.Seq++
		}},
		{"all before it is spent", func(r *rig, c *lua.Call) {
			r.holders[holderKey{1, "b"}].states[0].calls, c.Ack, c.Seq = invariant.Caller{}, 0, 9
		}},
		{"twice", func(r *rig, c *lua.Call) { r.holders[holderKey{1, "b"}].states[0].refunded = 1 }},
		{"burnt", func(r *rig, c *lua.Call) { r.bucket.Burn(time.Since(r.base)); c.Hold = 0 }},

		{"", func(r *rig, c *lua.Call) { r.alone(80); c.Debt, c.Owed = 80, 80 }},
		{"owes less than", func(r *rig, c *lua.Call) { r.alone(80); c.Debt, c.Owed = 79, 79 }},
		{"less is owed", func(r *rig, c *lua.Call) { r.alone(80); c.Debt, c.Owed = 80, 78 }},
		{"more is owed", func(r *rig, c *lua.Call) { c.Owed = 102 }},
		{"a share admits", func(r *rig, c *lua.Call) { r.half(); r.alone(80); c.Debt, c.Owed = 80, 80 }},
		{"a share admits", func(r *rig, c *lua.Call) {
			r.half()
			r.alone(80)
			r.comparePots()
			c.Debt, c.Owed = 80,
				80
		}},
		{"", func(r *rig, c *lua.Call) { r.hears(0, 7, 9); c.Seen, c.Epoch = 7, 9 }},
		{"the overflow was not", func(r *rig, c *lua.Call) { c.Seen, c.Epoch = 7, 9 }},
		{"the overflow was not", func(r *rig, c *lua.Call) { r.hears(0, 7, 9); c.Seen, c.Epoch = 7, 8 }},
		{"the overflow was not", func(r *rig, c *lua.Call) { r.hears(0, 7, 0); c.Seen = 7 }},
		{"the overflow was not", func(r *rig, c *lua.Call) {
			r.alone(80)
			r.hears(0, 7, 9)
			c.Debt, c.Owed, c.Seen, c.Epoch = 80, 80, 7, 9
		}},
		{"accepted last", func(r *rig, c *lua.Call) { r.stands(c, 49*time.Millisecond) }},
		{"", func(r *rig, c *lua.Call) { r.stands(c, 50*time.Millisecond) }}, // too late to be accepted
		{"", func(r *rig, c *lua.Call) {
			r.alone(80)
			r.hears(60, 7, 9) // tells 60 of them
			c.Debt, c.Owed, c.Seen, c.Epoch = 80, 80, 7, 9
		}},
		{"with fewer", func(r *rig, c *lua.Call) { r.heardOf(3, 300*time.Millisecond) }},
		{"with fewer", func(r *rig, c *lua.Call) {
			r.heardOf(3, 300*time.Millisecond)
			r.heardOf(1,
				time.Millisecond)
		}},
		{"", func(r *rig, c *lua.Call) { r.heardOf(3, time.Minute); r.heardOf(1, time.Second); c.Hold = 0 }},
		{"with fewer", func(r *rig, c *lua.Call) { r.least = 2 }},
	} {
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t)
			r.lease(t, 30)
			time.Sleep(100 * time.Millisecond)
			next := r.call(20, 1, 30, 0)
			c.do(r, next)
			r.sent(1, time.Since(r.base), next, r.bucket, never)
			r.says(t, c.rule)
		})
	}
}

// The auditor reckons at least what a share has left, and no more than refill, burst and what it may have been
// debited allow.
func TestShareIsReckoned(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.lease(t, 30) // 2 of them are spent
		s, now := r.state(), func() time.Duration { return time.Since(r.base) }
		for i, step := range []struct {
			do   func()
			left float64
		}{
			{func() {}, 98}, // it was full when the first call left, and 2 are spent since
			{func() { time.Sleep(100 * time.Millisecond) }, 99},
			{func() { time.Sleep(time.Second) }, 100},
			{func() { r.alone(70) }, 30},
			{func() { r.alone(29) }, 1},
			{func() { time.Sleep(time.Second) }, 11},
			{func() { r.alone(5) }, 6},
			// 110 of 100: as refilled
			{func() { time.Sleep(9 * time.Second); r.alone(90); time.Sleep(2 * time.Second); r.alone(20) }, 6},
		} {
			step.do()
			if v := s.Reckon(now(), of(r.bucket), r.figures(), 1, false); v.Broken() || s.Left() != step.left {
				t.Errorf("step %d: %v left, want %v; %+v", i, s.Left(), step.left, v)
			}
		}
		if _ = s.Reckon(now(), of(r.bucket), r.figures(), 20, false); s.Left() != 5 {
			t.Errorf("one part of 20 has %v left", s.Left())
		}
	})
}

// never is a process that forgets no key.
func never() bool { return false }

// state is what the auditor keeps of the share of process 1.
func (r *rig) state() *invariant.Share { return &r.holders[holderKey{1, "b"}].states[0].share }

func (r *rig) figures() invariant.Figures { return r.holders[holderKey{1, "b"}].states[0].figures() }

func of(b *local.Bucket) invariant.ShareOf {
	share, _ := shareOf(b)
	return share
}

// half has the auditor believe that the share of process 1 has 50 tokens at most: it was a part of 2 for a moment.
func (r *rig) half() { r.state().Reckon(time.Since(r.base), of(r.bucket), r.figures(), 2, false) }

// alone has process 1 admit n tokens by its share.
func (r *rig) alone(n int64) { r.bucket.Fallback(time.Since(r.base), n, 1) }

// hears has process 1 hear of a call that told a debt.
func (r *rig) hears(debt, seen, epoch int64) {
	s := r.holders[holderKey{1, "b"}].states[0]
	s.calls, s.sent = invariant.Caller{}, time.Now()
	s.calls.Sends(&lua.Call{Lease: "one", Seq: 1}, &invariant.Numbers{})
	r.returned(1, []lua.Call{{Bucket: "b", Lease: "one", Seq: 1, Debt: debt}},
		[]remote.Result{{Reply: lua.Reply{Overflow: seen, Epoch: epoch}}})
}

// stands has process 1 hear of a call so long after it wanted to send it, for it stood still. c is the next one,
// which says that it was not accepted.
func (r *rig) stands(c *lua.Call, d time.Duration) {
	second := *c
	r.sent(1, time.Since(r.base), &second, r.bucket, never)
	time.Sleep(d)
	r.run(&second, nil)
	r.returned(1, []lua.Call{second}, []remote.Result{{}})
	c.Seq++
}

// heardOf has process 1 hear how many there are, some time ago.
func (r *rig) heardOf(processes int64, ago time.Duration) {
	r.counted(1, processes)
	time.Sleep(ago)
}

// lease has process 1 lease tokens, as its Group would.
func (r *rig) lease(t *testing.T, want int64) {
	t.Helper()
	now := time.Since(r.base)
	w := []*local.Waiter{local.NewWaiter(), local.NewWaiter()}
	for _, w := range w {
		r.bucket.Ask(now, 1, now+time.Second, w)
	}
	b, _ := r.bucket.Begin(now, local.Conditions{Seq: 1, Lease: "me", Clock: true, Server: r.clock(), Fleet: 1})
	c := r.call(want+2, b.Ack, 0, 0)
	r.sent(1, now, c, r.bucket, never)
	r.run(c, nil)
	_, ok := r.bucket.Accept(now, b.Seq, lua.Reply{
		Grant: want + 2, Level: 68, TTLLeft: time.Second.Microseconds(),
		Epoch: 1,
	})
	if live, _ := r.bucket.Peek(now); !ok || live != want || b.Seq != 1 {
		t.Fatalf("holds %d of %d: accepted %v, of %+v", live, want, ok, b)
	}
	r.returned(1, []lua.Call{*c}, []remote.Result{{}})
}

// Pots are looked at between calls too, and who goes home must have given all back.
func TestAuditLooks(t *testing.T) {
	for _, c := range []struct {
		rule string
		do   func(r *rig)
	}{
		{"", func(r *rig) { r.comparePots() }},
		{"spend more", func(r *rig) { r.cut(29); r.comparePots() }},
		{"", func(r *rig) { r.cut(29); r.clockMoved(time.Second); r.comparePots() }},
		{"", func(r *rig) { r.cut(0); time.Sleep(time.Second); r.comparePots() }}, // over
		{"left in good order", func(r *rig) { r.processEnded(1, true) }},
		{"", func(r *rig) { r.processEnded(1, false) }},
		{"", func(r *rig) { r.cut(0); r.processEnded(1, true) }},
	} {
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t)
			r.lease(t, 30)
			c.do(r)
			r.says(t, c.rule)
			if v := r.verdict(); v.Looks != 3 { // the call leaves, is executed, and what is done here
				t.Errorf("%d looks, want 3", v.Looks)
			}
		})
	}
	if v := (*audit)(nil).verdict(); v.Broken != -1 || v.Looks != -1 || v.Excess != -1 {
		t.Errorf("who sees nothing says %+v", v)
	}
}

// cut has the record of process 1 cover so much.
func (r *rig) cut(out int64) {
	e := r.buckets["b"].Records["one"]
	e.Out = out
	r.buckets["b"].Records["one"] = e
}

// The arguments of the script are read as they are written, and its reply.
func TestCallIn(t *testing.T) {
	long := strings.Fields("sha 1 b 1 2 3 4 5 6 lease 8 9 10 11 12 13 14 15 16 17 18 19 20 21")
	short := strings.Fields("sha 1 b 1 2 3 4 5 6 7 8")
	long[0], short[0] = lua.TokenBucket.Script().SHA, lua.TokenBucket.Script().SHA
	want := lua.Call{
		Bucket: "b", Cap: 1, Tokens: 2, Period: 3, Want: 4, Min: 5, TTL: 6, Lease: "lease", Seq: 8, Ack: 9, Hold: 10,
		Ret: 11, Refund: 12,
		Debt: 13, Deadline: 14, Epoch: 15, Now: 16, Owed: 18, Seen: 19, Fleet: 20, MaxDebt: 21,
	}
	if c, ok := callIn(long); !ok || !reflect.DeepEqual(c, want) {
		t.Errorf("%+v, %v", c, ok)
	}
	if c, ok := callIn(short); !ok || c.Deadline != 7 || c.Epoch != 8 || c.Fleet != 1 || c.Lease != "" {
		t.Errorf("%+v, %v", c, ok)
	}
	for _, bad := range [][]string{
		nil,
		{"x", "1", "b", "1"},
		append(long, "1"),
		append(short[:3:3], strconv.Itoa(1), "x"),
	} {
		if c, ok := callIn(bad); ok {
			t.Errorf("%q is %+v", bad, c)
		}
	}
	if r, ok := replyIn("*10\r\n:1\r\n:2\r\n:-3\r\n:4\r\n:5\r\n:6\r\n:7\r\n:8\r\n:9\r\n:10\r\n"); !ok ||
		r.Code != 1 || r.Grant != 2 || r.Level != -3 || r.Now != 7 || r.Flags != 9 {
		t.Errorf("%+v, %v", r, ok)
	}
	if _, ok := replyIn("-ERR no\r\n"); ok {
		t.Error("an error is no reply")
	}
}
