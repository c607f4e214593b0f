package remote_test

import (
	"fmt"
	"hash/maphash"
	"math"
	"strings"
	"testing"

	"github.com/anishathalye/porcupine"

	"github.com/tiered-limiter/tiered-limiter/lua"
)

// historyProcesses is how many processes share the buckets of a history. Two would leave out what happens to a third
// while two settle; more only make histories longer to check.
const historyProcesses = 3

// historyCall is what a process sends.
type historyCall struct {
	lua.Call
	who int // the process, 0 … historyProcesses − 1
}

// historyOutcome is what came back. A call whose reply was lost may have been executed, may be executed later or
// never: nothing is known of it. In a history it is an operation that never returns, so that each moment from its
// sending on is a possible one; taken as the last of all it has no effect that anybody could see, which is as good
// as never.
type historyOutcome struct {
	known bool
	reply historyReply
}

// historyReply is the part of a reply that does not depend on a clock.
type historyReply struct {
	code                 lua.Code
	grant, level, active int64
	flags                lua.Flags
}

func outcomeOf(r lua.Reply) historyOutcome {
	return historyOutcome{known: true, reply: historyReply{r.Code, r.Grant, r.Level, r.Active, r.Flags}}
}

// historyBucket is the bucket as the contract in package lua states it, reduced to what is left without a clock:
// there is no refill, no lease ends, no deadline passes. It was not derived from the other bucket in Go, that of
// [remote.Memory]. A value of it is a state, and is never changed.
type historyBucket struct {
	exists bool
	level  int64
	leases [historyProcesses]historyLease
}

// historyLease is what is recorded of a process; seq 0 is nothing.
type historyLease struct{ seq, grant, out, want, debt int64 }

// run executes a call: it returns the state afterwards and the reply.
func (b historyBucket) run(c historyCall) (historyBucket, historyReply) {
	before, flags := b, lua.Flags(0)
	if !b.exists {
		b.level, flags = c.Cap, lua.Created // what is absent is full
	}
	lease := &b.leases[c.who]
	if c.Lease == "" {
		lease = new(historyLease) // a direct take has no record, before or after
	} else if c.Seq < lease.seq {
		return before, b.reply(lua.Stale, 0, flags)
	} else if c.Seq == lease.seq {
		return before, b.reply(lua.Replay, lease.grant, flags)
	}

	if c.Ack > lease.seq {
		flags += lua.Unrecorded // what it was told is not on record
	}
	// What the process was told of is settled by what it states; what it never heard of did not happen. All that it
	// neither holds nor gives back, it spent.
	if c.Ack < lease.seq {
		b.level += lease.grant
		lease.out -= lease.grant
	} else {
		lease.debt = 0 // what was reported is done with; else it is reported again, and not charged again
	}
	b.level += min(c.Ret, lease.out)
	*lease = historyLease{seq: c.Seq, out: c.Hold, debt: lease.debt}
	room := c.Cap - b.sum(historyLease.held)
	charge := min(max(c.Debt-lease.debt, 0), b.level+c.Cap) // the level ends at −cap
	lease.debt += charge
	b.level = min(b.level-charge+c.Refund, room)

	want, least := min(c.Want, c.Cap), max(c.Min, 1)
	wanted := want + b.sum(historyLease.wanted)
	if want > 0 && b.level >= least { // one and a half times the caller's part of what all leases want
		lease.grant = min(max(3*b.level*want/(2*wanted), least), want, b.level)
	}
	b.level -= lease.grant
	lease.out, lease.want = lease.out+lease.grant, want

	code := lua.Granted
	if want > 0 && lease.grant == 0 {
		code = lua.Denied
	}
	reply := b.reply(code, lease.grant, flags)
	if c.Lease == "" && lease.grant == 0 {
		return before, reply // it took nothing, so it leaves nothing
	}
	b.exists = true
	return b, reply
}

func (b historyBucket) reply(code lua.Code, grant int64, flags lua.Flags) historyReply {
	return historyReply{code: code, grant: grant, level: b.level, active: b.sum(historyLease.active), flags: flags}
}

func (b historyBucket) sum(of func(historyLease) int64) (sum int64) {
	for _, l := range b.leases {
		sum += of(l)
	}
	return sum
}

func (l historyLease) held() int64   { return l.out }
func (l historyLease) wanted() int64 { return l.want }
func (l historyLease) active() int64 { return min(l.out+l.want, 1) }

