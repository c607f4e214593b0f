package remote_test

import (
	"context"
	"errors"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/tiered-limiter/tiered-limiter/failover"
	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/ranclock"
	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/redistest"
	"github.com/tiered-limiter/tiered-limiter/lua"
	"github.com/tiered-limiter/tiered-limiter/remote"
)

func TestCanceled(t *testing.T) {
	server := redistest.Start(t)
	client := server.StoreClient()
	s := remote.NewRedis(client, nil)
	warm(t, s)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	results := make([]remote.Result, 2)
	s.Run(ctx, patience, []lua.Call{takeOne(s, "a"), takeOne(s, "b")}, results)
	for i, r := range results {
		if !errors.Is(r.Err, context.Canceled) {
			t.Errorf("call %d: %+v", i, r)
		}
	}
	me := remote.Process{ID: "me", TTL: time.Minute}
	if _, err := s.Presence(ctx, patience, s.Node(""), me); !errors.Is(err, context.Canceled) {
		t.Errorf("presence: %v", err)
	}
	s.Run(t.Context(), 0, []lua.Call{takeOne(s, "a")}, results)
	if !errors.Is(results[0].Err, context.DeadlineExceeded) {
		t.Errorf("no time at all: %+v", results[0])
	}
	for _, key := range []string{"a", "b"} {
		if n := charged(t, s, key); n != 0 {
			t.Errorf("%s was charged %d", key, n)
		}
	}
}

// A frozen server holds nobody up, not even with a client that would wait for minutes.
func TestFrozen(t *testing.T) {
	server := redistest.Start(t)
	const timeout = 50 * time.Millisecond
	const slack = 30 * time.Millisecond // two cores, a race detector
	clock := ranclock.New(t)
	for name, s := range map[string]*remote.Redis{
		"opened": openStore(t, server.URL()), "opened with less": openStore(t, server.URL("read_timeout=20ms")),
		"warm": remote.NewRedis(server.StoreClient(), nil), "cold": remote.NewRedis(server.StoreClient(), nil),
		"no retries": remote.NewRedis(serverClient(t, server.Options(redis.Options{MaxRetries: -1})), nil),
		"foreign but bounded": remote.NewRedis(foreign{serverClient(t, server.Options(redis.Options{
			ContextTimeoutEnabled: true, MaxRetries: -1,
		}))}, nil),
	} {
		t.Run(name, func(t *testing.T) {
			if name != "cold" {
				warm(t, s)
			}
			server.Pause()
			defer server.Resume()
			for range 2 {
				results := make([]remote.Result, 3)
				begun := clock.Now()
				s.Run(t.Context(), timeout, []lua.Call{takeOne(s, "a"), takeOne(s, "b"), takeOne(s, "c")}, results)
				took := clock.Since(begun)
				t.Logf("%v: %v", took, results[0].Err)
				if took > 3*timeout+slack {
					t.Errorf("took %v", took)
				}
				for i, r := range results {
					var timedOut net.Error
					if !errors.As(r.Err, &timedOut) || !timedOut.Timeout() {
						t.Errorf("call %d: %+v", i, r)
					}
				}
				begun = clock.Now()
				me := remote.Process{ID: "me", TTL: time.Second}
				if _, err := s.Presence(t.Context(), timeout, s.Node(""), me); err == nil {
					t.Error("presence answered")
				}
				if took := clock.Since(begun); took > 3*timeout+slack {
					t.Errorf("presence took %v", took)
				}
			}
		})
	}
}

func TestDead(t *testing.T) {
	server := redistest.Start(t)
	s := openStore(t, server.URL())
	warm(t, s)
	server.Kill()
	clock := ranclock.New(t)
	for range 3 {
		begun := clock.Now()
		var r [1]remote.Result
		s.Run(t.Context(), 50*time.Millisecond, []lua.Call{takeOne(s, "a")}, r[:])
		if took := clock.Since(begun); r[0].Err == nil || took > 100*time.Millisecond {
			t.Errorf("%v: %+v", took, r[0])
		}
	}
	server.Restart()
	for begun := clock.Now(); ; time.Sleep(10 * time.Millisecond) { // the pool's own pause
		if r := run(t, s, takeOne(s, "a")); r.Err == nil {
			break
		} else if clock.Since(begun) > 5*time.Second {
			t.Fatal(r.Err)
		}
	}
}

