package tiered_test

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"

	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/race"
	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/redistest"
	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/watch"
	"github.com/tiered-limiter/tiered-limiter/lua"
	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

const (
	ms     = time.Millisecond
	second = time.Second
)

var (
	ctx         = context.Background() // of calls that nobody calls off
	neverLeased = tiered.Lease{Size: tiered.NoLease}
	algorithms  = choices()
	failModes   = []tiered.FailMode{tiered.FailLocal, tiered.FailOpen, tiered.FailClosed}
)

// choices are the algorithms that a policy can have.
func choices() (all []tiered.Algorithm) {
	for _, a := range lua.Choices() {
		all = append(all, tiered.Algorithm(a))
	}
	return all
}

// A client of go-redis that is closed while nobody listens sleeps for a second before it notices.
func TestMain(m *testing.M) {
	slog.SetDefault(slog.New(slog.DiscardHandler)) // hundreds of lines about outages, in which a verdict drowns
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("github.com/redis/go-redis/v9/internal/pool.(*ConnPool).tryDial"))
}

// distant is a Memory at the end of a wire: each call takes a round trip, and the wire can be
// disturbed.
type distant struct {
	*remote.Memory
	trip time.Duration
	tail func() float64 // if not nil: what a way takes, in times the average

	runs, calls  atomic.Int64
	near         atomic.Bool // the round trip is a millisecond now
	loseRequests atomic.Bool
	loseReplies  atomic.Bool

	down  func() bool // if not nil: nothing gets through now
	lossy func() bool // if not nil: this reply is lost
}

func (d *distant) half() time.Duration {
	if d.near.Load() {
		return ms / 2
	}
	if d.tail != nil {
		return time.Duration(d.tail() * float64(d.trip) / 2)
	}
	return d.trip / 2
}

func newDistant(trip time.Duration) *distant { return &distant{Memory: remote.NewMemory(), trip: trip} }

func (d *distant) Run(ctx context.Context, timeout time.Duration, calls []lua.Call, results []remote.Result) {
	d.runs.Add(1)
	d.calls.Add(int64(len(calls)))
	time.Sleep(d.half())
	lost := d.loseRequests.Load() || d.down != nil && d.down()
	if !lost {
		d.Memory.Run(ctx, timeout, calls, results)
	}
	if lost || d.loseReplies.Load() || d.lossy != nil && d.lossy() {
		time.Sleep(timeout)
		for i := range calls {
			results[i] = remote.Result{Err: context.DeadlineExceeded}
		}
		return
	}
	time.Sleep(d.half())
}

func (d *distant) Presence(
	ctx context.Context, timeout time.Duration, n remote.Node, p remote.Process,
) (remote.Census, error) {
	time.Sleep(d.half())
	if d.loseRequests.Load() || d.loseReplies.Load() || d.down != nil && d.down() {
		time.Sleep(timeout)
		return remote.Census{}, context.DeadlineExceeded
	}
	c, err := d.Memory.Presence(ctx, timeout, n, p)
	time.Sleep(d.half())
	return c, err
}

// bubble runs a part of a test in virtual time.
func bubble(t *testing.T, name string, f func(t *testing.T)) {
	t.Run(name, func(t *testing.T) { synctest.Test(t, f) })
}

// must returns what a constructor made.
func must[T any](made T, err error) T {
	if err != nil {
		panic(err)
	}
	return made
}

// ok wants no error.
func ok(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Error(err)
	}
}

// reasonOf returns the Reason of a refusal's error, Unknown of another error.
func reasonOf(err error) tiered.Reason {
	var refusal *tiered.LimitedError
	if !errors.As(err, &refusal) {
		return tiered.Unknown
	}
	return refusal.Decision.Reason
}

// limiter returns a Limiter that is closed at the end of the test. Its store refuses no call,
// unless it is watch.Damaged. A policy without a name is called api. Without options nothing is
// logged.
func limiter(t *testing.T, s remote.Store, p tiered.Policy, o *tiered.Options) *tiered.Limiter {
	t.Helper()
	p.Name = cmp.Or(p.Name, "api")
	l := must(tiered.New(watch.Over(t, s), p, unlogged(o)))
	t.Cleanup(func() { sound(t, l.Group(), s); closeIn(t, l, 5*second) })
	return l
}

// several returns a Limiter for each policy, all of one Group. See limiter.
func several(t *testing.T, s remote.Store, o *tiered.Options, policies ...tiered.Policy) (all []*tiered.Limiter) {
	t.Helper()
	g := must(tiered.NewGroup(watch.Over(t, s), unlogged(o)))
	t.Cleanup(func() { sound(t, g, s); closeIn(t, g, 5*second) })
	for _, p := range policies {
		p.Name = cmp.Or(p.Name, "api")
		all = append(all, must(g.NewLimiter(p)))
	}
	return all
}

// unlogged returns options under which nothing is logged, unless they say how.
func unlogged(o *tiered.Options) *tiered.Options {
	if o == nil {
		return &tiered.Options{Logger: slog.New(slog.DiscardHandler)}
	}
	return o
}

// node returns the figures of the only node of a Limiter on a Memory.
func node(l *tiered.Limiter) tiered.NodeStats { return l.Group().Stats().Nodes["memory"] }

// sound checks figures that stay 0 while nobody damages the store, whatever happens to the network.
func sound(t *testing.T, g *tiered.Group, s remote.Store) {
	t.Helper()
	if _, damaged := s.(watch.Damaged); damaged {
		return
	}
	for _, n := range g.Stats().Nodes {
		if n.Faults.StateLosses > 0 || n.Calls.Misconfigured > 0 {
			t.Errorf("%d state losses and %d calls refused to this user, on a store that nobody damaged",
				n.Faults.StateLosses, n.Calls.Misconfigured)
		}
	}
}

