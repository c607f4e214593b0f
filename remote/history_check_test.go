package remote_test

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/tiered-limiter/tiered-limiter/lua"
)

// historyCheck bounds a check, which takes a millisecond. One that is broken off says nothing.
const historyCheck = 20 * time.Second

// check fails the test unless each bucket's part of the history can be explained.
func (h *history) check(t *testing.T) {
	t.Helper()
	for _, f := range h.failures {
		t.Errorf("seed %d: %s", h.seed, f)
	}
	switch porcupine.CheckOperationsTimeout(historyModel, h.operations, historyCheck) {
	case porcupine.Ok:
		return
	case porcupine.Unknown:
		t.Errorf("seed %d: neither explained nor refuted within %v: the history is too long", h.seed, historyCheck)
		return
	}
	for i, part := range historyModel.Partition(h.operations) {
		slices.SortStableFunc(part, func(a, b porcupine.Operation) int { return cmp.Compare(a.Call, b.Call) })
		for j := range part {
			part[j].ClientId = j // a line each in the picture: what is unknown overlaps all that comes later
		}
		verdict, info := porcupine.CheckOperationsVerbose(historyModel, part, historyCheck)
		if verdict == porcupine.Ok {
			continue
		}
		t.Errorf("seed %d: no bucket answers like this, whatever the order of what was under way at once\n%s", h.seed,
			listing(part, info))
		// stays with go test -artifacts
		path := filepath.Join(t.ArtifactDir(), fmt.Sprintf("history-%d-%d.html", h.seed, i))
		if err := porcupine.VisualizePath(historyModel, info, path); err != nil {
			t.Error(err)
		}
	}
}

// listing prints the history of one bucket in the order of sending, and the longest beginning of an explanation.
func listing(part []porcupine.Operation, info porcupine.LinearizationInfo) string {
	var b strings.Builder
	fmt.Fprintf(&b, "cap %d; sent…returned\n", part[0].Input.(historyCall).Cap)
	for _, op := range part {
		returned := ""
		if op.Return < math.MaxInt64 {
			returned = fmt.Sprint(op.Return)
		}
		fmt.Fprintf(&b, "%5d…%-4s %s\n", op.Call, returned, historyModel.DescribeOperation(op.Input, op.Output))
	}
	orders := info.PartialLinearizationsOperations()[0]
	if len(orders) == 0 {
		return b.String()
	}
	longest := slices.MaxFunc(orders, func(a, b []porcupine.Operation) int { return cmp.Compare(len(a), len(b)) })
	fmt.Fprintf(&b, "%d of %d can be explained, in this order:\n", len(longest), len(part))
	state := historyModel.Init()
	for _, op := range longest {
		_, state = historyModel.Step(state, op.Input, op.Output)
		fmt.Fprintf(&b, "%5d %s\n\t%s\n", op.Call, historyModel.DescribeOperation(op.Input, op.Output),
			historyModel.DescribeState(state))
	}
	return b.String()
}

// historyTally counts what histories contained, so that histories in which nothing happens do not pass for good ones.
type historyTally map[string]int

func (n historyTally) add(h *history) {
	count := func(name string, is bool) {
		if n[name] += 0; is { // what never comes is there with 0, and missed
			n[name]++
		}
	}
	var heard, hasty []porcupine.Operation
	for _, op := range h.operations {
		c, out := op.Input.(historyCall), op.Output.(historyOutcome)
		lease, granted := c.Lease != "", out.known && out.reply.code == lua.Granted
		count("unknown lease calls", !out.known && lease)
		count("unknown takes", !out.known && !lease && c.Want > 0)
		count("replays", out.known && out.reply.code == lua.Replay)
		count("stale", out.known && out.reply.code == lua.Stale)
		count("leases denied", out.known && out.reply.code == lua.Denied && lease)
		count("leases in full", granted && lease && out.reply.grant > 0 && out.reply.grant == c.Want)
		count("leases in part", granted && lease && out.reply.grant > 0 && out.reply.grant < c.Want)
		count("takes denied", out.known && out.reply.code == lua.Denied && !lease)
		count("takes", granted && !lease && out.reply.grant > 0)
		count("returns", granted && c.Ret > 0)
		count("refunds", granted && c.Refund > 0)
		count("debts", granted && c.Debt > 0)
		count("calls that overlap another process'",
			out.known && slices.ContainsFunc(h.operations, func(o porcupine.Operation) bool {
				other := o.Input.(historyCall)
				return other.who != c.who && other.Bucket == c.Bucket && o.Call < op.Return &&
					op.Call < o.Metadata.(int64)
			}))
		if out.known {
			heard = append(heard, op)
		}
		op.Return = op.Metadata.(int64)
		hasty = append(hasty, op)
	}
	// A history that has no explanation without its unknown outcomes shows that one of them was executed; one that
	// has none if they all were executed before they were given up shows that one was executed later or never.
	illegal := func(operations []porcupine.Operation) bool {
		return porcupine.CheckOperationsTimeout(historyModel, operations, historyCheck) == porcupine.Illegal
	}
	count("histories with an unknown outcome that was executed", illegal(heard))
	count("histories with an unknown outcome that was not, or late", illegal(hasty))
}

// addFaults adds what the network did.
func (n historyTally) addFaults(network *faultyNetwork) {
	for fault := range network.faults {
		n["requests: "+networkFault(fault).String()] = int(network.faults[fault].Load())
	}
	n["requests: late, and executed"] = int(network.arrived.Load())
}

func (n historyTally) String() string {
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(n)) {
		fmt.Fprintf(&b, "%8d %s\n", n[name], name)
	}
	return b.String()
}