func TestServerErrors(t *testing.T) {
	server := redistest.Start(t)
	admin := server.Client()
	s := openStore(t, server.URL())
	warm(t, s)
	must := func(cmd redis.Cmder) {
		t.Helper()
		if err := cmd.Err(); err != nil {
			t.Fatal(err)
		}
	}
	ctx := t.Context()

	must(admin.Set(ctx, s.Key("test", "s3cr3t"), "x", 0))
	must(admin.HSet(ctx, s.Key("test", "foreign s3cr3t"), "a", "b"))
	illegal := takeOne(s, "s3cr3t too")
	illegal.Cap = 0
	results := make([]remote.Result, 4)
	s.Run(ctx, patience, []lua.Call{takeOne(s, "s3cr3t"), takeOne(s, "foreign s3cr3t"), illegal, takeOne(s, "good")},
		results)
	for i, want := range []string{"WRONGTYPE ", "RLFOREIGN key", "RLARG argument 22"} {
		var e *remote.ScriptError
		if !errors.As(results[i].Err, &e) || !strings.HasPrefix(e.Text, want) || strings.Contains(e.Text, "script:") ||
			strings.Contains(e.Error(), "s3cr3t") {
			t.Errorf("%s: %+v", want, results[i])
		}
		if got := failover.Classify(results[i].Err); got != failover.KeyFault {
			t.Errorf("%v is %v", results[i].Err, got)
		}
	}
	if results[3].Err != nil {
		t.Errorf("the good one among bad ones: %v", results[3].Err)
	}

	for name, test := range map[string]struct {
		breakIt, mendIt []any
		is              func(error) bool
		class           failover.Class
	}{
		"OOM": {[]any{"config", "set", "maxmemory", "1"}, []any{"config", "set", "maxmemory", "0"}, redis.IsOOMError, failover.CannotServe},
		"READONLY": {
			[]any{"replicaof", "127.0.0.1", "1"},
			[]any{"replicaof", "no", "one"},
			func(err error) bool { return redis.IsReadOnlyError(err) || redis.IsMasterDownError(err) },
			failover.CannotServe,
		},
		"NOREPLICAS": {
			[]any{"config", "set", "min-replicas-to-write", "1"},
			[]any{"config", "set", "min-replicas-to-write", "0"},
			redis.IsNoReplicasError, failover.CannotServe,
		},
		"ACL in the script": {
			[]any{"acl", "setuser", server.User(), "-pexpire"},
			[]any{"acl", "setuser", server.User(), "+pexpire"},
			redis.IsPermissionError, failover.Refused,
		},
		"ACL": {
			[]any{"acl", "setuser", server.User(), "-evalsha"},
			[]any{"acl", "setuser", server.User(), "+evalsha"},
			redis.IsPermissionError, failover.Misconfigured,
		},
	} {
		must(admin.Do(ctx, test.breakIt...))
		r := run(t, s, takeOne(s, "s3cr3t key"))
		must(admin.Do(ctx, test.mendIt...))
		var e *remote.ScriptError
		if !test.is(r.Err) || errors.As(r.Err, &e) || strings.Contains(r.Err.Error(), "s3cr3t") {
			t.Errorf("%s: %T %v", name, r.Err, r.Err)
		}
		if got := failover.Classify(r.Err); got != test.class {
			t.Errorf("%s: %v is %v, want %v", name, r.Err, got, test.class)
		}
	}

	renamed := redistest.StartOpen(t, "--rename-command", "EVALSHA", "")
	r := run(t, openStore(t, renamed.URL()), takeOne(s, "s3cr3t key"))
	if !redis.HasErrorPrefix(r.Err, "unknown command") || strings.Contains(r.Err.Error(), "s3cr3t") {
		t.Errorf("renamed EVALSHA: %v", r.Err)
	}
}

// A client's own timeouts do not shorten a call where the store sends by a copy, or made the client
// itself.
func TestOwnTimeoutsOfACopyDoNotCount(t *testing.T) {
	server := redistest.Start(t)
	takeAll(t, remote.NewRedis(serverClient(t, server.Options(redis.Options{
		ReadTimeout: time.Nanosecond, WriteTimeout: time.Nanosecond,
	})), nil), keys(3))
	takeAll(t, openStore(t, server.URL("read_timeout=1ns", "write_timeout=1ns")), keys(3))
	for _, test := range []struct {
		own  time.Duration
		want bool
	}{{0, true}, {-1, false}, {time.Second, true}, {time.Second - 1, false}, {time.Minute, true}} {
		if got := remote.Allows(test.own, time.Second); got != test.want {
			t.Errorf("allows(%v, 1s) = %v", test.own, got)
		}
	}
}
