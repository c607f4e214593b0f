package invariant_test

import (
	"strings"
	"testing"

	"github.com/tiered-limiter/tiered-limiter/internal/test/proof/invariant"
	"github.com/tiered-limiter/tiered-limiter/lua"
)

// expect checks what a law says.
func expect(t *testing.T, row int, f invariant.Finding, rule string, excess float64) {
	t.Helper()
	if f.Broken() != (rule != "") || !strings.Contains(f.Rule, rule) || f.Excess != excess {
		t.Errorf("row %d: want %q by %v, got %v", row, rule, excess, f)
	}
}

func TestCaller(t *testing.T) {
	call := func(seq, ack int64) *lua.Call { return &lua.Call{Lease: "one", Seq: seq, Ack: ack, Deadline: 1} }
	for i, c := range []struct {
		rule     string
		accepted bool // the first call, number 3, was
		givenUp  bool // else it is under way
		call     *lua.Call
	}{
		{"", true, false, call(4, 3)},
		{"", false, true, call(4, 2)},
		{"two calls", false, false, call(4, 2)},
		{"not newer", true, false, call(3, 3)},
		{"accepted last", true, false, call(4, 2)},
		{"accepted last", false, true, call(4, 3)},
		{"no deadline", true, false, &lua.Call{Lease: "one", Seq: 4, Ack: 3}},
		{"a part of what it holds", true, false, &lua.Call{Lease: "one", Seq: 4, Ack: 3, Deadline: 1, Hold: 1, Ret: 1}},
		{"", true, false, &lua.Call{Lease: "two", Seq: 1, Deadline: 1}},
		{"all before it is spent", true, false, &lua.Call{Lease: "two", Seq: 2, Deadline: 1}},
	} {
		var caller invariant.Caller
		var last invariant.Numbers
		expect(t, i, caller.Sends(call(3, 2), &last), "", 0)
		switch {
		case c.accepted:
			caller.Accepts()
		case c.givenUp:
			caller.GivesUp()
		}
		expect(t, i, caller.Sends(c.call, &last), c.rule, 0)
		if last != (invariant.Numbers{Lease: c.call.Lease, Seq: c.call.Seq}) {
			t.Errorf("row %d: the last number is %+v", i, last)
		}
	}
}

func TestFiguresOfAProcess(t *testing.T) {
	holds := &lua.Call{Hold: 5}
	expect(t, 1, invariant.Holds(holds, 5, 5, false), "", 0)
	expect(t, 2, invariant.Holds(holds, 5, 4, false), "more than its record", 1)
	expect(t, 3, invariant.Holds(holds, 5, 4, true), "", 0)
	expect(t, 4, invariant.Holds(holds, 7, 5, false), "less than it does", 2)
	expect(t, 5, invariant.Covered(3, 3), "", 0)
	expect(t, 6, invariant.Covered(4, 3), "spend more", 1)

	expect(t, 7, invariant.Ledger{Granted: 10, Spent: 4, Returned: 3, Burnt: 2, Held: 1}.Check(0), "", 0)
	expect(t, 8, invariant.Ledger{Granted: 10, Spent: 4, Returned: 3, Burnt: 2}.Check(0), "does not balance", 1)
	expect(t, 9, invariant.Ledger{Granted: 4, Spent: 5, Held: -1}.Check(0), "less than nothing", 0)
	expect(t, 10, invariant.Ledger{Granted: 4, Spent: -1, Held: 5}.Check(0), "less than nothing", 0)
	expect(t, 11, invariant.Ledger{Granted: 4, Spent: -1, Held: 5}.Check(1), "", 0)
}

func TestTold(t *testing.T) {
	ends := map[string]int64{"one": 200, "two": 300, "over": 90}
	for i, c := range []struct {
		rule  string
		call  lua.Call
		reply lua.Reply
	}{
		{"", lua.Call{Algorithm: lua.FixedWindow}, lua.Reply{Code: lua.Denied, Now: 100, Retry: 100}},
		{"the lease of", lua.Call{Algorithm: lua.FixedWindow}, lua.Reply{Code: lua.Denied, Now: 100, Retry: 101}},
		{"", lua.Call{Algorithm: lua.SlidingWindow, Lease: "one"}, lua.Reply{Code: lua.Denied, Now: 100, Retry: 200}},
		{"the lease of", lua.Call{Algorithm: lua.SlidingWindow, Lease: "one"}, lua.Reply{Code: lua.Denied, Now: 100, Retry: 201}},
		{"nothing counts", lua.Call{Algorithm: lua.FixedWindow}, lua.Reply{Code: lua.Denied, Now: 100, Retry: 50, Reset: 49}},
		{"", lua.Call{Algorithm: lua.FixedWindow}, lua.Reply{Code: lua.Granted, Now: 100, Retry: 500}},
		{"", lua.Call{}, lua.Reply{Code: lua.Denied, Now: 100, Retry: 500}},
	} {
		expect(t, i, invariant.Told(&c.call, &c.reply, c.reply.Now, ends), c.rule, 0)
	}
}
