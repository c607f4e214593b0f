package remote

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/tiered-limiter/tiered-limiter/internal/redistest"
)

// patience is a timeout for calls that must not fail on a busy machine.
const patience = 5 * time.Second

// full is the burst of the buckets in these tests. They have no rate, so that their level tells how often they were
// charged.
const full = 1000

// takeOne is a direct take of one token.
func takeOne(s Store, key string) Call {
	return Call{Bucket: s.Key("test", key), Cap: full, Period: 1, Want: 1, Min: 1, TTL: 1, Fleet: 1}
}

// peek is a call that takes nothing.
func peek(s Store, key string) Call {
	c := takeOne(s, key)
	c.Want, c.Min = 0, 0
	return c
}

// run executes one call.
func run(t testing.TB, s Store, c Call) Result {
	t.Helper()
	var r [1]Result
	s.Run(t.Context(), patience, []Call{c}, r[:])
	return r[0]
}

// charged reports how many tokens a bucket was charged.
func charged(t testing.TB, s Store, key string) int64 {
	t.Helper()
	r := run(t, s, peek(s, key))
	if r.Err != nil {
		t.Fatalf("peek %s: %v", key, r.Err)
	}
	return full - r.Reply.Level
}

// takeAll executes a take for every key in one Run and wants all granted, each charged once more.
func takeAll(t testing.TB, s Store, keys []string) {
	t.Helper()
	before := make([]int64, len(keys))
	for i, key := range keys {
		before[i] = charged(t, s, key)
	}
	takeAllFrom(t, s, keys, before)
}

