package sim

import (
	"math/rand/v2"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/sim/scenario"
)

// executionTime is the time between two calls that waited while Redis was frozen.
const executionTime = 12 * time.Microsecond

// virtualEngine has a remote.Memory for a Redis, which answers as the scripts do, bit for bit. Messages are goroutines
// that sleep.
type virtualEngine struct {
	listener
	seed  uint64
	base  time.Time
	net   scenario.Net
	lanes int64 // see virtualStore.arrival

	frozen   pauseGate
	messages sync.WaitGroup // under way

	mu         sync.Mutex
	state      redisState
	generation int            // rises when all connections are cut
	memory     *remote.Memory // the present one
	replica    *remote.Memory
	clock      time.Duration // how far the server's was moved
	loaded     [scripts]bool
	links      map[int]*link
}

// The scripts that Redis loads.
const (
	tokenBucket = iota
	presence
	scripts
)

// newVirtualEngine returns the engine for a fleet of up to most processes at a time. It must be called in a bubble.
func newVirtualEngine(l listener, seed uint64, n scenario.Net, most int) *virtualEngine {
	v := &virtualEngine{
		listener: l, seed: seed, base: time.Now(), net: n, lanes: 1, memory: remote.NewMemory(),
		links: make(map[int]*link),
	}
	for v.lanes < int64(most) {
		v.lanes *= 2
	}
	v.frozen.spacing = executionTime
	return v
}

// link is the network of a slot.
type link struct {
	mu      sync.Mutex
	c       conditions
	changed chan struct{} // closed, and replaced, when c changes
}

func (l *link) now() (conditions, <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.c, l.changed
}

func (v *virtualEngine) link(slot int) *link {
	v.mu.Lock()
	defer v.mu.Unlock()
	l := v.links[slot]
	if l == nil {
		l = &link{changed: make(chan struct{})}
		v.links[slot] = l
	}
	return l
}

func (v *virtualEngine) connect(slot int, c conditions) {
	l := v.link(slot)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.c = c
	close(l.changed)
	l.changed = make(chan struct{})
}

func (v *virtualEngine) serve(s redisState) {
	v.mu.Lock()
	if s.down && !v.state.down {
		v.generation++
	}
	v.state = s
	v.mu.Unlock()
	if s.frozen {
		v.frozen.shut()
	} else {
		v.frozen.open()
	}
}

func (v *virtualEngine) flush() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.memory = v.empty()
}

// empty returns a new Redis with the clock of the old one.
func (v *virtualEngine) empty() *remote.Memory {
	m := remote.NewMemory()
	m.Step(v.clock)
	return m
}

func (v *virtualEngine) flushScripts() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.loaded = [scripts]bool{}
}

func (v *virtualEngine) evict(keys int, random *rand.Rand) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, b := range sample(v.memory.Buckets(), keys, random) {
		v.memory.Del(b)
	}
}

// sample returns n of the names, at random, whatever their order is.
func sample(names []string, n int, random *rand.Rand) []string {
	slices.Sort(names)
	random.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
	return names[:min(n, len(names))]
}

func (v *virtualEngine) step(by time.Duration) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.clock += by
	v.memory.Step(by)
}

func (v *virtualEngine) remember() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.replica = v.memory.Clone()
}

func (v *virtualEngine) promote() {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.memory, v.replica = v.replica, nil; v.memory == nil {
		v.memory = v.empty()
	}
	v.loaded = [scripts]bool{}
}

// close waits for all messages: in a bubble no time passes after the end.
func (v *virtualEngine) close() error {
	v.messages.Wait()
	return v.memory.Close()
}

// at returns the state of Redis for a request that arrives now.
func (v *virtualEngine) at(script int) (m *remote.Memory, s redisState, lives int, loaded bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.memory, v.state, v.generation, v.loaded[script]
}

// load records that Redis was sent a script.
func (v *virtualEngine) load(script int) {
	v.mu.Lock()
	v.loaded[script] = true
	v.mu.Unlock()
	v.happened("script_sent")
}

// refused returns the error of a call that Redis does not execute.
func refused(word string) error {
	text := refusal(word)
	if strings.HasPrefix(text, "WRONGTYPE") { // as remote.Redis has it
		return &remote.ScriptError{Text: text}
	}
	return reply(text)
}

// reply is an error that Redis sent. It is classified as a redis.Error.
type reply string

func (r reply) Error() string { return string(r) }

// RedisError marks it as a reply of Redis.
func (reply) RedisError() {}

// What a network does to who uses it.
var (
	// The errors of a broken network.
	errRefused  = &net.OpError{Op: "dial", Net: "tcp", Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}
	errReset    = &net.OpError{Op: "read", Net: "tcp", Err: os.NewSyscallError("read", syscall.ECONNRESET)}
	errTimedOut = &net.OpError{Op: "read", Net: "tcp", Err: os.ErrDeadlineExceeded}
)