func closeIn(t *testing.T, l interface{ Close(context.Context) error }, d time.Duration) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), d)
	defer cancel()
	if err := l.Close(ctx); err != nil {
		t.Errorf("Close: %v", err)
	}
}

// want checks a decision.
func want(t *testing.T, d tiered.Decision, r tiered.Reason) {
	t.Helper()
	if d.Reason != r || d.Allowed != (r == tiered.Granted) {
		t.Fatalf("got %+v, want %v", d, r)
	}
}

// books checks a policy's equation in Stats.
func books(t *testing.T, g *tiered.Group) {
	t.Helper()
	for name, s := range g.Stats().Policies {
		if s.Leases.Granted != s.Leases.Spent+s.Leases.Returned+s.Leases.Burnt+s.Leases.Held {
			t.Errorf("policy %s: granted ≠ spent + returned + burnt + held: %+v", name, s)
		}
		if l := s.Leases; min(l.Spent, l.Returned, l.Burnt, l.Held) < 0 {
			t.Errorf("policy %s has less than nothing: %+v", name, l)
		}
	}
}

// burstOf and nanosPerTokenOf are the numbers of a limit.
func burstOf(l tiered.Limit) int64 {
	if l.Burst != 0 {
		return l.Burst
	}
	return l.Tokens
}

func nanosPerTokenOf(l tiered.Limit) float64 { return float64(l.Per) / float64(l.Tokens) }

// notUnderRace skips a test of many runs in virtual time: under the race detector it takes ten
// times as long, and shorter tests run the same code there. `make test` runs those named TestFleet
// without the detector.
func notUnderRace(t *testing.T) {
	t.Helper()
	if race.On {
		t.Skip("many runs: not under the race detector")
	}
}

// onBoth runs a test over a Memory and over a real Redis; periods of hours make the time that it
// takes no matter.
func onBoth(t *testing.T, f func(t *testing.T, store remote.Store)) {
	t.Run("memory", func(t *testing.T) { f(t, remote.NewMemory()) })
	t.Run("redis", func(t *testing.T) { f(t, open(t, redistest.Start(t).URL())) })
}

// patientOptions are options under which a slow machine is no outage.
func patientOptions(hooks *tiered.Trace) *tiered.Options {
	return &tiered.Options{Budget: 10 * time.Second, Timeout: 10 * time.Second, Processes: 1, Trace: hooks}
}

// warm spends n tokens of key, one per millisecond.
func warm(t *testing.T, l *tiered.Limiter, key string, n int) {
	t.Helper()
	warmEach(t, l, key, n, ms)
}

// warmEach is warm with another time between the requests.
func warmEach(t *testing.T, l *tiered.Limiter, key string, n int, step time.Duration) {
	t.Helper()
	for range n {
		want(t, l.Allow(ctx, key), tiered.Granted)
		time.Sleep(step)
	}
}

// open opens a store that is closed at the end of the test, after its limiters.
func open(t *testing.T, url string) *remote.Redis {
	t.Helper()
	s := must(remote.Open(url, nil))
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// command executes a command of an operator.
func command(t *testing.T, c *redis.Client, args ...any) {
	t.Helper()
	if err := c.Do(ctx, args...).Err(); err != nil {
		t.Fatalf("%v: %v", args, err)
	}
}

// soon polls what real processes do, as long as they may take: there is nothing else to wait on. Of
// what a poll takes it counts 20 ms: the machine was busy elsewhere for the rest.
func soon(t *testing.T, what string, within time.Duration, is func() bool) (took time.Duration) {
	t.Helper()
	begun := time.Now()
	ran, last := time.Duration(0), begun
	for ; !is(); time.Sleep(2 * ms) {
		now := time.Now()
		if ran, last = ran+min(now.Sub(last), 20*ms), now; ran > within {
			t.Fatalf("not within %v: %s", within, what)
		}
	}
	return time.Since(begun)
}

// level reports what a store has of a key, and takes nothing.
func level(t *testing.T, m *remote.Memory, l *tiered.Limiter, key string) int64 {
	t.Helper()
	var r [1]remote.Result
	m.Run(ctx, 0, []lua.Call{tiered.Call(m.Key(l.Policy().Name, tiered.Core(l).ID(key).Key), l)}, r[:])
	if r[0].Err != nil {
		t.Fatal(r[0].Err)
	}
	return r[0].Reply.Level
}

// silence cuts Redis off until the breaker is open, at the cost of requests of a key of their own.
func silence(t *testing.T, store *distant, l *tiered.Limiter) {
	t.Helper()
	store.loseRequests.Store(true)
	for i := 0; node(l).Outages.Breaker != "open"; i++ {
		if i > 100 {
			t.Fatal("the breaker stays closed")
		}
		l.Allow(ctx, "silence")
		time.Sleep(100 * ms)
	}
}

// logged is a Logger that writes into a buffer.
type logged struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *logged) Write(p []byte) (int, error) {
	if greets(p) {
		return len(p), nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

// greets reports whether a line is that of a healthy start, which has a test of its own.
func greets(line []byte) bool { return bytes.Contains(line, []byte(`msg="redis answers" node=`)) }

func (l *logged) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

func (l *logged) lines() []string { return strings.Split(strings.TrimSuffix(l.String(), "\n"), "\n") }

func (l *logged) logger() *slog.Logger {
	return slog.New(slog.NewTextHandler(l, &slog.HandlerOptions{Level: slog.LevelDebug}))
}
