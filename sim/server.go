package sim

import (
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/tiered-limiter/tiered-limiter/remote"
)

// server is Redis: a remote.Memory, which answers as the scripts do, and what is wrong with it. The
// schedule calls the methods that change it from one goroutine. Stores read it concurrently.
type server struct {
	sent   func()    // is called when a store sends a script
	frozen pauseGate // shut while Redis stands still

	mu      sync.Mutex
	state   serverState
	life    int            // rises when all connections are cut
	memory  *remote.Memory // what it stores
	replica *remote.Memory
	clock   time.Duration // how far its clock was moved
	loaded  [scripts]bool
}

// serverState is what is wrong with Redis. The zero value is a healthy one.
type serverState struct {
	down   bool   // connections are refused
	frozen bool   // requests wait, and are executed when it goes on
	refuse string // the error that it answers instead of executing a script; empty: it executes
}

// The scripts that Redis loads.
const (
	tokenBucket = iota
	presence
	atOnce
	scripts
)

// executionTime is the time between two calls that waited while Redis was frozen.
const executionTime = 12 * time.Microsecond

func newServer(sent func()) *server {
	return &server{sent: sent, frozen: pauseGate{spacing: executionTime}, memory: remote.NewMemory()}
}

// serve sets what is wrong. When Redis goes down, all connections are cut.
func (s *server) serve(state serverState) {
	s.mu.Lock()
	if state.down && !s.state.down {
		s.life++
	}
	s.state = state
	s.mu.Unlock()
	if state.frozen {
		s.frozen.shut()
	} else {
		s.frozen.open()
	}
}

// flush deletes every bucket and the presence set.
func (s *server) flush() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.memory = s.empty()
}

// empty returns a new Redis with the clock of the old one.
func (s *server) empty() *remote.Memory {
	m := remote.NewMemory()
	m.Step(s.clock)
	return m
}

func (s *server) flushScripts() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.loaded = [scripts]bool{}
}

// evict deletes a number of buckets, chosen at random.
func (s *server) evict(keys int, random *rand.Rand) {
	s.mu.Lock()
	defer s.mu.Unlock()
	names := s.memory.Buckets()
	slices.Sort(names) // so that the draw depends on the seed alone
	random.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
	for _, b := range names[:min(keys, len(names))] {
		s.memory.Del(b)
	}
}

// step sets the clock of Redis.
func (s *server) step(by time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.clock += by
	s.memory.Step(by)
}

// remember lets a replica take over all that is written. It follows no more after that.
func (s *server) remember() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.replica = s.memory.Clone()
}

// promote makes the replica the master; an empty one if there was none.
func (s *server) promote() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.memory, s.replica = s.replica, nil; s.memory == nil {
		s.memory = s.empty()
	}
	s.loaded = [scripts]bool{}
}

func (s *server) close() error { return s.memory.Close() }

// now returns Redis as it is for a request that arrives now.
func (s *server) now(script int) (m *remote.Memory, state serverState, life int, loaded bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.memory, s.state, s.life, s.loaded[script]
}

// load records that Redis was sent a script.
func (s *server) load(script int) {
	s.mu.Lock()
	s.loaded[script] = true
	s.mu.Unlock()
	s.sent()
}

// refused returns the error of a call that Redis does not execute. The limiter looks at its first
// words, so the rest is not as Redis has it.
func refused(says string) error {
	text := says + " (of the scenario)"
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
