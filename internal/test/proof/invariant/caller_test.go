package invariant_test

import (
	"strings"
	"testing"
	"time"

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
		if !caller.For(c.call.Seq) || last != (invariant.Numbers{Lease: c.call.Lease, Seq: c.call.Seq}) {
			t.Errorf("row %d: under way is %+v, the last number %+v", i, caller, last)
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

	owing := &lua.Call{Debt: 5}
	expect(t, 7, invariant.Owes(owing, 5, true), "", 0)
	expect(t, 8, invariant.Owes(owing, 4, true), "owes more", 1)
	expect(t, 9, invariant.Owes(owing, 8, true), "owes less", 3)
	expect(t, 10, invariant.Owes(owing, 8, false), "", 0)

	expect(t, 11, invariant.Ledger{Granted: 10, Spent: 4, Returned: 3, Burnt: 2, Held: 1}.Check(0), "", 0)
	expect(t, 12, invariant.Ledger{Granted: 10, Spent: 4, Returned: 3, Burnt: 2}.Check(0), "does not balance", 1)
	expect(t, 13, invariant.Ledger{Granted: 4, Spent: 5, Held: -1}.Check(0), "less than nothing", 0)
	expect(t, 14, invariant.Ledger{Granted: 4, Spent: -1, Held: 5}.Check(0), "less than nothing", 0)
	expect(t, 15, invariant.Ledger{Granted: 4, Spent: -1, Held: 5}.Check(1), "", 0)
}

// A share of 100 with 10 per second, alone or as one of four parts.
func TestShare(t *testing.T) {
	of := invariant.ShareOf{Cap: 100, Tokens: 10, Per: time.Second, Asked: true}
	for i, c := range []struct {
		rule   string
		excess float64
		call   lua.Call // 2 s after a first one, when 80 were admitted and so 60 are owed at least
		spent  int64
	}{
		{"", 0, lua.Call{Fleet: 1, Debt: 80, Owed: 60}, 0},
		{"", 0, lua.Call{Fleet: 1, Debt: 80, Owed: 59}, 0}, // the share is debited in whole tokens
		{"less is owed", 1, lua.Call{Fleet: 1, Debt: 80, Owed: 58}, 0},
		{"less is owed", 10, lua.Call{Fleet: 1, Debt: 80, Owed: 59}, 10}, // what Redis granted is debited too
		{"", 0, lua.Call{Fleet: 1, Debt: 80, Owed: 69}, 10},
		{"more is owed", 2, lua.Call{Fleet: 1, Debt: 80, Owed: 102}, 0},
		{"a share admits", 50, lua.Call{Fleet: 4, Debt: 80, Owed: 25}, 0},
		{"the overflow was not", 0, lua.Call{Fleet: 1, Debt: 80, Owed: 60, Seen: 7, Epoch: 9}, 0},
	} {
		var s invariant.Share
		first := lua.Call{Fleet: c.call.Fleet}
		expect(t, i, s.Sends(0, &first, of, invariant.Figures{}, true), "", 0)
		expect(t, i, s.Sends(2*time.Second, &c.call, of, invariant.Figures{Fallback: 80, Spent: c.spent}, false), c.rule, c.excess)
	}
}

// The overflow in a reply counts if its call reported the debt, or if none came up since.
func TestOverflowOfAShare(t *testing.T) {
	for i, c := range []struct {
		rule     string
		reported int64 // by the call that is answered
		epoch    int64
		now      invariant.Figures
	}{
		{"", 0, 9, invariant.Figures{}},
		{"", 80, 9, invariant.Figures{Fallback: 80}},
		{"was not read", 0, 9, invariant.Figures{Fallback: 80}},
		{"was not read", 0, 0, invariant.Figures{}},
	} {
		var s invariant.Share
		before := lua.Call{Lease: "one", Debt: c.reported}
		s.Says(&before, invariant.Figures{}, true)
		s.Reads(&before, &lua.Reply{Overflow: 7, Epoch: c.epoch}, c.now)
		expect(t, i, s.Says(&lua.Call{Lease: "one", Seen: 7, Epoch: 9}, c.now, false), c.rule, 0)
	}
}

func TestCensus(t *testing.T) {
	var c invariant.Census
	c.Hears(time.Second, 3)
	c.Hears(2*time.Second, 5)
	c.Hears(3*time.Second, 4)
	for _, x := range []struct {
		at           time.Duration
		known, least int64
	}{
		{2 * time.Second, 0, 1}, // what was heard in this instant does not count yet
		{3 * time.Second, 0, 5},
		{3 * time.Second, 6, 6},
		{12 * time.Second, 0, 4},
		{13 * time.Second, 0, 1},
	} {
		if n := c.Least(x.at, x.known); n != x.least {
			t.Errorf("at %v, of %d known: %d, want %d", x.at, x.known, n, x.least)
		}
	}
}
