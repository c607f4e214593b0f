package remote_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/redistest"
	"github.com/tiered-limiter/tiered-limiter/lua"
	"github.com/tiered-limiter/tiered-limiter/remote"
)

// takeBy is a direct take of one token by an algorithm, from a bucket that lasts for the test.
func takeBy(s remote.Store, a lua.Algorithm, key string) lua.Call {
	c := lua.Call{
		Bucket: s.Name(remote.Kind{Algorithm: a}, "test", key), Algorithm: a,
		Cap: full, Period: time.Hour.Microseconds(), Want: 1, Min: 1, TTL: 1, Fleet: 1,
	}
	switch a {
	case lua.TokenBucket, lua.TokenBuckets:
		c.Tokens = 1
	case lua.SlidingWindow:
		c.Span = 2
	}
	return c
}

// forgetful is a hook in which the server forgets its scripts before each of some pipelines, or in
// the middle of it. It counts what goes out.
type forgetful struct {
	admin  *redis.Client
	before map[int]bool // number of the pipeline, from 0
	within map[int]bool

	sent, texts int // pipelines, and commands with a text
}

func (*forgetful) DialHook(next redis.DialHook) redis.DialHook { return next }

func (*forgetful) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }

func (f *forgetful) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		if !slices.ContainsFunc(cmds, func(c redis.Cmder) bool { return c.Name() == "evalsha" || c.Name() == "eval" }) {
			return next(ctx, cmds) // a handshake
		}
		n := f.sent
		f.sent++
		for _, c := range cmds {
			if c.Name() == "eval" {
				f.texts++
			}
		}
		if f.before[n] {
			f.admin.ScriptFlush(ctx)
		}
		if !f.within[n] {
			return next(ctx, cmds)
		}
		half := len(cmds) / 2
		err := next(ctx, cmds[:half])
		f.admin.ScriptFlush(ctx)
		if second := next(ctx, cmds[half:]); err == nil {
			err = second
		}
		return err
	}
}

// Whichever scripts a server does not know, and in whatever order calls of them make one pipeline,
// each is executed, once.
func TestForgottenScripts(t *testing.T) {
	server := redistest.Start(t)
	scripts := []*lua.Script{lua.Presence}
	for a := range lua.Algorithm(lua.Algorithms) {
		scripts = append(scripts, a.Script())
	}
	all := len(scripts)
	for name, c := range map[string]struct {
		knows          bool         // one of them
		before, within map[int]bool // it forgets all before a pipeline, or in the middle of it
		sent, texts    int
	}{
		"forgot all":              {sent: 2, texts: all},
		"knows one":               {knows: true, sent: 2, texts: all - 1},
		"forgets in between":      {before: map[int]bool{1: true}, sent: 2, texts: all},
		"forgets on the way":      {within: map[int]bool{1: true}, sent: 3, texts: 2 * all},
		"forgets again and again": {within: map[int]bool{0: true, 1: true, 2: true}, sent: 3, texts: 2 * all},
	} {
		for first := range scripts {
			t.Run(fmt.Sprint(name, ", from ", first), func(t *testing.T) {
				admin := server.Client()
				if err := admin.ScriptFlush(t.Context()).Err(); err != nil {
					t.Fatal(err)
				}
				if c.knows {
					if err := admin.ScriptLoad(t.Context(), scripts[first].Source).Err(); err != nil {
						t.Fatal(err)
					}
				}
				client := redis.NewClient(server.Options(redis.Options{
					ContextTimeoutEnabled: true,
					ReadTimeout:           patience, WriteTimeout: patience,
				}))
				defer client.Close()
				hook := &forgetful{admin: admin, before: c.before, within: c.within}
				client.AddHook(hook)
				s := remote.NewRedis(client, &remote.RedisOptions{Prefix: fmt.Sprintf("tl:%d:%.12s:", first,
					lettersOf(name))})
				var calls []lua.Call
				for i := range 2 * len(scripts) { // two of each, so that one finds the other's text
					if a := (first + i) % len(scripts); a < lua.Algorithms {
						calls = append(calls, takeBy(s, lua.Algorithm(a), "k"))
					} else {
						calls = append(calls, lua.Call{}) // a report of presence
					}
				}
				ctx, cancel := context.WithTimeout(t.Context(), patience)
				defer cancel()
				if err := s.RunWithPresence(ctx, patience, client, calls); err != nil {
					t.Error(err)
				}
				if hook.sent != c.sent || hook.texts != c.texts {
					t.Errorf("%d pipelines with %d texts, want %d with %d", hook.sent, hook.texts, c.sent, c.texts)
				}
				for a := range lua.Algorithms {
					look := takeBy(s, lua.Algorithm(a), "k")
					look.Want, look.Min = 0, 0
					if r := run(t, s, look); r.Err != nil || r.Reply.Level != full-2 {
						t.Errorf("%d: level %d, %v, want %d", a, r.Reply.Level, r.Err, full-2)
					}
				}
			})
		}
	}
}

