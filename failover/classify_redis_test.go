package failover_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/tiered-limiter/tiered-limiter/failover"
	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/redistest"
)

// classified checks the class of an error that something real gave, and that it is the error which
// was meant.
func classified(t *testing.T, name string, err error, text string, wants ...failover.Class) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), text) {
		t.Errorf("%s: the error is %v, want one with %q", name, err, text)
		return
	}
	got := failover.Classify(err)
	for _, want := range wants {
		if got == want {
			t.Logf("%-32s %T %v: %v", name, err, err, got)
			return
		}
	}
	t.Errorf("%s: %v, want %v: %T %v", name, got, wants, err, err)
}

const writes = "return redis.call('HSET', KEYS[1], 'a', 1)"

// TestClassifyLive: the errors that a real redis-server gives.
func TestClassifyLive(t *testing.T) {
	server := redistest.StartOpen(t)
	admin := server.Client()
	ctx := t.Context()
	tell := func(commands ...string) func() { // "" is an empty word
		return func() {
			for _, command := range commands {
				var args []any
				for word := range strings.FieldsSeq(command) {
					args = append(args, strings.Trim(word, `"`))
				}
				if err := admin.Do(ctx, args...).Err(); err != nil {
					t.Fatalf("%s: %v", command, err)
				}
			}
		}
	}
	eval := func(c *redis.Client) func() error {
		return func() error { return c.Eval(ctx, writes, []string{"a"}).Err() }
	}
	as := func(name, password string) func() error {
		return func() error {
			return eval(newClient(t, server.Addr, func(o *redis.Options) {
				o.Username, o.Password = name, password
			}))()
		}
	}
	tell("ACL SETUSER mute on >x ~* +eval", "ACL SETUSER blind on >x ~* +hset", "SET string x")()
	plain := newClient(t, server.Addr, nil)
	write, nothing := eval(plain), func() {}
	const unknown = "0000000000000000000000000000000000000000"

	for _, test := range []struct {
		name  string
		want  failover.Class
		begin func()
		call  func() error
		end   func()
	}{
		{"well", failover.Fine, nothing, write, nothing},
		{"nothing there", failover.Fine, nothing, func() error { return plain.Get(ctx, "none").Err() }, nothing},
		{"unknown script", failover.Fine, nothing, func() error { return plain.EvalSha(ctx, unknown, nil).Err() }, nothing},
		{"another type", failover.KeyFault, nothing, func() error { return plain.HSet(ctx, "string", "a", 1).Err() }, nothing},
		{"wrong password", failover.Misconfigured, nothing, as("mute", "y"), nothing},
		{"may not in scripts", failover.Refused, nothing, as("mute", "x"), nothing},
		{"may send no text", failover.Refused, nothing, as("blind", "x"), nothing},
		{"may not", failover.Misconfigured, nothing, func() error {
			return newClient(t, server.Addr, func(o *redis.Options) { o.Username, o.Password = "blind", "x" }).EvalSha(ctx, unknown, nil).Err()
		}, nothing},
		{"no password", failover.Misconfigured, tell("CONFIG SET requirepass x"), as("", ""), tell(`CONFIG SET requirepass ""`)},
		{"out of memory", failover.CannotServe, tell("CONFIG SET maxmemory 1"), write, tell("CONFIG SET maxmemory 0")},
		{
			"no replicas", failover.CannotServe,
			tell("CONFIG SET min-replicas-to-write 1"), write, tell("CONFIG SET min-replicas-to-write 0"),
		},
		{"replica", failover.CannotServe, tell("REPLICAOF 127.0.0.1 1"), write, tell("REPLICAOF NO ONE")},
		{
			"replica without its primary", failover.CannotServe,
			tell("CONFIG SET replica-serve-stale-data no", "REPLICAOF 127.0.0.1 1"),
			func() error { return plain.Get(ctx, "a").Err() }, tell("REPLICAOF NO ONE"),
		},
		{"busy", failover.CannotServe, func() {
			tell("CONFIG SET lua-time-limit 1")()
			go newClient(t, server.Addr, nil).Eval(ctx, "while true do end", nil)
			until(t, "the script does not run", func() bool { return redis.HasErrorPrefix(write(), "BUSY") })
		}, write, tell("SCRIPT KILL")},
		{
			"frozen", failover.Unreachable,
			server.Pause, func() error { return eval(newClient(t, server.Addr, hurried))() }, server.Resume,
		},
		{"killed", failover.Unreachable, server.Kill, write, nothing},
	} {
		test.begin()
		err := test.call()
		test.end()
		text := fmt.Sprintf("%-28s %T %v", test.name, err, err)
		if got := failover.Classify(err); got != test.want {
			t.Errorf("%s: %v, want %v", text, got, test.want)
		} else {
			t.Logf("%s: %v", text, got)
		}
	}
}

