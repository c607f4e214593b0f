package remote_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/redistest"
	"github.com/tiered-limiter/tiered-limiter/lua"
	"github.com/tiered-limiter/tiered-limiter/remote"
)

// Hooks of a client see every call, whatever the client's timeouts and the caller's are, or
// SkipsHooks says that they see none.
func TestHooksSeeAllCallsOrNone(t *testing.T) {
	server := redistest.Start(t)
	for _, enabled := range []bool{true, false} {
		for _, own := range []time.Duration{0, -1, -2, time.Minute, 3 * time.Second} {
			o := redis.Options{ContextTimeoutEnabled: enabled, ReadTimeout: own, WriteTimeout: own}
			client := serverClient(t, server.Options(o))
			var seen pipelines
			client.AddHook(&seen)
			s := remote.NewRedis(client, nil)
			for i, timeout := range []time.Duration{time.Second, 2 * time.Second, patience, 2 * patience} {
				results := make([]remote.Result, 1)
				s.Run(t.Context(), timeout, []lua.Call{takeOne(s, fmt.Sprint(enabled, own, i))}, results)
				if err := results[0].Err; err != nil {
					t.Errorf("%v, %v: %v", enabled, own, err)
				}
			}
			if _, err := s.Presence(t.Context(), patience, s.Nodes()[0], remote.Process{ID: "p", TTL: time.Second}); err != nil {
				t.Error(err)
			}
			want, skips := int64(5), !enabled || own == -2
			if skips {
				want = 0
			}
			got := seen.commands.Load()
			if s.SkipsHooks() != skips || skips && got > 0 || got < want {
				t.Errorf("heeds contexts: %v, own timeouts %v: hooks saw %d calls, skips %v", enabled, own, got, s.SkipsHooks())
			}
		}
	}
	for own, skips := range map[time.Duration]bool{0: false, -1: false, -2: true, time.Second: false} {
		ring := redis.NewRing(&redis.RingOptions{ContextTimeoutEnabled: true, ReadTimeout: own})
		cluster := redis.NewClusterClient(&redis.ClusterOptions{ContextTimeoutEnabled: true, WriteTimeout: own})
		for _, c := range []redis.UniversalClient{ring, cluster} {
			if got := remote.NewRedis(c, nil).SkipsHooks(); got != skips {
				t.Errorf("%T with %v: skips %v", c, own, got)
			}
			_ = c.Close()
		}
	}
}