func takeAllFrom(t testing.TB, s Store, keys []string, before []int64) {
	t.Helper()
	calls, results := make([]Call, len(keys)), make([]Result, len(keys))
	for i, key := range keys {
		calls[i] = takeOne(s, key)
	}
	s.Run(t.Context(), patience, calls, results)
	for i, r := range results {
		if r.Err != nil || r.Reply.Code != Granted || r.Reply.Grant != 1 {
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

// open opens a store that is closed at the end of the test.
func openStore(t testing.TB, url string) *Redis {
	t.Helper()
	s, err := Open(url, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// warm makes the store connect and the server learn the script.
func warm(t testing.TB, s Store) {
	t.Helper()
	if r := run(t, s, peek(s, "warm")); r.Err != nil {
		t.Fatal(r.Err)
	}
}

// pipelines counts those that carry scripts.
type pipelines struct{ sent, commands atomic.Int64 }

func (*pipelines) DialHook(next redis.DialHook) redis.DialHook          { return next }
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

func TestSingle(t *testing.T) {
	server := redistest.Start(t)
	for name, s := range map[string]*Redis{
		"tcp":     openStore(t, server.URL()),
		"unix":    openStore(t, "unix://"+server.Socket+"?db=1"),
		"db":      openStore(t, server.URL()+"/2"),
		"resp2":   openStore(t, server.URL()+"/3?protocol=2"),
		"default": NewRedis(server.Client(), &RedisOptions{Prefix: "other:"}),
		"hashed":  NewRedis(server.Client(), &RedisOptions{Prefix: "hashed:", HashKeys: true}),
		"foreign": NewRedis(foreign{server.Client()}, &RedisOptions{Prefix: "foreign:"}),
	} {
		t.Run(name, func(t *testing.T) {
			if err := Check(s); err != nil {
				t.Fatal(err)
			}
			takeAll(t, s, append(keys(20), strings.Repeat("long", 1000)))
			if node := s.Node(s.Key("test", "x")); node == "" || node != s.Node(s.Key("test", "y")) {
				t.Errorf("node %q", node)
			}
		})
	}
	s := openStore(t, server.URL())
	stored, err := server.Client().Keys(t.Context(), "hashed:*").Result()
	if err != nil || len(stored) != 21 || strings.Contains(strings.Join(stored, " "), "key-") {
		t.Errorf("hashed names: %q, %v", stored, err)
	}
	same := make([]Call, 5)
	for i := range same {
		same[i] = takeOne(s, "same")
	}
	results := make([]Result, 7) // longer than calls
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

// foreign is a client of a kind that the store does not know, and that cannot be compared.
type foreign struct{ redis.UniversalClient }

func TestUnusable(t *testing.T) {
	var client *redis.Client
	var cluster *redis.ClusterClient
	var nobody *Redis
	for name, s := range map[string]Store{
		"nil": nil, "nil client": NewRedis(nil, nil), "nil *Client": NewRedis(client, nil),
		"nil *ClusterClient": NewRedis(cluster, nil), "nil store": nobody, "empty store": &Redis{},
		"prefix": NewRedis(serverClient(t, &redis.Options{Addr: "127.0.0.1:1"}), &RedisOptions{Prefix: "a{b"}),
	} {
		err := Check(s)
		if err == nil {
			t.Errorf("%s: accepted", name)
		}
		if r, ok := s.(*Redis); ok && r != nil && r.broken != nil {
			if got := run(t, s, takeOne(s, "x")); !errors.Is(got.Err, r.broken) {
				t.Errorf("%s: %v", name, got.Err)
			}
			_ = r.Node("x")
		}
	}
	if err := NewRedis(nil, &RedisOptions{Prefix: "{"}).check(); !strings.Contains(err.Error(), "nil") ||
		!strings.Contains(err.Error(), "Prefix") {
		t.Errorf("not all problems: %v", err)
	}
}

func TestRedisClose(t *testing.T) {
	server := redistest.Start(t)
	client := server.Client()
	borrowed, owned := NewRedis(client, nil), openStore(t, server.URL())
	for name, s := range map[string]*Redis{"borrowed": borrowed, "owned": owned} {
		warm(t, s)
		if err := errors.Join(s.Close(), s.Close()); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if r := run(t, s, takeOne(s, "x")); !errors.Is(r.Err, ErrClosed) {
			t.Errorf("%s: %v", name, r.Err)
		}
		if _, err := s.Presence(t.Context(), patience, s.Node(""), "me", time.Second); !errors.Is(err, ErrClosed) {
			t.Errorf("%s: presence: %v", name, err)
		}
	}
	if err := client.Ping(t.Context()).Err(); err != nil {
		t.Errorf("the borrowed client: %v", err)
	}
	if err := owned.nodes.(single).client.Ping(t.Context()).Err(); !errors.Is(err, redis.ErrClosed) {
		t.Errorf("the owned client: %v", err)
	}
}

func TestPassword(t *testing.T) {
	server := redistest.Start(t, "--requirepass", "r1ght/p@ss")
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

func TestOnePipelinePerNode(t *testing.T) {
	server := redistest.Start(t)
	client := serverClient(t, &redis.Options{Addr: server.Addr, ContextTimeoutEnabled: true, ReadTimeout: patience})
	var count pipelines
	client.AddHook(&count)
	s := NewRedis(client, nil)
	warm(t, s)
	calls, results := make([]Call, 20), make([]Result, 20)
	for i, key := range keys(20) {
		calls[i] = takeOne(s, key)
	}
	for range 2 {
		count.sent.Store(0)
		count.commands.Store(0)
		s.Run(t.Context(), patience, calls, results)
		if p, c := count.sent.Load(), count.commands.Load(); p != 1 || c != 20 {
			t.Errorf("%d pipelines with %d commands", p, c)
		}
	}
}

func TestScriptFlush(t *testing.T) {
	server := redistest.Start(t)
	client := serverClient(t, &redis.Options{Addr: server.Addr, ContextTimeoutEnabled: true, ReadTimeout: patience})
	other := server.Client()
	var count pipelines
	client.AddHook(&count)
	s := NewRedis(client, nil)
	for _, flushed := range [][]string{keys(1), keys(20)} {
		before := make([]int64, len(flushed))
		for i, key := range flushed {
			before[i] = charged(t, s, key)
		}
		if err := errors.Join(other.ScriptFlush(t.Context()).Err(), other.ConfigResetStat(t.Context()).Err()); err != nil {
			t.Fatal(err)
		}
		count.sent.Store(0)
		count.commands.Store(0)
		calls, results := make([]Call, len(flushed)), make([]Result, len(flushed))
		for i, key := range flushed {
			calls[i] = takeOne(s, key)
		}
		s.Run(t.Context(), patience, calls, results)
		if p, c := count.sent.Load(), count.commands.Load(); p != 2 || c != int64(2*len(flushed)) {
			t.Errorf("%d calls: %d pipelines with %d commands", len(flushed), p, c)
		}
		if texts := server.Calls(other, "eval"); texts != 1 {
			t.Errorf("%d calls: the script's text was sent %d times", len(flushed), texts)
		}
		for i, r := range results {
			if r.Err != nil || r.Reply.Grant != 1 {
				t.Errorf("%d calls: call %d: %+v", len(flushed), i, r)
			}
			if now := charged(t, s, flushed[i]); now != before[i]+1 {
				t.Errorf("%d calls: bucket %d was charged %d, now %d", len(flushed), i, before[i], now)
			}
		}
	}
	// The presence script has the same way back.
	if err := other.ScriptFlush(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	if c, err := s.Presence(t.Context(), patience, s.Node(""), "me", time.Minute); err != nil || c.Processes != 1 {
		t.Errorf("presence: %+v, %v", c, err)
	}
}

func TestCancelled(t *testing.T) {
	server := redistest.Start(t)
	client := server.Client()
	s := NewRedis(client, nil)
	warm(t, s)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	results := make([]Result, 2)
	s.Run(ctx, patience, []Call{takeOne(s, "a"), takeOne(s, "b")}, results)
	for i, r := range results {
		if !errors.Is(r.Err, context.Canceled) {
			t.Errorf("call %d: %+v", i, r)
		}
	}
	if _, err := s.Presence(ctx, patience, s.Node(""), "me", time.Minute); !errors.Is(err, context.Canceled) {
		t.Errorf("presence: %v", err)
	}
	s.Run(t.Context(), 0, []Call{takeOne(s, "a")}, results)
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
	for name, s := range map[string]*Redis{
		"opened": openStore(t, server.URL()), "opened with less": openStore(t, server.URL()+"?read_timeout=20ms"), "warm": NewRedis(server.Client(), nil), "cold": NewRedis(server.Client(), nil),
		"no retries": NewRedis(serverClient(t, &redis.Options{Addr: server.Addr, MaxRetries: -1}), nil),
		"foreign but bounded": NewRedis(foreign{serverClient(t, &redis.Options{
			Addr: server.Addr, ContextTimeoutEnabled: true, MaxRetries: -1,
		})}, nil),
	} {
		t.Run(name, func(t *testing.T) {
			if name != "cold" {
				warm(t, s)
			}
			server.Pause()
			defer server.Resume()
			for range 2 {
				results := make([]Result, 3)
				begun := time.Now()
				s.Run(t.Context(), timeout, []Call{takeOne(s, "a"), takeOne(s, "b"), takeOne(s, "c")}, results)
				took := time.Since(begun)
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
				begun = time.Now()
				if _, err := s.Presence(t.Context(), timeout, s.Node(""), "me", time.Second); err == nil {
					t.Error("presence answered")
				}
				if took := time.Since(begun); took > 3*timeout+slack {
					t.Errorf("presence took %v", took)
				}
			}
		})
	}
}

func serverClient(t testing.TB, o *redis.Options) *redis.Client {
	c := redis.NewClient(o)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func TestDead(t *testing.T) {
	server := redistest.Start(t)
	s := openStore(t, server.URL())
	warm(t, s)
	server.Kill()
	for range 3 {
		begun := time.Now()
		var r [1]Result
		s.Run(t.Context(), 50*time.Millisecond, []Call{takeOne(s, "a")}, r[:])
		if r[0].Err == nil || time.Since(begun) > 100*time.Millisecond {
			t.Errorf("%v: %+v", time.Since(begun), r[0])
		}
	}
	server.Restart()
	for deadline := time.Now().Add(5 * time.Second); ; time.Sleep(10 * time.Millisecond) { // the pool's own pause
		if r := run(t, s, takeOne(s, "a")); r.Err == nil {
			break
		} else if time.Now().After(deadline) {
			t.Fatal(r.Err)
		}
	}
}

func TestServerErrors(t *testing.T) {
	server := redistest.Start(t, "--rename-command", "EVALSHA_RO", "")
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
	results := make([]Result, 4)
	s.Run(ctx, patience, []Call{takeOne(s, "s3cr3t"), takeOne(s, "foreign s3cr3t"), illegal, takeOne(s, "good")}, results)
	for i, want := range []string{"WRONGTYPE ", "RLFOREIGN key", "RLARG argument 1"} {
		var e *ScriptError
		if !errors.As(results[i].Err, &e) || !strings.HasPrefix(e.Text, want) || strings.Contains(e.Text, "script:") ||
			strings.Contains(e.Error(), "s3cr3t") {
			t.Errorf("%s: %+v", want, results[i])
		}
	}
	if results[3].Err != nil {
		t.Errorf("the good one among bad ones: %v", results[3].Err)
	}

	for name, test := range map[string]struct {
		breakIt, mendIt []any
		is              func(error) bool
	}{
		"OOM": {[]any{"config", "set", "maxmemory", "1"}, []any{"config", "set", "maxmemory", "0"}, redis.IsOOMError},
		"READONLY": {
			[]any{"replicaof", "127.0.0.1", "1"}, []any{"replicaof", "no", "one"},
			func(err error) bool { return redis.IsReadOnlyError(err) || redis.IsMasterDownError(err) },
		},
		"NOREPLICAS": {
			[]any{"config", "set", "min-replicas-to-write", "1"}, []any{"config", "set", "min-replicas-to-write", "0"},
			redis.IsNoReplicasError,
		},
		"ACL in the script": {
			[]any{"acl", "setuser", "default", "-pexpire"}, []any{"acl", "setuser", "default", "+pexpire"},
			redis.IsPermissionError,
		},
		"ACL": {
			[]any{"acl", "setuser", "default", "-evalsha"}, []any{"acl", "setuser", "default", "+evalsha"},
			redis.IsPermissionError,
		},
	} {
		must(admin.Do(ctx, test.breakIt...))
		r := run(t, s, takeOne(s, "s3cr3t key"))
		must(admin.Do(ctx, test.mendIt...))
		var e *ScriptError
		if !test.is(r.Err) || errors.As(r.Err, &e) || strings.Contains(r.Err.Error(), "s3cr3t") {
			t.Errorf("%s: %T %v", name, r.Err, r.Err)
		}
	}

	renamed := redistest.Start(t, "--rename-command", "EVALSHA", "")
	r := run(t, openStore(t, renamed.URL()), takeOne(s, "s3cr3t key"))
	if !redis.HasErrorPrefix(r.Err, "unknown command") || strings.Contains(r.Err.Error(), "s3cr3t") {
		t.Errorf("renamed EVALSHA: %v", r.Err)
	}
}

func TestRedisPresence(t *testing.T) {
	server := redistest.Start(t)
	s, other := openStore(t, server.URL()), NewRedis(server.Client(), nil)
	elsewhere := NewRedis(server.Client(), &RedisOptions{Prefix: "elsewhere:"})
	node := s.Node("")
	here := func(s *Redis, id string, ttl time.Duration, want int64) Census {
		t.Helper()
		c, err := s.Presence(t.Context(), patience, node, id, ttl)
		if err != nil || c.Processes != want {
			t.Errorf("%s: %+v, %v, want %d", id, c, err, want)
		}
		return c
	}
	c := here(s, "a", time.Minute, 1)
	if d := time.Since(time.UnixMicro(c.Now)).Abs(); d > time.Second {
		t.Errorf("the server's clock is off by %v", d)
	}
	here(other, "b", time.Minute, 2)
	here(s, "a", time.Minute, 2)
	here(elsewhere, "a", time.Minute, 1)
	here(other, "b", 0, 1)
	here(s, "c", time.Minute, 2)
	for deadline := time.Now().Add(patience); ; {
		c, err := s.Presence(t.Context(), patience, node, "a", time.Millisecond) // the others are silent for that long
		if err != nil || time.Now().After(deadline) {
			t.Fatalf("%+v, %v", c, err)
		}
		if c.Processes == 1 {
			break
		}
	}
	var e *ScriptError
	if _, err := s.Presence(t.Context(), patience, node, "", time.Second); !errors.As(err, &e) {
		t.Errorf("no id: %v", err)
	}
	if _, err := s.Presence(t.Context(), patience, "nowhere:1", "a", time.Second); !errors.Is(err, errNoName) {
		t.Errorf("an unknown node: %v", err)
	}
}

func TestConcurrentCalls(t *testing.T) {
	server := redistest.Start(t)
	s := NewRedis(server.Client(), nil)
	const callers, rounds = 8, 20
	var all sync.WaitGroup
	for i := range callers {
		all.Go(func() {
			calls, results := []Call{takeOne(s, "shared"), takeOne(s, fmt.Sprint(i))}, make([]Result, 2)
			for range rounds {
				s.Run(t.Context(), patience+time.Duration(i), calls, results) // many timeouts: many clones
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

func TestClonesAreBounded(t *testing.T) {
	client := serverClient(t, &redis.Options{Addr: "127.0.0.1:1"})
	var c clones
	for i := range 3 * mostClones {
		c.of(client, time.Duration(i+1))
	}
	if len(c.made) > mostClones {
		t.Errorf("%d clones", len(c.made))
	}
	if a, b := c.of(client, time.Second), c.of(client, time.Second); a != b || a.Options().ReadTimeout != time.Second {
		t.Error("a clone is not kept")
	}
}

func BenchmarkRun(b *testing.B) {
	server := redistest.Start(b)
	s := NewRedis(serverClient(b, &redis.Options{Network: "unix", Addr: server.Socket}), nil)
	for _, n := range []int{1, 20} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			calls, results := make([]Call, n), make([]Result, n)
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