// TestClassifyRareReplies: what a redis-server says in states that take some effort to bring about.
func TestClassifyRareReplies(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	server := redistest.Start(t, "--enable-debug-command", "yes", "--enable-protected-configs", "yes")
	admin := redis.NewClient(&redis.Options{
		Addr: server.Addr, PoolSize: 1, MaxRetries: -1,
		ReadTimeout: 20 * time.Second,
	})
	defer admin.Close()
	do := func(args ...any) {
		t.Helper()
		if err := admin.Do(ctx, args...).Err(); err != nil {
			t.Fatalf("%v: %v", args, err)
		}
	}
	as := func(change func(*redis.Options)) error {
		c := newClient(t, server.Addr, change)
		defer c.Close()
		return c.Eval(ctx, writes, []string{"k"}).Err()
	}
	user := func(name, password string, protocol int) error {
		return as(func(o *redis.Options) { o.Username, o.Password, o.Protocol = name, password, protocol })
	}

	do("ACL", "SETUSER", "elsewhere", "on", ">x", "~other:*", "+@all")
	do("ACL", "SETUSER", "sub", "on", ">x", "~*", "+eval", "+hset", "-@admin")
	do("ACL", "SETUSER", "asleep", "off", ">x", "~*", "+@all")
	classified(t, "a key that it may not", user("elsewhere", "x", 3), "NOPERM", failover.Refused)
	before7 := strings.HasPrefix(redistest.Version(t), "6.")
	if !before7 { // there is no right to read a key alone
		do("ACL", "SETUSER", "reader", "on", ">x", "%R~*", "+@all")
		classified(t, "a key that it may only read", user("reader", "x", 3), "NOPERM", failover.Refused)
	}
	classified(t, "a user that is off", user("asleep", "x", 3), "WRONGPASS", failover.Misconfigured)
	classified(t, "a wrong password over RESP2", user("sub", "y", 2), "WRONGPASS", failover.Misconfigured)
	blocked := newClient(t, server.Addr, func(o *redis.Options) { o.Username, o.Password = "sub", "x" })
	if err := blocked.Eval(ctx, writes, []string{"k"}).Err(); err != nil {
		t.Errorf("the user with the least rights: %v", err)
	}
	classified(t, "a command inside of the script",
		blocked.Eval(ctx, "return redis.call('PEXPIRE', KEYS[1], 1)",
			[]string{"k"}).Err(), "script", failover.Refused) // Redis 8 says it as Valkey does
	classified(t, "a key inside of the script",
		newClient(t, server.Addr, func(o *redis.Options) { o.Username, o.Password = "elsewhere", "x" }).
			Eval(ctx, "return redis.call('HSET', 'undeclared', 'a', 1)", nil).Err(), "script", failover.Refused)

	dir := t.TempDir()
	t.Run("saving failed", func(t *testing.T) {
		gone := filepath.Join(t.TempDir(), "gone")
		if err := os.Mkdir(gone, 0o700); err != nil {
			t.Fatal(err)
		}
		do("CONFIG", "SET", "dir", gone)
		if err := os.Remove(gone); err != nil {
			t.Fatal(err)
		}
		do("CONFIG", "SET", "save", "3600 1000000")
		do("BGSAVE")
		until(t, "the save does not fail", func() bool {
			info, err := admin.Info(ctx, "persistence").Result()
			return err == nil && strings.Contains(info, "rdb_last_bgsave_status:err")
		})
		classified(t, "saving failed", as(func(*redis.Options) {}), "MISCONF", failover.CannotServe)
		do("CONFIG", "SET", "save", "")
		do("CONFIG", "SET", "dir", dir)
	})

	t.Run("loading", func(t *testing.T) {
		if before7 {
			t.Skip("Redis 6.2 cannot be made to answer while it loads so little")
		}
		const load = "for i = 1, 3000 do redis.call('SET', 'big' .. i, string.rep('x', 1000)) end return 1"
		if err := admin.Eval(ctx, load, nil).Err(); err != nil {
			t.Fatal(err)
		}
		do("CONFIG", "SET", "loading-process-events-interval-bytes", 1024)
		do("CONFIG", "SET", "rdbcompression", "no")
		do("CONFIG", "SET", "key-load-delay", 500) // µs each
		ended := make(chan error, 1)
		reload := func() { ended <- admin.Do(ctx, "DEBUG", "RELOAD").Err() }
		go reload()
		// Of a connection that was open, and of one whose handshake is refused.
		var inHandshake, later error
		until(t, "it never loads", func() bool {
			later = blocked.Eval(ctx, writes, []string{"k"}).Err()
			if !redis.IsLoadingError(later) {
				select {
				case err := <-ended: // while this process did not run
					if err != nil {
						t.Fatal(err)
					}
					go reload()
				default:
				}
				return false
			}
			inHandshake = user("sub", "x", 3)
			return true
		})
		classified(t, "loading", later, "LOADING", failover.CannotServe)
		if inHandshake != nil { // HELLO is answered while it loads
			classified(t, "loading, a new connection", inHandshake, "LOADING", failover.CannotServe)
		}
		if err := <-ended; err != nil {
			t.Fatal(err)
		}
	})

	t.Run("too many clients", func(t *testing.T) {
		do("CONFIG", "SET", "maxclients", 1)
		defer do("CONFIG", "SET", "maxclients", 100)
		seen := map[string]int{}
		for range 20 { // the reply is often lost: Redis closes while the handshake is being written
			err := as(func(*redis.Options) {})
			class := failover.Classify(err)
			if err == nil || class != failover.CannotServe && class != failover.Unreachable {
				t.Fatalf("%v: %v", err, class)
			}
			seen[class.String()]++
		}
		t.Logf("too many clients: %v", seen)
	})
}

