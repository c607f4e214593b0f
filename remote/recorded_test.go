package remote_test

import (
	"crypto/sha256"
	"flag"
	"fmt"
	"hash"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/tiered-limiter/tiered-limiter/lua"
)

var update = flag.Bool("update", false, "record testdata/recorded.txt anew: after a change of the protocol")

// Random histories come out as they were recorded: the arguments that Redis is sent, the replies,
// all that is stored and every time to live. They have debts, resets, late and repeated calls,
// clocks that are set and keys that are lost. Other tests compare the scripts with Memory; this one
// compares Memory and the encoder with what they were.
func TestRecordedCalls(t *testing.T) {
	const file = "testdata/recorded.txt"
	var all strings.Builder
	for _, k := range kindsOfAll {
		r := recorder{sum: sha256.New()}
		for _, calls := range []int{2000, 100_000} {
			if calls > 2000 && testing.Short() && !*update {
				break
			}
			for r.calls < calls {
				r.play(t, k)
			}
			fmt.Fprintf(&all, "%s, %d calls: %x\n", k.algorithm, calls, r.sum.Sum(nil))
		}
	}
	if *update {
		if err := os.WriteFile(file, []byte(all.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	golden, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(all.String()) {
		if !strings.Contains(string(golden), line) {
			t.Errorf("not as recorded: %s", line)
		}
	}
}

// recorder plays histories, each with a seed of its own, and sums up what comes of them.
type recorder struct {
	sum     hash.Hash
	history uint64
	calls   int
}

// play plays a history of about forty calls.
func (r *recorder) play(t *testing.T, k windowKind) {
	r.history++
	draw := rand.New(rand.NewPCG(r.history, 1)).IntN
	if k.algorithm == lua.TokenBucket {
		w := newWalk("{walk}tb2", draw)
		for range 40 {
			w.step()
		}
		for _, e := range w.events {
			if e.by == nil {
				fmt.Fprintln(r.sum, e.loss, e.hdel)
				continue
			}
			r.note(e.call, e.answer, e.state)
		}
		return
	}
	h := newWindowHistory(k, "{window}"+k.algorithm.String(), draw)
	e := memoryEngine()
	for range 40 {
		h.pass()
		before := e.memory.Fields(h.bucket)
		if e.memory.StopClock(h.now); before != nil && e.memory.Fields(h.bucket) == nil {
			e.memory.Del(h.bucket) // its time is over, and the clock may be set back
		}
		c := h.next()
		a := e.call(t, c)
		r.note(c, a, e.lookAt(t, k.algorithm, h.bucket))
		h.learn(c, a)
	}
}

// note adds a call to the sum.
func (r *recorder) note(c lua.Call, a answer, s stored) {
	r.calls++
	fmt.Fprintln(r.sum, c.Arguments(nil, nil), a.err, a.reply.Code, a.reply.Grant, a.reply.Level, a.reply.Retry,
		a.reply.Active, a.reply.TTLLeft,
		a.reply.Now, a.reply.Epoch, a.reply.Flags, a.reply.Overflow, a.reply.Which, a.reply.Reset, a.reply.Stamp,
		s.pttl)
	for _, field := range slices.Sorted(maps.Keys(s.fields)) {
		fmt.Fprintln(r.sum, field, s.fields[field])
	}
}
