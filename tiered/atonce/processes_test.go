package atonce_test

import (
	"bufio"
	"cmp"
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/redistest"
	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
	"github.com/tiered-limiter/tiered-limiter/tiered/atonce"
)

// Real processes on a real Redis: this test binary is also the program that they run.

const (
	childEnv = "TIERED_ATONCE_CHILD" // the URL of Redis
	life     = 5 * time.Second
	most     = 3 // places of a key
)

func TestMain(m *testing.M) {
	if url := os.Getenv(childEnv); url != "" {
		work(url)
		return
	}
	goleak.VerifyTestMain(m)
}

// work uses places until stdin ends, and prints each use: its number, the key, and when it began;
// then when it ended, and whether its place was lost.
func work(url string) {
	store, err := remote.Open(url, nil)
	if err != nil {
		panic(err)
	}
	g, err := tiered.NewGroup(store, &tiered.Options{
		Budget: 5 * time.Second, Timeout: 5 * time.Second, Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		panic(err)
	}
	l, err := atonce.New(g, atonce.Policy{Name: "p", Places: most, Life: life, FailMode: tiered.FailClosed})
	if err != nil {
		panic(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	var tasks sync.WaitGroup
	var mu sync.Mutex
	uses := 0
	for i := range 6 {
		tasks.Go(func() {
			for ctx.Err() == nil {
				key := []string{"a", "b"}[i%2]
				p, err := l.Wait(ctx, key)
				if err != nil {
					time.Sleep(10 * time.Millisecond)
					continue
				}
				mu.Lock()
				uses++
				number := uses
				fmt.Printf("begin %d %s %d\n", number, key, time.Now().UnixNano())
				mu.Unlock()
				time.Sleep(time.Duration(1+number%20) * time.Millisecond)
				lost := 0
				select {
				case <-p.Lost():
					lost = 1
				default:
				}
				mu.Lock()
				fmt.Printf("end %d %d %d\n", number, time.Now().UnixNano(), lost)
				mu.Unlock()
				p.Release()
			}
		})
	}
	tasks.Go(func() { // a request that runs for as long as the process, if it is not told that its place is lost
		p, err := l.Wait(ctx, "long")
		if err != nil {
			return
		}
		defer p.Release()
		select {
		case <-p.Lost():
			mu.Lock()
			fmt.Printf("lost %d\n", time.Now().UnixNano())
			mu.Unlock()
		case <-ctx.Done():
		}
	})
	_, _ = io.Copy(io.Discard, os.Stdin)
	stop()
	tasks.Wait()
	_ = g.Close(context.Background())
	_ = store.Close()
}

// use is one use of a place by a process.
type use struct {
	key        string
	begin, end int64 // ns; end is 0 while it lasts
	lost       bool
}

// worker is a process that runs work.
type worker struct {
	cmd   *exec.Cmd
	stdin io.Closer
	done  chan struct{}

	mu   sync.Mutex
	uses map[int]*use
	lost int64 // when it was told that its long request has no place; 0 is never
}

func startWorker(t *testing.T, url string) *worker {
	t.Helper()
	w := &worker{cmd: exec.Command(os.Args[0]), done: make(chan struct{}), uses: map[int]*use{}}
	w.cmd.Env = append(os.Environ(), childEnv+"="+url)
	w.cmd.SysProcAttr = redistest.DieWithParent()
	w.cmd.Stderr = os.Stderr
	stdin, err := w.cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	w.stdin = stdin
	out, err := w.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := w.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(w.done)
		for lines := bufio.NewScanner(out); lines.Scan(); {
			var number, lost int
			var key string
			var at int64
			w.mu.Lock()
			_, _ = fmt.Sscanf(lines.Text(), "lost %d", &w.lost)
			if n, _ := fmt.Sscanf(lines.Text(), "begin %d %s %d", &number, &key, &at); n == 3 {
				w.uses[number] = &use{key: key, begin: at}
			} else if n, _ := fmt.Sscanf(lines.Text(), "end %d %d %d", &number, &at, &lost); n == 3 && w.uses[number] != nil {
				w.uses[number].end, w.uses[number].lost = at, lost == 1
			}
			w.mu.Unlock()
		}
	}()
	return w
}

func (w *worker) count() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.uses)
}

