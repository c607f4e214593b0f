package remote_test

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/tiered-limiter/tiered-limiter/lua"
	"github.com/tiered-limiter/tiered-limiter/remote"
)

// patience is a timeout for calls that must not fail on a busy machine.
const patience = 5 * time.Second

// full is the burst of the buckets in these tests. They have no rate, so that their level tells how
// often they were charged.
const full = 1000

// takeOne is a direct take of one token.
func takeOne(s remote.Store, key string) lua.Call {
	return lua.Call{Bucket: s.Key("test", key), Cap: full, Period: 1, Want: 1, Min: 1, TTL: 1, Fleet: 1}
}

// peek is a call that takes nothing.
func peek(s remote.Store, key string) lua.Call {
	c := takeOne(s, key)
	c.Want, c.Min = 0, 0
	return c
}

// run executes one call.
func run(t testing.TB, s remote.Store, c lua.Call) remote.Result {
	t.Helper()
	var r [1]remote.Result
	s.Run(t.Context(), patience, []lua.Call{c}, r[:])
	return r[0]
}

// charged reports how many tokens a bucket was charged.
func charged(t testing.TB, s remote.Store, key string) int64 {
	t.Helper()
	r := run(t, s, peek(s, key))
	if r.Err != nil {
		t.Fatalf("peek %s: %v", key, r.Err)
	}
	return full - r.Reply.Level
}

// takeAll executes a take for every key in one Run and wants all granted, each charged once more.
func takeAll(t testing.TB, s remote.Store, keys []string) {
	t.Helper()
	before := make([]int64, len(keys))
	for i, key := range keys {
		before[i] = charged(t, s, key)
	}
	takeAllFrom(t, s, keys, before)
}

func takeAllFrom(t testing.TB, s remote.Store, keys []string, before []int64) {
	t.Helper()
	calls, results := make([]lua.Call, len(keys)), make([]remote.Result, len(keys))
	for i, key := range keys {
		calls[i] = takeOne(s, key)
	}
	s.Run(t.Context(), patience, calls, results)
	for i, r := range results {
		if r.Err != nil || r.Reply.Code != lua.Granted || r.Reply.Grant != 1 {
			t.Errorf("%s: %+v", keys[i], r)
		}
		if now := charged(t, s, keys[i]); now != before[i]+1 {
			t.Errorf("%s: charged %d, now %d", keys[i], before[i], now)
		}
	}
}

// keys makes n of them.
func keys(n int) []string {
	all := make([]string, n)
	for i := range all {
		all[i] = fmt.Sprintf("key-%d}{/\x00", i)
	}
	return all
}

// openStore opens a store that is closed at the end of the test.
func openStore(t testing.TB, url string) *remote.Redis {
	t.Helper()
	s, err := remote.Open(url, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// warm makes the store connect and the server learn the script.
func warm(t testing.TB, s remote.Store) {
	t.Helper()
	if r := run(t, s, peek(s, "warm")); r.Err != nil {
		t.Fatal(r.Err)
	}
}

// pipelines counts those that carry scripts.
type pipelines struct{ sent, commands atomic.Int64 }

func (*pipelines) DialHook(next redis.DialHook) redis.DialHook { return next }

func (*pipelines) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }

func (p *pipelines) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		if strings.HasPrefix(cmds[0].Name(), "eval") {
			p.sent.Add(1)
			p.commands.Add(int64(len(cmds)))
		}
		return next(ctx, cmds)
	}
}

// foreign is a client of a kind that the store does not know, and that cannot be compared.
type foreign struct{ redis.UniversalClient }

func serverClient(t testing.TB, o *redis.Options) *redis.Client {
	c := redis.NewClient(o)
	t.Cleanup(func() { _ = c.Close() })
	return c
}
