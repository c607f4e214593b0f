package remote_test

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/tiered-limiter/tiered-limiter/internal/rig/redistest"
	"github.com/tiered-limiter/tiered-limiter/lua"
	"github.com/tiered-limiter/tiered-limiter/remote"
)

// What docs/redis.md adds for windows is enough for all algorithms, and none of it is too much.
func TestEveryRightOfWindowsIsNeeded(t *testing.T) {
	server := redistest.StartOpen(t)
	admin := server.Client()
	rights := redistest.Rights(t, redistest.OnServer)
	windows := redistest.Rights(t, redistest.OnWindows)
	setUserAnew(t, admin, append(slices.Clone(rights), windows...)...)
	s := asUser(t, "redis", server.Addr, "", nil)
	now := time.Now().UnixMicro()
	all := func(key string) (all error) {
		for a := lua.SlidingLog; a <= lua.TokenBuckets; a++ {
			c := of(a, s.Name(remote.Kind{Algorithm: a}, "p", key), 5, 60*sec, sec)
			lease, later := take(c, 1), take(c, 1)
			c.Want, c.Min, c.Now = 1, 1, now
			if a != lua.SlidingLog {
				lease.Lease, lease.Seq = "A", 1
			}
			lease.Now, later.Now = now+1, now+300*sec // another window, and the lease is over
			for _, c := range []lua.Call{c, lease, later} {
				var r [1]remote.Result
				s.Run(t.Context(), time.Minute, []lua.Call{c}, r[:])
				if r[0].Err == nil && r[0].Reply.Grant != 1 {
					t.Errorf("%+v", r[0])
				}
				all = errors.Join(all, r[0].Err)
			}
		}
		return all
	}
	if err := all("all"); err != nil {
		t.Fatalf("with all rights: %v", err)
	}
	if len(windows) != 1 {
		t.Fatalf("%q", windows)
	}
	for i, right := range windows {
		setUserAnew(t, admin, append(slices.Clone(rights), slices.Delete(slices.Clone(windows), i, i+1)...)...)
		if err := all("without " + right); !redis.IsPermissionError(err) {
			t.Errorf("without %s: %v", right, err)
		}
	}
}