// end ends the process, by force or not, and returns its uses. What lasts ends with it.
func (w *worker) end(kill bool) (all []use) {
	if kill {
		_ = w.cmd.Process.Kill()
	} else {
		_ = w.stdin.Close()
	}
	<-w.done
	_ = w.cmd.Wait()
	now := time.Now().UnixNano()
	for _, u := range w.uses {
		if u.end == 0 {
			u.end = now
		}
		all = append(all, *u)
	}
	return all
}

// peak returns how many uses of a key there were at the same time at most, and how many in all.
// What was lost is promised no more.
func peak(all []use, key string) (most, count int) {
	type change struct {
		at int64
		by int
	}
	var changes []change
	for _, u := range all {
		if u.key == key && !u.lost {
			changes = append(changes, change{u.begin, 1}, change{u.end, -1})
			count++
		}
	}
	slices.SortFunc(changes, func(a, b change) int { return cmp.Or(cmp.Compare(a.at, b.at), a.by-b.by) })
	now := 0
	for _, c := range changes {
		now += c.by
		most = max(most, now)
	}
	return most, count
}

// judge checks that no key ran more than its places, and that they were used.
func judge(t *testing.T, all []use) {
	t.Helper()
	for _, key := range []string{"a", "b"} {
		top, count := peak(all, key)
		t.Logf("%s: %d uses, %d at once", key, count, top)
		if top > most {
			t.Errorf("%s: %d ran at once, of %d places", key, top, most)
		}
		if top < most || count < 20 {
			t.Errorf("%s: %d uses, %d at once: the test shows nothing", key, count, top)
		}
	}
}

// waitForUses waits until a process has used so many places more.
func (w *worker) waitForUses(t *testing.T, n int) {
	t.Helper()
	before := w.count()
	redistest.WaitFor(t, "a process uses no places", func() bool { return w.count() >= before+n })
}

