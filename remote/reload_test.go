package remote_test

import (
	"context"
	"net"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/tiered-limiter/tiered-limiter/lua"
	"github.com/tiered-limiter/tiered-limiter/remote"
)

// answering is a hook in place of a node: everything that is sent gets the same error or value.
type answering struct {
	err   error
	value any
	sent  *atomic.Int64
}

func (answering) DialHook(next redis.DialHook) redis.DialHook { return next }

func (answering) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }

func (a answering) ProcessPipelineHook(redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(_ context.Context, cmds []redis.Cmder) error {
		a.sent.Add(1)
		for _, cmd := range cmds {
			if a.err != nil {
				cmd.SetErr(a.err)
			} else {
				cmd.(interface{ SetVal(any) }).SetVal(a.value)
			}
		}
		return a.err
	}
}

// Whatever tells that the map of the slots may be old has it reloaded, at once and then at most
// once a second, however many calls fail. What concerns one bucket does not.
func TestReloadsOnceASecond(t *testing.T) {
	reply := []any{int64(0), int64(1), int64(0), int64(0), int64(0), int64(0), int64(1), int64(1), int64(0), int64(0)}
	for _, test := range []struct {
		name    string
		err     error
		reloads bool
	}{
		{"refused", &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}, true},
		{"no answer", context.DeadlineExceeded, true},
		{"a replica", replyError("READONLY You can't write against a read only replica."), true},
		{"no quorum", replyError("CLUSTERDOWN The cluster is down"), true},
		{"its primary is gone", replyError("MASTERDOWN Link with MASTER is down"), true},
		{"moved", replyError("MOVED 1 127.0.0.1:1"), true},
		{"well", nil, false},
		{"another type", replyError("WRONGTYPE Operation against a key holding the wrong kind of value"), false},
		{"damaged", replyError("RLCORRUPT lease"), false},
	} {
		synctest.Test(t, func(t *testing.T) {
			var loads, sent atomic.Int64
			client := redis.NewClusterClient(&redis.ClusterOptions{
				ClusterSlots: func(context.Context) ([]redis.ClusterSlot, error) {
					loads.Add(1)
					return []redis.ClusterSlot{{End: 16384 - 1, Nodes: []redis.ClusterNode{{Addr: "127.0.0.1:1"}}}}, nil
				},
				NewClient: func(o *redis.Options) *redis.Client {
					c := redis.NewClient(o)
					c.AddHook(answering{test.err, reply, &sent})
					return c
				},
				ContextTimeoutEnabled: true, ClusterStateReloadInterval: time.Hour, MaxRetries: -1,
				MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
			})
			defer client.Close()
			s := remote.NewRedis(client, nil)
			const length = 10 * time.Second
			for range length / (10 * time.Millisecond) {
				r := make([]remote.Result, 1)
				s.Run(t.Context(), time.Second, []lua.Call{takeOne(s, "k")}, r)
				if (r[0].Err == nil) != (test.err == nil) {
					t.Fatalf("%s: %+v", test.name, r[0])
				}
				time.Sleep(10 * time.Millisecond)
			}
			synctest.Wait()
			least, most := int64(1), int64(1) // the first map
			if test.reloads {
				least, most = int64(1+length/time.Second), int64(2+length/time.Second)
			}
			t.Logf("%s: %d loads for %d pipelines", test.name, loads.Load(), sent.Load())
			if n := loads.Load(); n < least || n > most || sent.Load() < 900 {
				t.Errorf("%s: %d loads for %d pipelines, want %d to %d", test.name, n, sent.Load(), least, most)
			}
			time.Sleep(time.Second) // go-redis' reload rests for 200 ms
		})
	}
}