// TestClassifyClusterReplies: what the nodes of a Cluster say to a client that does not follow
// their redirections.
func TestClassifyClusterReplies(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	lonely := redistest.Start(t, "--cluster-enabled", "yes", "--cluster-config-file", "nodes.conf")
	client := newClient(t, lonely.Addr, nil)
	classified(t, "a slot of nobody", client.Eval(ctx, writes, []string{"k"}).Err(), "CLUSTERDOWN", failover.CannotServe)
	if err := client.ClusterAddSlotsRange(ctx, 0, 16382).Err(); err != nil {
		t.Fatal(err)
	}
	classified(t, "a part of the slots", client.Eval(ctx, writes, []string{"k"}).Err(), "CLUSTERDOWN", failover.CannotServe)
	classified(t, "keys of two slots", client.Eval(ctx, writes, []string{"a", "b"}).Err(), "CROSSSLOT", failover.KeyFault)

	c := redistest.StartCluster(t, 2)
	const slotOfFoo = 12182
	first := newClient(t, c.Servers[0].Addr, nil)
	second := newClient(t, c.Servers[1].Addr, nil)
	classified(t, "a slot of another", first.Eval(ctx, writes, []string{"foo"}).Err(), "MOVED", failover.CannotServe)
	c.Migrate(slotOfFoo, 1, 0)
	classified(t, "a slot that is moving", second.Eval(ctx, writes, []string{"foo"}).Err(), "ASK", failover.CannotServe)
	if err := second.MSet(ctx, "{foo}1", 1, "{foo}2", 1).Err(); !redis.IsTryAgainError(err) &&
		!redis.HasErrorPrefix(err, "ASK") {
		t.Errorf("several keys of a slot that is moving: %v", err)
	} else if failover.Classify(err) != failover.CannotServe {
		t.Errorf("%v: %v", err, failover.Classify(err))
	}
}