// historyModel is how porcupine sees it. Buckets have nothing to do with each other, and are checked one by one.
var historyModel = porcupine.Model{
	Partition: func(history []porcupine.Operation) [][]porcupine.Operation {
		of := make(map[string][]porcupine.Operation)
		var names []string
		for _, op := range history {
			name := op.Input.(historyCall).Bucket
			if of[name] == nil {
				names = append(names, name)
			}
			of[name] = append(of[name], op)
		}
		parts := make([][]porcupine.Operation, len(names))
		for i, name := range names {
			parts[i] = of[name]
		}
		return parts
	},
	Init: func() any { return historyBucket{} },
	Step: func(state, input, output any) (bool, any) {
		after, reply := state.(historyBucket).run(input.(historyCall))
		out := output.(historyOutcome)
		return !out.known || out.reply == reply, after
	},
	Hash: func(state any) uint64 { return maphash.Comparable(historySeed, state.(historyBucket)) },
	DescribeOperation: func(input, output any) string {
		return fmt.Sprintf("%v -> %v", input.(historyCall), output.(historyOutcome))
	},
	DescribeState: func(state any) string { return state.(historyBucket).String() },
}

var historySeed = maphash.MakeSeed()

func (c historyCall) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "process %d ", c.who)
	switch {
	case c.Lease != "":
		fmt.Fprintf(&b, "call %d", c.Seq)
	case c.Want > 0:
		b.WriteString("take")
	default:
		b.WriteString("peek")
	}
	for _, f := range []struct {
		name  string
		value int64
	}{
		{"ack", c.Ack},
		{"hold", c.Hold},
		{"ret", c.Ret},
		{"refund", c.Refund},
		{"debt", c.Debt},
		{"want", c.Want},
		{"min", c.Min},
	} {
		if f.value != 0 {
			fmt.Fprintf(&b, " %s %d", f.name, f.value)
		}
	}
	return b.String()
}

func (o historyOutcome) String() string {
	if !o.known {
		return "unknown"
	}
	return o.reply.String()
}

func (r historyReply) String() string {
	names := [...]string{"granted", "denied", "replay", "stale", "never", "late"}
	return fmt.Sprintf("%s %d, level %d, active %d, flags %d", names[r.code], r.grant, r.level, r.active, r.flags)
}

func (b historyBucket) String() string {
	if !b.exists {
		return "absent"
	}
	text := fmt.Sprintf("level %d", b.level)
	for who, l := range b.leases {
		if l.seq > 0 {
			text += fmt.Sprintf(", process %d: call %d grant %d out %d want %d debt %d", who, l.seq, l.grant, l.out,
				l.want, l.debt)
		}
	}
	return text
}

