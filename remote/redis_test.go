package remote_test

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/redistest"
	"github.com/tiered-limiter/tiered-limiter/lua"
	"github.com/tiered-limiter/tiered-limiter/remote"
)

func TestSingle(t *testing.T) {
	server := redistest.Start(t)
	for name, s := range map[string]*remote.Redis{
		"tcp":     openStore(t, server.URL()),
		"db":      openStore(t, server.URL("db=2")),
		"resp2":   openStore(t, server.URL("db=3", "protocol=2")),
		"unix":    openStore(t, server.UnixURL("db=1")),
		"default": remote.NewRedis(server.StoreClient(), &remote.RedisOptions{Prefix: "tl:other:"}),
		"hashed":  remote.NewRedis(server.StoreClient(), &remote.RedisOptions{Prefix: "tl:hashed:", HashKeys: true}),
		"foreign": remote.NewRedis(foreign{server.StoreClient()}, &remote.RedisOptions{Prefix: "tl:foreign:"}),
	} {
		t.Run(name, func(t *testing.T) {
			if err := remote.Check(s); err != nil {
				t.Fatal(err)
			}
			takeAll(t, s, append(keys(20), strings.Repeat("long", 1000)))
			if node := s.Node(s.Key("test", "x")); node == "" || node != s.Node(s.Key("test", "y")) {
				t.Errorf("node %q", node)
			}
		})
	}
	s := openStore(t, server.URL())
	stored, err := server.Client().Keys(t.Context(), "tl:hashed:*").Result()
	if err != nil || len(stored) != 21 || strings.Contains(strings.Join(stored, " "), "key-") {
		t.Errorf("hashed names: %q, %v", stored, err)
	}
	same := make([]lua.Call, 5)
	for i := range same {
		same[i] = takeOne(s, "same")
	}
	results := make([]remote.Result, 7) // longer than calls
	results[6].Reply.Grant = 77
	s.Run(t.Context(), patience, same, results)
	for i, r := range results[:5] {
		if r.Err != nil || r.Reply.Level != full-1-int64(i) {
			t.Errorf("take %d: %+v", i, r)
		}
	}
	if results[6].Reply.Grant != 77 {
		t.Error("a result without a call was written")
	}
	s.Run(t.Context(), patience, nil, nil)
}

func TestUnusable(t *testing.T) {
	var client *redis.Client
	var cluster *redis.ClusterClient
	var nobody *remote.Redis
	for name, s := range map[string]remote.Store{
		"nil": nil, "nil client": remote.NewRedis(nil, nil), "nil *Client": remote.NewRedis(client, nil),
		"nil *ClusterClient": remote.NewRedis(cluster, nil), "nil store": nobody, "empty store": &remote.Redis{},
		"prefix": remote.NewRedis(serverClient(t, &redis.Options{Addr: "127.0.0.1:1"}),
			&remote.RedisOptions{Prefix: "a{b"}),
	} {
		err := remote.Check(s)
		if err == nil {
			t.Errorf("%s: accepted", name)
		}
		if r, ok := s.(*remote.Redis); ok && r != nil && r.Broken() != nil {
			if got := run(t, s, takeOne(s, "x")); !errors.Is(got.Err, r.Broken()) {
				t.Errorf("%s: %v", name, got.Err)
			}
			_ = r.Node("x")
		}
	}
	if err := remote.Check(remote.NewRedis(nil, &remote.RedisOptions{Prefix: "{"})); !strings.Contains(err.Error(),
		"nil") ||
		!strings.Contains(err.Error(), "Prefix") {
		t.Errorf("not all problems: %v", err)
	}
}

func TestRedisClose(t *testing.T) {
	server := redistest.Start(t)
	client := server.StoreClient()
	borrowed, owned := remote.NewRedis(client, nil), openStore(t, server.URL())
	for name, s := range map[string]*remote.Redis{"borrowed": borrowed, "owned": owned} {
		warm(t, s)
		if err := errors.Join(s.Close(), s.Close()); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if r := run(t, s, takeOne(s, "x")); !errors.Is(r.Err, remote.ErrClosed) {
			t.Errorf("%s: %v", name, r.Err)
		}
		me := remote.Process{ID: "me", TTL: time.Second}
		if _, err := s.Presence(t.Context(), patience, s.Node(""), me); !errors.Is(err, remote.ErrClosed) {
			t.Errorf("%s: presence: %v", name, err)
		}
	}
	if err := client.Time(t.Context()).Err(); err != nil {
		t.Errorf("the borrowed client: %v", err)
	}
	if err := owned.Client().Time(t.Context()).Err(); !errors.Is(err, redis.ErrClosed) {
		t.Errorf("the owned client: %v", err)
	}
}

func TestPassword(t *testing.T) {
	server := redistest.StartOpen(t, "--requirepass", "r1ght/p@ss")
	good := openStore(t, "redis://:r1ght%2Fp%40ss@"+server.Addr)
	takeAll(t, good, keys(2))
	for _, user := range []string{":s3cr3t@", "user:s3cr3t@", ""} {
		for _, protocol := range []string{"2", "3"} {
			r := run(t, openStore(t, "redis://"+user+server.Addr+"?protocol="+protocol), takeOne(good, "k"))
			if !redis.IsAuthError(r.Err) || strings.Contains(r.Err.Error(), "s3cr3t") {
				t.Errorf("%q with RESP%s: %v", user, protocol, r.Err)
			}
		}
	}
	if n := charged(t, good, "k"); n != 0 {
		t.Errorf("charged %d", n)
	}
}

func TestConcurrentCalls(t *testing.T) {
	server := redistest.Start(t)
	s := remote.NewRedis(server.StoreClient(), nil)
	const callers, rounds = 8, 20
	var all sync.WaitGroup
	for i := range callers {
		all.Go(func() {
			calls, results := []lua.Call{takeOne(s, "shared"), takeOne(s, fmt.Sprint(i))}, make([]remote.Result, 2)
			for range rounds {
				s.Run(t.Context(), patience+time.Duration(i), calls, results) // many timeouts: many lanes
				if err := errors.Join(results[0].Err, results[1].Err); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	if n := charged(t, s, "shared"); n != callers*rounds {
		t.Errorf("charged %d", n)
	}
}

func TestLanesAreBounded(t *testing.T) {
	client := serverClient(t, &redis.Options{Addr: "127.0.0.1:1"})
	var c remote.Lanes
	for i := range 3 * 1024 {
		c.Of(client, time.Duration(i+1))
	}
	if n := c.Made(); n > 1024 {
		t.Errorf("%d lanes", n)
	}
	a, b := c.Of(client, time.Second), c.Of(client, time.Second)
	if a != b || a.Options().ReadTimeout != time.Second {
		t.Error("a lane is not kept")
	}
}

func BenchmarkRun(b *testing.B) {
	server := redistest.Start(b)
	s := remote.NewRedis(server.StoreClient(), nil)
	for _, n := range []int{1, 20} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			calls, results := make([]lua.Call, n), make([]remote.Result, n)
			for i, key := range keys(n) {
				calls[i] = peek(s, key)
			}
			b.ReportAllocs()
			for b.Loop() {
				s.Run(b.Context(), time.Second, calls, results)
			}
			if results[n-1].Err != nil {
				b.Fatal(results[n-1].Err)
			}
		})
	}
}