// TestClassifyHandshakes: what keeps a connection from being made at all.
func TestClassifyHandshakes(t *testing.T) {
	t.Parallel()
	plain := redistest.Start(t)
	secure := httptest.NewTLSServer(nil)
	defer secure.Close()
	picky := httptest.NewUnstartedServer(nil)
	picky.TLS = &tls.Config{ClientAuth: tls.RequireAnyClientCert}
	picky.Config.ErrorLog = quiet()
	secure.Config.ErrorLog = quiet()
	picky.StartTLS()
	defer picky.Close()
	trusts := func(s *httptest.Server) *x509.CertPool {
		pool := x509.NewCertPool()
		pool.AddCert(s.Certificate())
		return pool
	}
	get := func(addr string, change func(*redis.Options)) error {
		return newClient(t, addr, change).Get(t.Context(), "k").Err()
	}
	with := func(config *tls.Config) func(*redis.Options) { return func(o *redis.Options) { o.TLSConfig = config } }

	addr := secure.Listener.Addr().String()
	classified(t, "an unknown authority", get(addr, with(&tls.Config{})), "unknown authority", failover.Misconfigured)
	classified(t, "a certificate of another name",
		get(addr, with(&tls.Config{RootCAs: trusts(secure), ServerName: "redis.invalid"})), "redis.invalid",
		failover.Misconfigured)
	classified(t, "no certificate of ours",
		get(picky.Listener.Addr().String(), with(&tls.Config{RootCAs: trusts(picky)})), "remote error", failover.Misconfigured)
	classified(t, "TLS that is too old",
		get(addr, with(&tls.Config{
			InsecureSkipVerify: true, MinVersion: tls.VersionTLS10,
			MaxVersion: tls.VersionTLS10,
		})), "", failover.Misconfigured)
	// A redis-server without TLS reads the handshake as a command without an end, or one that it
	// does not know.
	classified(t, "TLS to a plain server", get(plain.Addr, func(o *redis.Options) {
		o.TLSConfig, o.DialTimeout = &tls.Config{InsecureSkipVerify: true}, 300*ms
	}), "", failover.Unreachable, failover.Misconfigured)
	classified(t, "TLS to a server that speaks", get(speaks(t, "-ERR unknown command\r\n"),
		with(&tls.Config{InsecureSkipVerify: true})),
		"does not look like a TLS", failover.Misconfigured)
	classified(t, "plain to a TLS server", get(addr, func(*redis.Options) {}), "", failover.Unreachable)

	nowhere := &net.Dialer{Resolver: &net.Resolver{
		PreferGo: true,
		Dial: func(context.Context, string, string) (net.Conn, error) {
			return nil, errors.New("no name server")
		},
	}}
	classified(t, "no name server", get("redis.invalid:6379", func(o *redis.Options) {
		o.Dialer = nowhere.DialContext
	}), "lookup", failover.Unreachable)
	classified(t, "a reset", get(resets(t), func(*redis.Options) {}), "", failover.Unreachable)
}

// until polls a real process: there is nothing else to wait on.
func until(t *testing.T, failure string, ready func() bool) {
	t.Helper()
	for deadline := time.Now().Add(15 * time.Second); !ready(); time.Sleep(ms) {
		if time.Now().After(deadline) {
			t.Fatal(fmt.Sprint(failure, " within 15 s"))
		}
	}
}
