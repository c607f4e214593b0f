package remote_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tiered-limiter/tiered-limiter/lua"
	"github.com/tiered-limiter/tiered-limiter/remote"
)

// memoryTake takes n tokens of ten, refilled at one per second.
func memoryTake(m *remote.Memory, bucket string, n int64) (lua.Reply, error) {
	var r [1]remote.Result
	m.Run(noContext, time.Second, []lua.Call{{
		Bucket: bucket, Cap: 10, Tokens: 1, Period: 1e6, TTL: 1e6, Fleet: 1, Want: n, Min: n,
	}}, r[:])
	return r[0].Reply, r[0].Err
}

func TestMemoryRunsCallsInOrder(t *testing.T) {
	m := remote.NewMemory()
	call := lua.Call{Bucket: m.Key("p", "k"), Cap: 3, Tokens: 0, Period: 1, TTL: 1e6, Fleet: 1, Want: 2, Min: 2}
	bad, peek, never := call, call, call
	bad.Fleet = 0
	peek.Want, peek.Min = 0, 0
	never.Want, never.Min = 4, 4
	results := []remote.Result{5: {Err: io.EOF, Reply: lua.Reply{Grant: 99}}, 6: {Err: io.EOF}}
	m.Run(t.Context(), 0, []lua.Call{peek, call, call, bad, peek, never}, results)
	var got string
	for _, r := range results[:6] {
		got += fmt.Sprintf("%d %d %d %v; ", r.Reply.Code, r.Reply.Grant, r.Reply.Level, r.Err)
	}
	want := "0 0 3 <nil>; 0 2 1 <nil>; 1 0 1 <nil>; 0 0 0 remote: RLARG argument 17; 0 0 1 <nil>; 4 0 0 <nil>; "
	if got != want {
		t.Errorf("have %s\nwant %s", got, want)
	}
	if results[6].Err != io.EOF { //nolint:errorlint // that very value
		t.Error("a result beyond the calls was touched")
	}
	var refusal *remote.ScriptError
	if !errors.As(results[3].Err, &refusal) || refusal.Text != "RLARG argument 17" {
		t.Errorf("%#v", results[3].Err)
	}
}

func TestMemoryFail(t *testing.T) {
	m := remote.NewMemory()
	if _, err := memoryTake(m, "b", 4); err != nil {
		t.Fatal(err)
	}
	m.Fail(io.EOF)
	//nolint:errorlint // as given, not wrapped
	if r, err := memoryTake(m, "b", 4); err != io.EOF || r != (lua.Reply{}) {
		t.Errorf("failing: %v, %v", r, err)
	}
	me := remote.Process{ID: "a", TTL: time.Second}
	if _, err := m.Presence(t.Context(), 0, m.Node("b"), me); err != io.EOF { //nolint:errorlint // same
		t.Errorf("presence, failing: %v", err)
	}
	m.Fail(nil)
	if r, err := memoryTake(m, "b", 6); err != nil || r.Grant != 6 {
		t.Errorf("healed: %v, %v", r, err)
	}
}

func TestMemoryClose(t *testing.T) {
	m := remote.NewMemory()
	m.Fail(io.EOF)
	if err := errors.Join(m.Close(), m.Close()); err != nil {
		t.Fatal(err)
	}
	if _, err := memoryTake(m, "b", 1); !errors.Is(err, remote.ErrClosed) {
		t.Errorf("take: %v", err)
	}
	if _, err := m.Presence(t.Context(), 0, m.Node("b"), remote.Process{ID: "a"}); !errors.Is(err, remote.ErrClosed) {
		t.Errorf("presence: %v", err)
	}
}