func TestProcesses(t *testing.T) {
	if testing.Short() {
		t.Skip("20 s of real time")
	}
	t.Parallel()
	server := redistest.Start(t)
	url := "redis://" + server.Addr
	killed, stopped, other := startWorker(t, url), startWorker(t, url), startWorker(t, url)
	for _, w := range []*worker{killed, stopped, other} {
		w.waitForUses(t, 20)
	}
	store, err := remote.Open(url, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	ours := start(t, store, atonce.Policy{Name: "p", Places: most, Life: life}, &tiered.Options{Budget: 5 * time.Second, Timeout: 5 * time.Second})
	ours.refused(t, "long", atonce.ErrFull)
	// take takes a place of a process that says no more, since a time.
	take := func(since time.Time) *atonce.Place {
		place, err := ours.Wait(ctx(), "long")
		if err != nil {
			t.Fatal(err)
		}
		if took := time.Since(since); took < life-time.Second || took > life+time.Second {
			t.Errorf("its place is free after %v", took)
		} else {
			t.Logf("its place is free after %v", took)
		}
		return place
	}
	killedAt := time.Now()
	all := killed.end(true)
	other.waitForUses(t, 20)
	defer take(killedAt).Release()

	// A short stop is none; after a long one its places have gone to others.
	var stoppedAt, resumedAt int64 // of the long one
	for _, d := range []time.Duration{time.Second, life + 2*time.Second} {
		stoppedAt = time.Now().UnixNano()
		_ = stopped.cmd.Process.Signal(syscall.SIGSTOP)
		if d > life {
			defer take(time.Now()).Release()
		}
		time.Sleep(time.Until(time.Unix(0, stoppedAt).Add(d)))
		other.waitForUses(t, 20)
		resumedAt = time.Now().UnixNano()
		_ = stopped.cmd.Process.Signal(syscall.SIGCONT)
		stopped.waitForUses(t, 20)
	}
	redistest.WaitFor(t, "it is not told that its place went to others", func() bool {
		stopped.mu.Lock()
		defer stopped.mu.Unlock()
		return stopped.lost > 0
	})
	took := time.Duration(stopped.lost - resumedAt)
	if t.Logf("it is told after %v", took); took > 2*time.Second || other.lost > 0 {
		t.Errorf("told after %v, and another process at %d", took, other.lost)
	}

	// A pause of Redis.
	server.Pause()
	time.Sleep(time.Second)
	server.Resume()
	third := startWorker(t, url)
	for _, w := range []*worker{stopped, other, third} {
		w.waitForUses(t, 20)
	}
	for _, w := range []*worker{stopped, other, third} {
		for _, u := range w.end(false) {
			// What ran while the process stood still was promised for a life. It may have ended
			// before anybody could tell it.
			if w != stopped || u.end < stoppedAt || u.begin > resumedAt {
				all = append(all, u)
			}
		}
	}
	judge(t, all)

	redistest.WaitFor(t, "places are missing", func() bool {
		place, err := ours.For("a").N(most).Acquire(ctx())
		place.Release()
		return err == nil
	})
}

// TestRestart: a Redis that comes back empty hears of all that runs. Until then others may get what
// it does not know of, so only the end is judged.
func TestRestart(t *testing.T) {
	if testing.Short() {
		t.Skip("5 s of real time")
	}
	t.Parallel()
	server := redistest.Start(t)
	options := &tiered.Options{Budget: time.Second, Timeout: time.Second}
	store, err := remote.Open("redis://"+server.Addr, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	policy := atonce.Policy{Name: "p", Places: most, FailMode: tiered.FailOpen}
	a, b := start(t, store, policy, options), start(t, store, policy, options)
	held := []*atonce.Place{a.acquire(t, "k"), b.acquire(t, "k")}
	server.Kill()
	held = append(held, a.acquire(t, "k"), a.acquire(t, "k")) // by the fail mode
	server.Restart()
	redistest.WaitFor(t, "Redis does not hear of what runs", func() bool {
		u, err := b.Peek(ctx(), "k")
		return err == nil && u.Running == len(held)
	})
	b.refused(t, "k", atonce.ErrFull)
	for _, p := range held {
		p.Release()
	}
	redistest.WaitFor(t, "places are missing", func() bool {
		u, err := b.Peek(ctx(), "k")
		return err == nil && u.Running == 0
	})
}

// startTwo starts two processes.
func startTwo(t *testing.T, url string) []*worker {
	t.Helper()
	workers := []*worker{startWorker(t, url), startWorker(t, url)}
	for _, w := range workers {
		w.waitForUses(t, 20)
	}
	return workers
}

// slotOfA returns the slot of the key a.
func slotOfA(c *redistest.Cluster) int {
	return int(c.Client(0).ClusterKeySlot(ctx(), "{p/a}").Val())
}

func TestCluster(t *testing.T) {
	if testing.Short() {
		t.Skip("10 s of real time")
	}
	t.Parallel()
	c := redistest.StartCluster(t, 3)
	workers, slot := startTwo(t, c.URL(0, 1, 2)), slotOfA(c)
	from := c.Owner(slot)
	c.Migrate(slot, from, (from+1)%3)
	for _, w := range workers {
		w.waitForUses(t, 60)
	}
	var all []use
	for _, w := range workers {
		all = append(all, w.end(false)...)
	}
	judge(t, all)
}

// TestFailover: a primary dies, and its replica, which has all but the last writes, goes on. What
// the lost writes granted may be granted once more, until processes renew; then no key runs more
// than its places.
func TestFailover(t *testing.T) {
	if testing.Short() {
		t.Skip("15 s of real time")
	}
	t.Run("Cluster", func(t *testing.T) {
		t.Parallel()
		c := redistest.StartReplicatedCluster(t, 3)
		failover(t, c.URL(0, 1, 2), c.Servers[c.Owner(slotOfA(c))])
	})
	t.Run("Sentinel", func(t *testing.T) {
		t.Parallel()
		s := redistest.StartSentinel(t)
		failover(t, s.URL(), s.Primary)
	})
}

func failover(t *testing.T, url string, primary *redistest.Server) {
	workers := startTwo(t, url)
	died := time.Now().UnixNano()
	primary.Kill()
	of := func(w *worker, key string) func() bool {
		return func() bool {
			w.mu.Lock()
			defer w.mu.Unlock()
			n := 0
			for _, u := range w.uses {
				if u.key == key && u.begin > died+int64(2*time.Second) {
					n++
				}
			}
			return n > 20
		}
	}
	for _, w := range workers {
		redistest.WaitFor(t, "the key is not served after the failover", of(w, "a"))
	}
	renewed := time.Now().Add(2 * time.Second).UnixNano()
	time.Sleep(4 * time.Second)
	var all []use
	for _, w := range workers {
		for _, u := range w.end(false) {
			if u.end < died || u.begin > renewed {
				all = append(all, u)
			}
		}
	}
	judge(t, all)
}
