package tiered_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/redistest"
	"github.com/tiered-limiter/tiered-limiter/lua"
	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// tlsSecret is the server's password in these tests. No error may have it.
const tlsSecret = "s3cr3t"

// overTLS is a store over a client of the user's with an authority of his own. It dials so many
// times; 0 is go-redis' 5.
func overTLS(t *testing.T, addr string, roots *x509.CertPool, dials int) *remote.Redis {
	t.Helper()
	client := redis.NewClient(&redis.Options{
		Addr: addr, Password: tlsSecret, TLSConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12},
		DialerRetries: dials,
	})
	t.Cleanup(func() { _ = client.Close() })
	return remote.NewRedis(client, nil)
}

func TestTLS(t *testing.T) {
	ca := redistest.NewCA(t)
	server := redistest.StartTLS(t, ca, "127.0.0.1", time.Now().Add(time.Hour), "--requirepass", tlsSecret)
	l := limiter(t, overTLS(t, server.TLSAddr, ca.Pool(), 0),
		tiered.Policy{Limit: tiered.PerHour(10)},
		&tiered.Options{Budget: 5 * time.Second})
	for i := range 11 {
		if d := l.Allow(ctx, "k"); d.Allowed != (i < 10) || d.Allowed && d.Reason != tiered.Granted {
			t.Fatalf("request %d: %+v", i, d)
		}
	}
}

// rootsEnv makes a child of a process of TestOpenTLS.
const rootsEnv = "TIERED_TEST_TLS_URL"

// An authority that the operating system trusts is one that rediss trusts. A process reads those
// once, hence a child.
func TestOpenTLS(t *testing.T) {
	if url := os.Getenv(rootsEnv); url != "" {
		l := limiter(t, open(t, url), tiered.Policy{Limit: tiered.PerHour(10), FailMode: tiered.FailClosed},
			&tiered.Options{Budget: 5 * time.Second})
		if d := l.Allow(ctx, "k"); d.Reason != tiered.Granted {
			t.Fatalf("%+v", d)
		}
		return
	}
	if runtime.GOOS != "linux" {
		t.Skip("SSL_CERT_FILE says on Linux which authorities are trusted")
	}
	ca := redistest.NewCA(t)
	server := redistest.StartTLS(t, ca, "127.0.0.1", time.Now().Add(time.Hour), "--requirepass", tlsSecret)
	roots := filepath.Join(t.TempDir(), "roots.pem")
	ok(t, os.WriteFile(roots, ca.PEM, 0o600))
	for _, trusted := range []bool{true, false} {
		child := exec.Command(os.Args[0], "-test.run=^TestOpenTLS$", "-test.count=1")
		child.Env = append(os.Environ(), rootsEnv+"=rediss://:"+tlsSecret+"@"+server.TLSAddr+"?dial_timeout=5s")
		if trusted {
			child.Env = append(child.Env, "SSL_CERT_FILE="+roots, "SSL_CERT_DIR="+t.TempDir())
		}
		if out, err := child.CombinedOutput(); (err == nil) != trusted {
			t.Errorf("trusted %v: %v\n%s", trusted, err, out)
		}
	}
}

