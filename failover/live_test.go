package failover_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/tiered-limiter/tiered-limiter/failover"
	"github.com/tiered-limiter/tiered-limiter/internal/rig/redistest"
)

// TestClassifyLive: the errors that a real redis-server gives.
func TestClassifyLive(t *testing.T) {
	server := redistest.StartOpen(t)
	admin := server.Client()
	ctx := t.Context()
	do := func(args ...any) {
		t.Helper()
		if err := admin.Do(ctx, args...).Err(); err != nil {
			t.Fatalf("%v: %v", args, err)
		}
	}
	const script = "return redis.call('HSET', KEYS[1], 'a', 1)"
	eval := func(c *redis.Client, key string) error { return c.Eval(ctx, script, []string{key}).Err() }
	user := func(name, password string) *redis.Client {
		return newClient(t, server.Addr, func(o *redis.Options) {
			o.Username, o.Password, o.ReadTimeout = name,
				password, time.Second
		})
	}
	do("ACL", "SETUSER", "mute", "on", ">x", "~*", "+eval")
	do("ACL", "SETUSER", "blind", "on", ">x", "~*", "+hset")
	do("SET", "string", "x")
	plain := user("", "")

	for _, test := range []struct {
		name  string
		begin func()
		call  func() error
		end   func()
		want  failover.Class
	}{
		{name: "well", call: func() error { return eval(plain, "a") }, want: failover.Fine},
		{name: "nothing there", call: func() error { return plain.Get(ctx, "none").Err() }, want: failover.Fine},
		{name: "unknown script", call: func() error {
			return plain.EvalSha(ctx,
				"0000000000000000000000000000000000000000", nil).Err()
		}, want: failover.Fine},
		{
			name: "another type", call: func() error { return plain.HSet(ctx, "string", "a", 1).Err() },
			want: failover.KeyFault,
		},
		{name: "wrong password", call: func() error { return eval(user("mute", "y"), "a") }, want: failover.Misconfigured},
		{
			name: "may not in scripts", call: func() error { return eval(user("mute", "x"), "a") },
			want: failover.Misconfigured,
		},
		{name: "may not", call: func() error { return eval(user("blind", "x"), "a") }, want: failover.Misconfigured},
		{
			name: "no password", want: failover.Misconfigured,
			begin: func() { do("CONFIG", "SET", "requirepass", "x") },
			call:  func() error { return eval(user("", ""), "a") },
			end:   func() { do("CONFIG", "SET", "requirepass", "") },
		},
		{
			name: "out of memory", want: failover.CannotServe,
			begin: func() { do("CONFIG", "SET", "maxmemory", "1") },
			call:  func() error { return eval(plain, "a") },
			end:   func() { do("CONFIG", "SET", "maxmemory", "0") },
		},
		{
			name: "no replicas", want: failover.CannotServe,
			begin: func() { do("CONFIG", "SET", "min-replicas-to-write", "1") },
			call:  func() error { return eval(plain, "a") },
			end:   func() { do("CONFIG", "SET", "min-replicas-to-write", "0") },
		},
		{
			name: "replica", want: failover.CannotServe,
			begin: func() { do("REPLICAOF", "127.0.0.1", "1") },
			call:  func() error { return eval(plain, "a") },
			end:   func() { do("REPLICAOF", "NO", "ONE") },
		},
		{
			name: "replica without its primary", want: failover.CannotServe,
			begin: func() {
				do("CONFIG", "SET", "replica-serve-stale-data", "no")
				do("REPLICAOF", "127.0.0.1", "1")
			},
			call: func() error { return plain.Get(ctx, "a").Err() },
			end:  func() { do("REPLICAOF", "NO", "ONE") },
		},
		{
			name: "busy", want: failover.CannotServe,
			begin: func() {
				do("CONFIG", "SET", "lua-time-limit", "1")
				endless, cancel := context.WithTimeout(ctx, 50*ms)
				defer cancel()
				_ = newClient(t, server.Addr, nil).Eval(endless, "while true do end", nil).Err()
			},
			call: func() error { return eval(plain, "a") },
			end:  func() { do("SCRIPT", "KILL") },
		},
		{
			name: "frozen", want: failover.Unreachable,
			begin: server.Pause,
			call:  func() error { return eval(newClient(t, server.Addr, nil), "a") },
			end:   server.Resume,
		},
		{
			name: "killed", want: failover.Unreachable,
			begin: server.Kill,
			call:  func() error { return eval(plain, "a") },
		},
	} {
		if test.begin != nil {
			test.begin()
		}
		err := test.call()
		if test.end != nil {
			test.end()
		}
		text := fmt.Sprintf("%-28s %T %v", test.name, err, err)
		if got := failover.Classify(err); got != test.want {
			t.Errorf("%s: %v, want %v", text, got, test.want)
		} else {
			t.Logf("%s: %v", text, got)
		}
	}
}