func TestMemoryContext(t *testing.T) {
	m := remote.NewMemory()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	call := lua.Call{Bucket: "b", Cap: 1, Tokens: 1, Period: 1e6, TTL: 1e6, Fleet: 1, Want: 1, Min: 1}
	var r [2]remote.Result
	m.Run(ctx, time.Second, []lua.Call{call, call}, r[:])
	if !errors.Is(r[0].Err, context.Canceled) || !errors.Is(r[1].Err, context.Canceled) {
		t.Errorf("%v", r)
	}
	if len(m.Buckets()) != 0 {
		t.Error("a canceled call was executed")
	}
	me := remote.Process{ID: "a", TTL: time.Second}
	if _, err := m.Presence(ctx, time.Second, m.Node("b"), me); !errors.Is(err, context.Canceled) {
		t.Errorf("presence: %v", err)
	}
	m.Run(t.Context(), 0, []lua.Call{call}, r[:]) // the timeout is nothing to a Memory
	if r[0].Err != nil {
		t.Error(r[0].Err)
	}
}

func TestMemoryCheck(t *testing.T) {
	var null *remote.Memory
	for _, s := range []remote.Store{nil, null, &remote.Memory{}} {
		if remote.Check(s) == nil {
			t.Errorf("%#v passes", s)
		}
	}
	m := remote.NewMemory()
	if err := remote.Check(m); err != nil {
		t.Error(err)
	}
	if a, b := m.Key("p", "a/b"), m.Key("p", "a"); a == b || m.Node(a) != m.Node(b) || m.Node(a) == "" {
		t.Errorf("%q on %q, %q on %q", a, m.Node(a), b, m.Node(b))
	}
}

func TestMemoryPresence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := remote.NewMemory()
		seen := func(id string, ttl time.Duration) int64 {
			c, err := m.Presence(t.Context(), 0, m.Node(""), remote.Process{ID: id, TTL: ttl})
			if err != nil || c.Now != time.Now().UnixMicro() {
				t.Errorf("%v, %v", c, err)
			}
			return c.Processes
		}
		if a, b := seen("a", 10*time.Second), seen("b", 10*time.Second); a != 1 || b != 2 {
			t.Errorf("%d, %d", a, b)
		}
		if n := seen("a", 0); n != 1 {
			t.Errorf("%d after a left", n)
		}
		time.Sleep(20*time.Second + time.Millisecond) // two ttl: the set is gone
		if n := seen("c", time.Hour); n != 1 {
			t.Errorf("%d after b was silent for two ttl", n)
		}
		if _, err := m.Presence(t.Context(), 0, "elsewhere", remote.Process{ID: "a", TTL: time.Second}); err == nil {
			t.Error("there is no such node")
		}
		for _, bad := range []error{
			second(m.Presence(t.Context(), 0, m.Node(""), remote.Process{TTL: time.Second})),
			second(m.Presence(t.Context(), 0, m.Node(""), remote.Process{ID: "a", TTL: -time.Second})),
		} {
			if refusal := (*remote.ScriptError)(nil); !errors.As(bad, &refusal) {
				t.Errorf("%v", bad)
			}
		}
	})
}

func second(_ remote.Census, err error) error { return err }

// TestMemoryClock lets buckets live and die by the clock of a bubble.
func TestMemoryClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := remote.NewMemory()
		take := func(n int64) lua.Reply {
			t.Helper()
			r, err := memoryTake(m, "b", n)
			if err != nil || r.Now != time.Now().UnixMicro() {
				t.Fatalf("%v, %v at %d", r, err, time.Now().UnixMicro())
			}
			return r
		}
		born := take(5).Epoch
		time.Sleep(3500 * time.Millisecond)
		if r := take(9); r.Code != lua.Denied || r.Level != 8 || r.Retry != 500_000 || r.Epoch != born {
			t.Errorf("after 3.5 s: %+v", r)
		}
		// 5 s to refill and 1 s of margin, in whole ms of the clock; there for the whole of the
		// last one.
		time.Sleep(2500*time.Millisecond + 999*time.Microsecond)
		if m.PTTL("b") != 0 || m.Fields("b") == nil {
			t.Errorf("gone too early: %d ms", m.PTTL("b"))
		}
		if r := take(11); r.Code != lua.Never {
			t.Errorf("%+v", r)
		}
		if r := take(0); r.Epoch != born || r.Flags != 0 {
			t.Errorf("in its last ms: %+v", r)
		}
		time.Sleep(time.Microsecond)
		if r := take(0); r.Epoch != 0 || r.Flags != lua.Created || r.Level != 10 {
			t.Errorf("after its last ms: %+v", r)
		}
		if all := m.Buckets(); len(all) != 0 {
			t.Errorf("there are %q", all)
		}
	})
}

