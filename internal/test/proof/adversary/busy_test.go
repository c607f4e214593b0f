package adversary

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"testing/synctest"

	"github.com/tiered-limiter/tiered-limiter/lua"
)

// TestWorldsAreBusy counts what happens in random schedules: where nothing happens, nothing can
// break.
func TestWorldsAreBusy(t *testing.T) { synctest.Test(t, worldsAreBusy) }

func worldsAreBusy(t *testing.T) {
	const schedules = 10_000
	seen := map[string]int{}
	var all []*Scope
	for _, a := range Algorithms() {
		all = append(all, Scopes(a)...)
	}
	for seed := range uint64(schedules) {
		s := Random(all, seed, 120)
		w := New(s.Scope, OnMemory(), "b", seed)
		for _, a := range s.Scope.Prelude {
			w.Do(a)
		}
		for _, c := range s.Choices {
			a := s.Scope.action(c)
			var heard *reply
			if i, ok := indexOf(len(w.replies), a.N); ok && (a.Verb == Deliver || a.Verb == Echo) {
				heard = w.replies[i]
			}
			wanted := heard != nil && heard.to.bucket.call == heard.to
			if !w.Do(a) {
				continue
			}
			seen[a.Verb.String()]++
			if heard != nil {
				seen[fmt.Sprintf("code %d", heard.answer.Code)]++
				if wanted {
					census(heard, seen)
				} else {
					seen["a reply that nobody wants"]++
				}
			}
		}
		w.shutDown(seed%2 == 0)
		for _, p := range w.processes {
			for what, n := range map[string]int64{
				"returned": p.released.Returned, "burnt": p.released.Burnt, "fallback": p.released.Fallback,
				"opened": p.released.Opened, "settled": p.released.Settled, "refused": p.released.Refused,
			} {
				if n > 0 {
					seen[what]++
				}
			}
		}
		if w.Fault != "" {
			t.Fatal(w.Fault)
		}
	}
	for _, what := range slices.Sorted(maps.Keys(seen)) {
		t.Logf("%7d  %s", seen[what], what)
	}
	wanted := []string{
		"code 0", "code 1", "code 2", "code 3", "code 5", "a reply that nobody wants", "a hold",
		"a return", "a refund", "a debt", "a short grant", "held more than was on record", "of another bucket",
		"returned", "burnt", "fallback", "opened", "settled", "refused",
	}
	for v := range Verb(len(verbs)) {
		switch v {
		case Freeze, Clone, Copy, Promote: // break what is assumed, and have a test of their own
		default:
			wanted = append(wanted, v.String())
		}
	}
	for _, what := range wanted {
		if seen[what] < 3 {
			t.Errorf("%s: %d times in %d schedules", what, seen[what], schedules)
		}
	}
}

// census counts what a reply tells somebody who waits for it.
func census(r *reply, seen map[string]int) {
	c, a := r.to.call, r.answer
	for what, is := range map[string]bool{
		"a hold":                       c.Hold > 0,
		"a return":                     c.Ret > 0,
		"a refund":                     c.Refund > 0,
		"a debt":                       c.Debt > 0,
		"a short grant":                a.Grant > 0 && a.Grant < c.Want,
		"held more than was on record": a.Flags&lua.Adopted != 0,
		"of another bucket":            a.Flags&lua.OtherEpoch != 0,
	} {
		if is && a.Code <= lua.Replay {
			seen[what]++
		}
	}
}