// With any mistake in a certificate or in the use of TLS, the error states the mistake, the breaker
// opens, and no request waits.
func TestTLSTrouble(t *testing.T) {
	const tooLong = "deadline exceeded|longer than its timeout"
	const plainly = "does the server speak TLS at this port|" + tooLong
	const expiredOr = "certificate has expired or is not yet valid|" + tooLong
	// A handshake that is not answered takes 5 s, a decision and a call a small part of this. How
	// small, tests in virtual time say: here the machine has its part.
	const patient = 2 * time.Second
	ca, stranger := redistest.NewCA(t), redistest.NewCA(t)
	hour := time.Now().Add(time.Hour)
	start := func(host string, until time.Time) *redistest.Server {
		return redistest.StartTLS(t, ca, host, until, "--requirepass", tlsSecret)
	}
	good, frozen, elsewhere := start("127.0.0.1", hour), start("127.0.0.1", hour), start("redis.example", hour)
	expired := start("127.0.0.1", time.Now().Add(-time.Minute))
	frozen.Pause()
	t.Cleanup(frozen.Resume)
	for _, c := range []struct {
		name  string
		store *remote.Redis
		want  string // what the line in the log says, a regexp
	}{
		{
			"an authority that is not known", overTLS(t, good.TLSAddr, stranger.Pool(), 1),
			"certificate signed by unknown authority",
		},
		{
			"the same, opened", open(t, "rediss://:"+tlsSecret+"@"+good.TLSAddr+"?dial_timeout=5s"),
			"certificate signed by unknown authority",
		},
		{
			"a certificate for another host", overTLS(t, elsewhere.TLSAddr, ca.Pool(), 1),
			"cannot validate certificate for 127.0.0.1",
		},
		{
			"an expired certificate", overTLS(t, expired.TLSAddr, ca.Pool(), 1),
			"certificate has expired or is not yet valid",
		},
		{"no TLS where it is spoken", open(t, "redis://:"+tlsSecret+"@"+good.TLSAddr), "EOF"},
		// Here the deadline of the call comes first, and hides what the dialing comes to. At
		// go-redis' defaults too. The line of the breaker finds the cause by a dial of its own,
		// unless the machine is busy for a tenth of a second.
		{"an expired certificate, at go-redis' defaults", overTLS(t, expired.TLSAddr, ca.Pool(), 0), expiredOr},
		{"TLS where none is spoken", overTLS(t, good.Addr, ca.Pool(), 1), plainly},
		{"the same, opened", open(t, "rediss://:"+tlsSecret+"@"+good.Addr), plainly},
		{"a frozen server", overTLS(t, frozen.TLSAddr, ca.Pool(), 1), tooLong},
		{"the same, opened", open(t, "rediss://:"+tlsSecret+"@"+frozen.TLSAddr), tooLong},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel() // they wait most of the time
			var log bytes.Buffer
			o := &tiered.Options{Logger: slog.New(slog.NewTextHandler(&log, nil))}
			if !strings.Contains(c.want, tooLong) {
				o.Timeout = 5 * time.Second // a busy machine must not hide it
			}
			g := must(tiered.NewGroup(c.store, o))
			l := must(g.NewLimiter(tiered.Policy{Name: "api", Limit: tiered.PerSecond(10), FailMode: tiered.FailClosed}))
			allClosed := func() bool {
				for _, s := range g.Stats().Nodes {
					if s.Outages.Breaker != "closed" {
						return false
					}
				}
				return true
			}
			patience := time.Now().Add(20 * time.Second)
			for i := 0; i < 12 || allClosed(); i++ {
				if time.Now().After(patience) {
					t.Fatalf("the breaker is closed: %+v", g.Stats().Nodes)
				}
				begun := time.Now()
				d := l.Allow(ctx, strconv.Itoa(i))
				took := time.Since(begun)
				if d.Reason != tiered.Unavailable {
					t.Fatalf("%+v", d)
				}
				if took > patient {
					t.Errorf("decided after %v: it waited for the handshake", took)
				}
				time.Sleep(20 * time.Millisecond) // a real handshake: there is nothing else to wait on
			}
			var r [1]remote.Result
			begun := time.Now()
			call := lua.Call{Bucket: c.store.Key("api", "k"), Cap: 1, Period: 1, Want: 1, Min: 1, TTL: 1, Fleet: 1}
			c.store.Run(ctx, tiered.DefaultTimeout, []lua.Call{call}, r[:])
			took := time.Since(begun)
			if took > patient {
				t.Errorf("a call took %v: it waited for the handshake", took)
			}
			if err := g.Close(ctx); err != nil && !errors.Is(err, context.DeadlineExceeded) {
				t.Error(err)
			}
			all := log.String() + "\n" + r[0].Err.Error()
			t.Logf("%v: %s", took, all)
			if !regexp.MustCompile(c.want).MatchString(log.String()) || strings.Contains(all, tlsSecret) {
				t.Errorf("want %q", c.want)
			}
		})
	}
}