// TestMemoryIsConcurrent takes a bucket without a rate empty from many goroutines: it is taken
// exactly once.
func TestMemoryIsConcurrent(t *testing.T) {
	m := remote.NewMemory()
	var granted atomic.Int64
	var all sync.WaitGroup
	for g := range 8 {
		all.Go(func() {
			var r [4]remote.Result
			calls := make([]lua.Call, len(r))
			for i := range 300 {
				for j := range calls {
					calls[j] = lua.Call{
						Bucket: fmt.Sprint("b", j%2), Cap: 1000, Period: 1, TTL: 1e6, Fleet: 1,
						Want: 1, Min: 1,
					}
				}
				m.Run(noContext, 0, calls, r[:])
				for _, x := range r {
					granted.Add(x.Reply.Grant)
				}
				_, _ = m.Presence(noContext, 0, m.Node(""), remote.Process{ID: fmt.Sprint(g, i%3), TTL: time.Second})
			}
		})
	}
	all.Wait()
	if n := granted.Load(); n != 2000 {
		t.Errorf("%d granted of 2 × 1000", n)
	}
}

func BenchmarkMemory(b *testing.B) {
	for _, bench := range []struct {
		name string
		call lua.Call
	}{
		{"direct", lua.Call{Cap: 1 << 40, Tokens: 1, Period: 1e6, TTL: 1e6, Fleet: 1, Want: 1, Min: 1}},
		{"denied", lua.Call{Cap: 1, Tokens: 1, Period: 1 << 50, TTL: 1e6, Fleet: 1, Want: 1, Min: 1}},
		{"lease", lua.Call{Cap: 1 << 40, Tokens: 1, Period: 1e6, TTL: 1e9, Fleet: 1, Want: 1, Lease: "A"}},
	} {
		b.Run(bench.name, func(b *testing.B) {
			m := remote.NewMemory()
			var bucket atomic.Int64
			b.ReportAllocs()
			b.RunParallel(func(pb *testing.PB) {
				calls, results := []lua.Call{bench.call}, make([]remote.Result, 1)
				calls[0].Bucket = fmt.Sprint(bucket.Add(1))
				for pb.Next() {
					calls[0].Seq++
					calls[0].Ack = calls[0].Seq - 1
					if m.Run(noContext, 0, calls, results); results[0].Err != nil {
						b.Fatal(results[0].Err)
					}
				}
			})
		})
	}
}

// A replica that is promoted knows what was written before it was copied, and nothing of what came
// after.
func TestCloneIsAReplica(t *testing.T) {
	m := remote.NewMemory()
	take := func(s *remote.Memory, n int64) lua.Reply {
		var r [1]remote.Result
		s.Run(t.Context(), time.Second, []lua.Call{{
			Bucket: "b", Cap: 10, Tokens: 1, Period: 3600e6, Want: n, Min: n, TTL: 1e6, Lease: "A", Seq: n,
			Ack: n - 1, Fleet: 1,
		}}, r[:])
		if r[0].Err != nil {
			t.Fatal(r[0].Err)
		}
		return r[0].Reply
	}
	take(m, 1)
	c := m.Clone()
	if got := take(m, 2); got.Level != 7 {
		t.Errorf("the store itself: %+v", got)
	}
	if got := take(c, 3); got.Level != 6 || got.Flags != lua.Unrecorded {
		t.Errorf("the replica: %+v", got)
	}
	if before, after := m.Fields("b")["pA"], c.Fields("b")["pA"]; before == after {
		t.Errorf("both hold the record %s", before)
	}
	if len(m.Buckets()) != 1 || len(c.Buckets()) != 1 {
		t.Error("a bucket is missing")
	}
}