func lettersOf(s string) string {
	return string(slices.DeleteFunc([]byte(s), func(b byte) bool { return b < 'a' || b > 'z' }))
}

// allAlgorithms is one take of each for every key.
func allAlgorithms(s remote.Store, keys ...string) (calls []lua.Call) {
	for _, key := range keys {
		for a := range lua.Algorithms {
			calls = append(calls, takeBy(s, lua.Algorithm(a), key))
		}
	}
	return calls
}

// grants runs calls together and wants each granted, those of some buckets by another node than the
// first that was asked.
func grants(t *testing.T, s remote.Store, calls []lua.Call, elsewhere ...string) {
	t.Helper()
	results := make([]remote.Result, len(calls))
	s.Run(t.Context(), patience, calls, results)
	for i, r := range results {
		if r.Err != nil || r.Reply.Code != lua.Granted || r.Elsewhere != slices.Contains(elsewhere, calls[i].Bucket) {
			t.Errorf("call %d, algorithm %d: %+v", i, calls[i].Algorithm, r)
		}
	}
}

// Calls that are sent on to another node of a Cluster are executed there, though that one does not
// know their scripts, or none of the nodes does; so are those of a client that is not go-redis' own
// and spreads a pipeline over the nodes by itself.
func TestForgottenScriptsOnACluster(t *testing.T) {
	c := redistest.StartCluster(t, 3)
	flush := func(nodes ...int) {
		for _, i := range nodes {
			if err := c.Client(i).ScriptFlush(t.Context()).Err(); err != nil {
				t.Fatal(err)
			}
		}
	}
	for i, known := range []bool{true, false} {
		for j, state := range []string{"moving", "moved"} {
			t.Run(fmt.Sprintf("%s, known %t", state, known), func(t *testing.T) {
				client := redis.NewClusterClient(c.ClusterOptions(redis.ClusterOptions{}))
				defer client.Close()
				s := remote.NewRedis(client, nil)
				n := 1000 + 100*i + 10*j
				goes, stays := keyOn(c, s, 0, n), keyOn(c, s, 0, n+1)
				grants(t, s, allAlgorithms(s, stays))
				if known {
					grants(t, s, allAlgorithms(s, keyOn(c, s, 1, n+2)))
				}
				slot := remote.SlotOf(s.Key("test", goes))
				if state == "moving" {
					c.Migrate(slot, 0, 1)
					defer c.Assign(slot, 1)
				} else {
					c.Assign(slot, 1)
				}
				flush(0, 1)
				var elsewhere []string
				for _, c := range allAlgorithms(s, goes) {
					elsewhere = append(elsewhere, c.Bucket)
				}
				grants(t, s, allAlgorithms(s, goes, stays), elsewhere...)
				flush(1)
				grants(t, s, allAlgorithms(s, stays, goes)[:lua.Algorithms])
			})
		}
	}
	t.Run("foreign", func(t *testing.T) {
		client := redis.NewClusterClient(c.ClusterOptions(redis.ClusterOptions{}))
		defer client.Close()
		s := remote.NewRedis(foreign{client}, nil)
		flush(0, 1, 2)
		grants(t, s, allAlgorithms(s, keyOn(c, s, 0, 2000), keyOn(c, s, 1, 2001), keyOn(c, s, 2, 2002)))
		flush(1)
		grants(t, s, allAlgorithms(s, keyOn(c, s, 0, 2000), keyOn(c, s, 1, 2001), keyOn(c, s, 2, 2002)))
	})
}