// TestHistoryModel gives porcupine histories that are right or wrong by the contract, beginning with a take of 1 from a
// bucket of 4. Times are in the order of sending and return; 0 as the latter is a call that nobody heard of.
func TestHistoryModel(t *testing.T) {
	take := func(n int64) historyCall { return historyCall{Call: lua.Call{Want: n}} }
	call := func(seq, ack, hold, ret, want int64) historyCall {
		return historyCall{Call: lua.Call{Lease: "A", Seq: seq, Ack: ack, Hold: hold, Ret: ret, Want: want}}
	}
	by := func(who int, c historyCall) historyCall {
		c.who = who
		return c
	}
	reply := func(code lua.Code, grant, level, active int64) historyOutcome {
		return historyOutcome{true, historyReply{code: code, grant: grant, level: level, active: active}}
	}
	type op struct {
		sent, returned int64
		call           historyCall
		out            historyOutcome
	}
	var unheard historyOutcome
	for _, test := range []struct {
		name string
		ops  []op
		want porcupine.CheckResult
	}{
		{
			"one after the other",
			[]op{{2, 3, take(2), reply(0, 2, 1, 0)}, {4, 5, take(2), reply(0, 1, 0, 0)}},
			porcupine.Ok,
		},
		{
			"the other way round",
			[]op{{2, 3, take(2), reply(0, 1, 0, 0)}, {4, 5, take(2), reply(0, 2, 1, 0)}},
			porcupine.Illegal,
		},
		{"at once", []op{{2, 5, take(2), reply(0, 1, 0, 0)}, {3, 4, take(2), reply(0, 2, 1, 0)}}, porcupine.Ok},
		{
			"one token for two",
			[]op{{2, 5, take(3), reply(0, 3, 0, 0)}, {3, 4, take(1), reply(0, 1, 0, 0)}},
			porcupine.Illegal,
		},
		{"taken twice", []op{{2, 3, take(1), reply(0, 1, 1, 0)}}, porcupine.Illegal},
		{
			"created twice",
			[]op{{2, 3, take(1), historyOutcome{true, historyReply{0, 1, 3, 0, lua.Created}}}},
			porcupine.Illegal,
		},

		{"unheard, executed", []op{{2, 0, take(1), unheard}, {3, 4, take(0), reply(0, 0, 2, 0)}}, porcupine.Ok},
		{"unheard, never executed", []op{{2, 0, take(1), unheard}, {3, 4, take(0), reply(0, 0, 3, 0)}}, porcupine.Ok},
		{"unheard, executed late", []op{
			{2, 0, take(1), unheard}, {3, 4, take(0), reply(0, 0, 3, 0)}, {5, 6, take(0), reply(0, 0, 2, 0)},
		}, porcupine.Ok},
		{
			"unheard, executed before it was sent",
			[]op{{2, 3, take(0), reply(0, 0, 2, 0)}, {4, 0, take(1), unheard}},
			porcupine.Illegal,
		},
		{
			"unheard, executed twice",
			[]op{{2, 0, take(1), unheard}, {3, 4, take(0), reply(0, 0, 1, 0)}},
			porcupine.Illegal,
		},
		{"unheard, executed and undone by nobody", []op{
			{2, 0, take(1), unheard}, {3, 4, take(0), reply(0, 0, 2, 0)}, {5, 6, take(0), reply(0, 0, 3, 0)},
		}, porcupine.Illegal},

		{"an unheard lease is undone", []op{
			{2, 0, call(1, 0, 0, 0, 2), unheard},
			{3, 4, take(0), reply(0, 0, 1, 1)},
			{5, 6, call(2, 0, 0, 0, 0), reply(0, 0, 3, 0)},
		}, porcupine.Ok},
		{"an unheard lease is spent", []op{
			{2, 0, call(1, 0, 0, 0, 2), unheard},
			{3, 4, take(0), reply(0, 0, 1, 1)},
			{5, 6, call(2, 0, 0, 0, 0), reply(0, 0, 1, 0)},
		}, porcupine.Illegal},
		{"a lease is spent but for what is held", []op{
			{2, 3, call(1, 0, 0, 0, 2), reply(0, 2, 1, 1)},
			{4, 5, call(2, 1, 1, 0, 0), reply(0, 0, 1, 1)},
			{6, 7, call(3, 2, 0, 1, 0), reply(0, 0, 2, 0)},
		}, porcupine.Ok},
		{"a return counts twice", []op{
			{2, 3, call(1, 0, 0, 0, 2), reply(0, 2, 1, 1)},
			{4, 0, call(2, 1, 0, 2, 0), unheard},
			{5, 6, call(3, 1, 0, 2, 0), reply(0, 0, 5, 0)},
		}, porcupine.Illegal},
		{"a copy gets the same", []op{
			{2, 3, call(1, 0, 0, 0, 2), reply(0, 2, 1, 1)}, {4, 5, call(1, 0, 0, 0, 2), reply(2, 2, 1, 1)},
		}, porcupine.Ok},
		{"a copy gets more", []op{
			{2, 3, call(1, 0, 0, 0, 1), reply(0, 1, 2, 1)}, {4, 5, call(1, 0, 0, 0, 1), reply(0, 1, 1, 1)},
		}, porcupine.Illegal},
		{"an older call is ignored", []op{
			{2, 0, call(1, 0, 0, 0, 2), unheard},
			{3, 4, call(2, 0, 0, 0, 1), reply(0, 1, 2, 1)},
			{5, 6, call(1, 0, 0, 0, 2), reply(3, 0, 2, 1)},
		}, porcupine.Ok},
		{"an older call is executed", []op{
			{2, 0, call(1, 0, 0, 0, 2), unheard},
			{3, 4, call(2, 0, 0, 0, 1), reply(0, 1, 2, 1)},
			{5, 6, call(1, 0, 0, 0, 2), reply(0, 2, 0, 1)},
		}, porcupine.Illegal},
		{"what leases want is shared", []op{
			{2, 3, call(1, 0, 0, 0, 2), reply(0, 2, 1, 1)},
			{4, 5, call(2, 1, 0, 2, 4), reply(0, 3, 0, 1)},
			{6, 7, by(1, call(1, 0, 0, 0, 4)), reply(1, 0, 0, 2)},
			{8, 9, by(2, call(1, 0, 0, 0, 4)), reply(1, 0, 0, 3)},
			{10, 11, call(3, 2, 0, 3, 4), reply(0, 1, 2, 3)},
		}, porcupine.Ok},
	} {
		t.Run(test.name, func(t *testing.T) {
			ops := append([]op{{0, 1, take(1), historyOutcome{true, historyReply{0, 1, 3, 0, lua.Created}}}},
				test.ops...)
			history := make([]porcupine.Operation, len(ops))
			for i, o := range ops {
				o.call.Cap = 4
				if o.returned < o.sent {
					o.returned = math.MaxInt64
				}
				history[i] = porcupine.Operation{Input: o.call, Call: o.sent, Output: o.out, Return: o.returned}
			}
			if got := porcupine.CheckOperationsTimeout(historyModel, history, historyCheck); got != test.want {
				t.Errorf("%v, want %v", got, test.want)
			}
		})
	}
}
