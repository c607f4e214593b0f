package remote_test

import (
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/redis/go-redis/v9"

	"github.com/tiered-limiter/tiered-limiter/internal/rig/redistest"
	"github.com/tiered-limiter/tiered-limiter/lua"
	"github.com/tiered-limiter/tiered-limiter/remote"
)

const (
	// historySteps is how often each process does something in one history. What is unknown is under way for ever, and
	// checking grows with what is under way: twenty steps leave a dozen such calls on a bucket, and take a millisecond.
	historySteps = 20

	// historyPatience bounds a call. It is never reached: the network makes a call wait in vain without any waiting.
	historyPatience = 30 * time.Second
)

// TestHistoryOnRedis lets processes lease, return and take tokens at once, over connections that break. It records who
// sent what and heard what when, and porcupine looks for an order in which one bucket would have answered just so.
//
// The seed decides what the processes do and which requests the network disturbs, but not who comes first: a
// history that fails may pass the next time. All that is needed to understand it is printed.
func TestHistoryOnRedis(t *testing.T) {
	histories := 600
	if testing.Short() {
		histories = 120
	}
	w, tally := newHistoryWorld(t), make(historyTally)
	begun := time.Now()
	for seed := range uint64(histories) {
		h := w.play(seed)
		if h.check(t); t.Failed() {
			t.FailNow()
		}
		tally.add(h)
	}
	tally.addFaults(w.network)
	tally["calls with the text of the script"] = int(w.server.Calls(w.admin, "eval"))
	t.Logf("%d histories in %v:\n%v", histories, time.Since(begun).Round(time.Millisecond), tally)
	for name, n := range tally {
		if n == 0 {
			t.Errorf("%s: none, so these histories show nothing of it", name)
		}
	}
}

// historyWorld is a server, and for each process two ways there: one for its calls and one for copies of them.
type historyWorld struct {
	server  *redistest.Server
	network *faultyNetwork
	admin   *redis.Client
	links   [2 * historyProcesses]*link
	clients [2 * historyProcesses]*redis.Client
}

func newHistoryWorld(t *testing.T) *historyWorld {
	server := redistest.Start(t)
	w := &historyWorld{server: server, network: new(faultyNetwork), admin: server.Client()}
	for i := range w.links {
		w.links[i] = &link{network: w.network}
		// At go-redis' defaults, by which a command is repeated three times; and both ways to bound a call.
		o := server.Options(redis.Options{Dialer: w.links[i].dial, ContextTimeoutEnabled: i%2 == 0})
		w.clients[i] = redis.NewClient(o)
		t.Cleanup(func() { _ = w.clients[i].Close() })
	}
	return w
}

// play makes a history: first with faults; then everything is given back without, and what is left is looked at.
func (w *historyWorld) play(seed uint64) *history {
	h := &history{seed: seed, network: w.network, admin: w.admin}
	chance := func(of int) *rand.Rand { return rand.New(rand.NewPCG(seed, uint64(of))) }
	options := &remote.RedisOptions{Prefix: fmt.Sprintf("tl:history-%d:", seed)} // so that the buckets are new
	sizes := chance(-1)
	caps := map[string]int64{"small": 3 + sizes.Int64N(6), "large": 10 + sizes.Int64N(30)}

	processes := make([]*historyProcess, historyProcesses)
	for who := range processes {
		p := &historyProcess{
			history: h, who: who, id: fmt.Sprintf("process-%d", who), chance: chance(-2 - who),
			now:    time.Now().UnixMicro(),
			store:  remote.NewRedis(w.clients[who], options),
			copies: remote.NewRedis(w.clients[historyProcesses+who], options),
		}
		for _, name := range []string{"small", "large"} {
			p.holdings = append(p.holdings, holding{bucket: p.store.Key("test", name), cap: caps[name]})
		}
		processes[who] = p
	}

	for i, l := range w.links {
		l.begin(chance(i))
	}
	var living sync.WaitGroup
	for _, p := range processes {
		living.Go(p.live)
	}
	living.Wait()
	h.copying.Wait()
	w.network.lose()
	for _, l := range w.links {
		l.begin(nil)
	}
	for _, p := range processes {
		p.giveBack()
	}
	h.copying.Wait()
	return h
}

// history is what was done to two buckets, by whom and when.
type history struct {
	seed    uint64
	network *faultyNetwork
	admin   *redis.Client
	copying sync.WaitGroup // copies of calls that are under way

	clock      atomic.Int64 // counts sendings and returns: only their order matters
	mu         sync.Mutex
	operations []porcupine.Operation
	failures   []string // what is wrong in any order
}

// run executes calls in one round trip and records them. When a call that failed was given up is kept as its Metadata.
func (h *history) run(s remote.Store, calls ...historyCall) []remote.Result {
	plain, results := make([]lua.Call, len(calls)), make([]remote.Result, len(calls))
	for i, c := range calls {
		plain[i] = c.Call
	}
	sent := h.clock.Add(1)
	s.Run(noContext, historyPatience, plain, results)
	returned := h.clock.Add(1)
	h.mu.Lock()
	defer h.mu.Unlock()
	for i, r := range results {
		op := porcupine.Operation{
			Input: calls[i], Call: sent, Output: historyOutcome{}, Return: math.MaxInt64,
			Metadata: returned,
		}
		switch {
		case r.Err == nil:
			op.Output, op.Return = outcomeOf(r.Reply), returned
		case !isFault(r.Err): // a refusal, for example: no call here deserves one
			h.failures = append(h.failures, fmt.Sprintf("%v: %v", calls[i], r.Err))
		}
		h.operations = append(h.operations, op)
	}
	return results
}

// isFault reports whether an error is one that the network made, or that of a script forgotten between two calls of a
// pipeline. A reply that cannot be read would be another, as it comes from a connection out of step. The network cuts a
// connection by closing the client's end, and go-redis may use it once more before it reads the error.
func isFault(err error) bool {
	faults := []error{io.EOF, net.ErrClosed, syscall.ECONNRESET, syscall.EPIPE, os.ErrDeadlineExceeded}
	for _, fault := range faults {
		if errors.Is(err, fault) {
			return true
		}
	}
	return redis.HasErrorPrefix(err, "NOSCRIPT")
}

// forgetScripts makes the server forget the scripts, so that the next calls have to go out twice.
func (h *history) forgetScripts() {
	if err := h.admin.ScriptFlush(noContext).Err(); err != nil {
		h.fail("SCRIPT FLUSH: " + err.Error())
	}
}

func (h *history) fail(what string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.failures = append(h.failures, what)
}
