package remote_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/url"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/redistest"
	"github.com/tiered-limiter/tiered-limiter/lua"
	"github.com/tiered-limiter/tiered-limiter/remote"
)

// The tests of the rights in docs/redis.md make the user themselves, from the very words there.
// That they are enough for all that the store and the limiter do is what a guarded run shows; here,
// that none of them is too many.

// setUser executes ACL SETUSER with words of docs/redis.md.
func setUser(t *testing.T, admin *redis.Client, words ...string) {
	t.Helper()
	args := []any{"acl", "setuser", redistest.User}
	for _, w := range words {
		args = append(args, w)
	}
	if err := admin.Do(t.Context(), args...).Err(); err != nil {
		t.Fatal(err)
	}
}

// setUserAnew makes the user, with these rights alone.
func setUserAnew(t *testing.T, admin *redis.Client, rights ...string) {
	t.Helper()
	setUser(t, admin, append([]string{"reset", "on", ">" + redistest.Password}, rights...)...)
}

// asUser opens a store as the user.
func asUser(t *testing.T, scheme, addr, query string, o *remote.RedisOptions) *remote.Redis {
	t.Helper()
	u := url.URL{
		Scheme: scheme, User: url.UserPassword(redistest.User, redistest.Password), Host: addr,
		RawQuery: query,
	}
	s, err := remote.Open(u.String(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// allOf does everything that a store ever does: a script that Redis does not know, a direct take, a
// lease, the sweep of one that has ended, presence and the end of it, and polls of the table.
func allOf(t *testing.T, s remote.Store, admin *redis.Client, key string) error {
	t.Helper()
	if err := admin.ScriptFlush(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	const second = 1_000_000
	now := time.Now().UnixMicro()
	direct := lua.Call{
		Bucket: s.Key("rights", key), Cap: 100, Tokens: 1, Period: second, Want: 1, Min: 1,
		TTL: second, Fleet: 1,
	}
	lease, sweep := direct, direct
	lease.Lease, lease.Seq, lease.Now = "gone", 1, now+second
	sweep.Lease, sweep.Seq, sweep.Now = "here", 1, now+4*second
	var all error
	for _, c := range []lua.Call{direct, lease, sweep} {
		var r [1]remote.Result
		s.Run(t.Context(), time.Minute, []lua.Call{c}, r[:])
		if r[0].Err == nil && r[0].Reply.Grant != 1 {
			t.Errorf("%+v", r[0])
		}
		all = errors.Join(all, r[0].Err)
	}
	uses := []remote.AnnouncedPolicy{{Name: "rights", Shared: 1, Used: 1}}
	me := remote.Process{ID: "me", Announced: remote.Announce("service", uses), Keep: time.Minute}
	for _, me.TTL = range []time.Duration{time.Second, 0} {
		me.Poll = lua.Poll{Member: "m", Seq: 1, Want: true, TTL: second}
		c, err := s.Presence(t.Context(), time.Minute, s.Node(direct.Bucket), me)
		all = errors.Join(all, err, c.Poll.Err)
	}
	return all
}

func TestEveryRightIsNeeded(t *testing.T) {
	server := redistest.StartOpen(t)
	admin := server.Client()
	rights := redistest.Rights(t, redistest.OnServer)
	setUserAnew(t, admin, rights...)
	s := asUser(t, "redis", server.Addr, "", nil)
	if err := allOf(t, s, admin, "all"); err != nil {
		t.Fatalf("with all rights: %v", err)
	}
	needed := 0
	for i, right := range rights {
		switch {
		case right == "resetchannels", right == "-@all": // they take
			continue
		case right != "~tl:*" && (right[0] != '+' || strings.ContainsAny(right, "@*")):
			t.Errorf("%s is no right to one command, nor to the keys of the prefix", right)
		}
		needed++
		setUserAnew(t, admin, slices.Delete(slices.Clone(rights), i, i+1)...)
		if err := allOf(t, s, admin, "without "+right); !redis.IsPermissionError(err) {
			t.Errorf("without %s: %v", right, err)
		}
	}
	if needed < 10 {
		t.Fatalf("%d rights were tried: %q", needed, rights)
	}

	setUserAnew(t, admin, rights...)
	if err := allOf(t, asUser(t, "redis", server.Addr, "", &remote.RedisOptions{Prefix: "other:"}), admin,
		"x"); !isDenied(err) {
		t.Errorf("another prefix: %v", err)
	}
	client := redis.NewClient(&redis.Options{Addr: server.Addr, Username: redistest.User, Password: redistest.Password})
	defer client.Close()
	for _, command := range []string{
		"get tl:x", "del tl:x", "keys *", "scan 0", "flushall", "flushdb", "config get *", "acl list", "client list",
		"info", "monitor",
		"script flush", "publish c m", "subscribe c", "shutdown", "replicaof no one", "ping", "dbsize", "multi",
	} {
		var words []any
		for _, w := range strings.Fields(command) {
			words = append(words, w)
		}
		if err := client.Do(t.Context(), words...).Err(); !redis.IsPermissionError(err) {
			t.Errorf("%s: %v", command, err)
		}
	}

	// The database of a URL.
	addition := redistest.Rights(t, redistest.OnDatabase)
	other := asUser(t, "redis", server.Addr, "db=1", nil)
	if err := allOf(t, other, admin, "db"); !isDenied(err) {
		t.Errorf("a database without %q: %v", addition, err)
	}
	setUser(t, admin, addition...)
	if err := allOf(t, other, admin, "db"); err != nil || len(addition) != 1 {
		t.Errorf("a database with %q: %v", addition, err)
	}
}

// isDenied reports whether Redis refused for want of a right; go-redis wraps what it meets in a
// handshake, and so hides it from its own IsPermissionError.
func isDenied(err error) bool { return err != nil && strings.Contains(err.Error(), "NOPERM") }

func TestEveryRightIsNeededOnCluster(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t, 2)
	rights := append(redistest.Rights(t, redistest.OnServer), redistest.Rights(t, redistest.OnCluster)...)
	everywhere := func(rights []string) {
		t.Helper()
		for i := range c.Servers {
			setUserAnew(t, c.Client(i), rights...)
		}
	}
	moved := 0
	// One key stays where it is; of the other its slot is moving, and the key is not there yet: the
	// node says ASK.
	asked := func() error {
		s := asUser(t, "cluster", c.Addrs()[0], "", nil)
		calls, results := make([]lua.Call, 2), make([]remote.Result, 2)
		for i, key := range []string{"stays", fmt.Sprint("moves ", moved)} {
			calls[i] = lua.Call{
				Bucket: s.Key("rights", key), Cap: 100, Tokens: 1, Period: 1, Want: 1, Min: 1, TTL: 1,
				Fleet: 1,
			}
		}
		moved++
		n, err := c.Client(0).ClusterKeySlot(t.Context(), calls[1].Bucket).Result()
		if err != nil {
			t.Fatal(err)
		}
		from := c.Owner(int(n))
		c.Migrate(int(n), from, 1-from)
		defer c.Assign(int(n), from)
		defer c.Client(1-from).Del(context.Background(), calls[1].Bucket)
		s.Run(t.Context(), time.Minute, calls, results)
		return errors.Join(results[0].Err, results[1].Err)
	}
	everywhere(rights)
	if err := asked(); err != nil {
		t.Fatalf("with all rights: %v", err)
	}
	for i := len(redistest.Rights(t, redistest.OnServer)); i < len(rights); i++ {
		everywhere(slices.Delete(slices.Clone(rights), i, i+1))
		err := asked() // go-redis shows the redirection that it could not follow, and not why
		if !isDenied(err) && !strings.Contains(fmt.Sprint(err), "ASK ") {
			t.Errorf("without %s: %v", rights[i], err)
		}
	}
}

func TestEveryRightIsNeededOnRing(t *testing.T) {
	server := redistest.StartOpen(t)
	admin := server.Client()
	rights := redistest.Rights(t, redistest.OnServer)
	for _, addition := range [][]string{redistest.Rights(t, redistest.OnRing), nil} {
		setUserAnew(t, admin, append(slices.Clone(rights), addition...)...)
		ring := redis.NewRing(&redis.RingOptions{
			Addrs: map[string]string{"0": server.Addr}, Username: redistest.User, Password: redistest.Password,
			HeartbeatFrequency: 10 * time.Millisecond,
		})
		s := remote.NewRedis(ring, nil)
		up := true
		key := 0
		for until := time.Now().Add(500 * time.Millisecond); up &&
			time.Now().Before(until); time.Sleep(5 * time.Millisecond) {
			key++
			// a real heartbeat: there is nothing else to wait on
			up = allOf(t, s, admin, fmt.Sprint(key, addition)) == nil
		}
		if up != (addition != nil) {
			t.Errorf("with %q the shard is up: %v", addition, up)
		}
		_ = ring.Close()
	}
}

// kindsOfAll are the algorithms under test, all of them.
var kindsOfAll = append([]windowKind{{algorithm: lua.TokenBucket}}, windowKinds...)

// madeUpCalls plays random histories of an algorithm on a Memory, and tells each call that was
// made, or that the key was lost.
func madeUpCalls(t *testing.T, k windowKind, histories int, made func(c lua.Call, lost bool)) {
	for seed := range histories {
		draw := rand.New(rand.NewPCG(uint64(seed), 1)).IntN
		bucket := fmt.Sprintf("tl:{rights/%d}%s", seed, k.algorithm.Mark())
		if k.algorithm == lua.TokenBucket {
			w := newWalk(bucket, draw)
			for range 40 {
				w.step()
			}
			for _, e := range w.events {
				made(e.call, e.by == nil)
			}
			continue
		}
		h, e := newWindowHistory(k, bucket, draw), memoryEngine()
		for range 40 {
			h.pass()
			e.memory.StopClock(h.now)
			c := h.next()
			made(c, false)
			h.learn(c, e.call(t, c))
		}
	}
}

// The rights of docs/redis.md are enough for every call of every algorithm. That no call is left
// out is seen by the fields of a call, each of which some call has, and by the commands that the
// scripts name, each of which has run.
func TestRightsAreEnoughForEveryCall(t *testing.T) {
	server := redistest.StartOpen(t)
	admin := server.Client()
	rights := append(redistest.Rights(t, redistest.OnServer), redistest.Rights(t, redistest.OnWindows)...)
	setUserAnew(t, admin, rights...)
	s := asUser(t, "redis", server.Addr, "", nil)
	unused := map[lua.Algorithm][]string{
		lua.TokenBucket:   {"Algorithm", "Phase", "Span", "Also", "At", "Reset"}, // Algorithm 0
		lua.SlidingLog:    {"Tokens", "Phase", "Span", "Also", "Ack", "Hold", "Ret", "Refund"},
		lua.FixedWindow:   {"Tokens", "Span", "Also"},
		lua.SlidingWindow: {"Tokens", "Phase"},
		lua.TokenBuckets:  {"Phase", "Span"},
	}
	named := map[string]bool{"evalsha": true, "eval": true}
	for _, k := range kindsOfAll {
		if err := admin.ConfigResetStat(t.Context()).Err(); err != nil {
			t.Fatal(err)
		}
		used := map[string]bool{}
		madeUpCalls(t, k, 60, func(c lua.Call, lost bool) {
			if lost {
				admin.Del(t.Context(), c.Bucket)
				return
			}
			byTime := c
			byTime.Now, byTime.Bucket = 0, c.Bucket+" by Redis' clock"
			for _, c := range []lua.Call{c, byTime} {
				err := run(t, s, c).Err
				if isDenied(err) {
					t.Fatalf("%s: %+v: %v", k.algorithm, c, err)
				}
				for i, v := 0, reflect.ValueOf(c); err == nil && i < v.NumField(); i++ {
					used[v.Type().Field(i).Name] = used[v.Type().Field(i).Name] || !v.Field(i).IsZero()
				}
			}
		})
		for f := range reflect.TypeFor[lua.Call]().Fields() {
			if used[f.Name] == slices.Contains(unused[k.algorithm], f.Name) {
				t.Errorf("%s: a call with %s was played: %v", k.algorithm, f.Name, used[f.Name])
			}
		}
		for _, command := range k.algorithm.Script().Commands() {
			named[command] = true
			if k.algorithm.Has(lua.Edges) && command == "hdel" {
				continue // in lease.lua, which deletes no record of a window that keeps them
			}
			if server.Calls(admin, command) == 0 {
				t.Errorf("%s: no call was played for which the script runs %s", k.algorithm, command)
			}
		}
	}
	for _, script := range []*lua.Script{lua.Presence, lua.Standing} { // allOf plays these
		for _, command := range script.Commands() {
			named[command] = true
			if !slices.Contains(rights, "+"+command) {
				t.Errorf("a script runs %s, and there is no right to it", command)
			}
		}
	}
	for _, right := range rights {
		if command, ok := strings.CutPrefix(right, "+"); ok && !named[command] {
			t.Errorf("no script needs the right %s", right)
		}
	}
}

// What docs/redis.md adds for windows is not too much.
func TestEveryRightOfWindowsIsNeeded(t *testing.T) {
	server := redistest.StartOpen(t)
	admin := server.Client()
	rights := redistest.Rights(t, redistest.OnServer)
	windows := redistest.Rights(t, redistest.OnWindows)
	if len(windows) == 0 {
		t.Fatal("there are none")
	}
	s := asUser(t, "redis", server.Addr, "", nil)
	for i, right := range windows {
		setUserAnew(t, admin, append(slices.Clone(rights), slices.Delete(slices.Clone(windows), i, i+1)...)...)
		for _, k := range kindsOfAll {
			denied := false
			madeUpCalls(t, k, 20, func(c lua.Call, lost bool) { denied = denied || !lost && isDenied(run(t, s, c).Err) })
			if names := slices.Contains(k.algorithm.Script().Commands(), right[1:]); denied != names {
				t.Errorf("without %s calls of a %s are denied: %v", right, k.algorithm, denied)
			}
		}
	}
}
