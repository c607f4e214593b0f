package remote_test

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"math"
	"net/url"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/tiered-limiter/tiered-limiter/lua"
	"github.com/tiered-limiter/tiered-limiter/remote"
)

// Every way in which we could think of putting a password into the wrong place. Some of these URLs
// are legal; then the error of the first call must be silent too.
func TestOpenShowsNoPassword(t *testing.T) {
	const secret = "s3cr3t"
	for _, u := range []string{
		secret, ":" + secret, secret + "@host", ":" + secret + "@127.0.0.1:1", "user:" + secret + "@127.0.0.1:1",
		"127.0.0.1:1/" + secret, "redis:" + secret, "redis:user:" + secret + "@127.0.0.1:1", "redis:/" + secret +
			"@127.0.0.1:1",
		"redis:///" + secret, "redis:///:" + secret + "@127.0.0.1:1/0", "http://user:" + secret + "@127.0.0.1:1",
		secret + "://127.0.0.1:1", "redis-" + secret + "://127.0.0.1:1",

		"redis://user:" + secret + "@127.0.0.1:1", "redis://:" + secret + "@127.0.0.1:1", "redis://" + secret +
			"@127.0.0.1:1",
		"redis://user:" + secret + "@127.0.0.1:port", "redis://user:" + secret + "@127.0.0.1:1:1",
		"redis://user:" + secret + "@127.0.0.1:99999", "redis://user:" + secret + "@127.0.0.1:0",
		"redis://user:" + secret + "@[::1", "redis://user:" + secret + "@ho st", "redis://user:" + secret + "@%zz",
		"redis://user:" + secret + "\x00@127.0.0.1:1", "redis://user:" + secret + "\n@127.0.0.1:1", " redis://:" +
			secret + "@h",
		"redis://user:" + secret + "%@127.0.0.1:1", "redis://user:%" + secret + "@127.0.0.1:1",
		"redis://user:" + secret + "[@127.0.0.1:1", "redis://user:" + secret + "\\@127.0.0.1:1",
		"redis://user:" + secret + "@x@127.0.0.1:1", "redis://user:x@" + secret + "@127.0.0.1:1",

		"redis://user:" + secret + "/x@127.0.0.1:1", "redis://user:x/" + secret + "@127.0.0.1:1",
		"redis://user:1/" + secret + "@127.0.0.1:1", "redis://user:1/2/" + secret, "redis://" + secret +
			"/x@127.0.0.1:1",
		"redis://user:" + secret + "?x@127.0.0.1:1", "redis://user:x?" + secret + "@127.0.0.1:1",
		"redis://user:1?" + secret + "@127.0.0.1:1", "redis://user:1?" + secret, "redis://" + secret + "?x@127.0.0.1:1",
		"redis://user:" + secret + "#x@127.0.0.1:1", "redis://user:1#" + secret + "@127.0.0.1:1",
		"redis://" + secret + "#x@127.0.0.1:1", "redis://user:1?db=" + secret, "redis://user:1?db=1&" + secret + "=1",
		"redis://user:1?db=" + secret + "@127.0.0.1:1", "redis://127.0.0.1:1/" + secret, "redis://127.0.0.1:1/" +
			secret + "/1",
		"redis://127.0.0.1:1?password=" + secret, "redis://127.0.0.1:1?" + secret + "=1", "redis://127.0.0.1:1?" +
			secret,
		"redis://127.0.0.1:1?dial_timeout=" + secret, "redis://127.0.0.1:1?pool_size=" + secret,
		"redis://127.0.0.1:1?pool_fifo=" + secret, "redis://127.0.0.1:1?protocol=" + secret,
		"redis://127.0.0.1:1?a=%" + secret,
		"redis://127.0.0.1:1?a=1;" + secret, "redis://127.0.0.1:1?addr=" + secret, "redis://h?max_retries=" + secret,

		"rediss://user:" + secret + "/@127.0.0.1:1", "rediss://user:" + secret + "@127.0.0.1:1",
		"unix://" + secret, "unix://user:" + secret + "@", "unix://user:" + secret + "/x@/nowhere/sock",
		"unix://" + secret + "/x@/nowhere/sock", "unix://user:" + secret + "@/nowhere/sock",
		"unix:///:" + secret + "@/nowhere/sock", "unix:///user:" + secret + "@/nowhere/sock", "unix:/:" + secret +
			"@/nowhere/sock",
		"unix:///nowhere/sock?db=" + secret, "unix:///nowhere/sock?" + secret, "unix:" + secret,

		"sentinel://user:" + secret + "@127.0.0.1:1", "sentinel://user:" + secret + "@127.0.0.1:1?master_name=m",
		"sentinel://127.0.0.1:1?master_name=m&password=" + secret, "sentinel://127.0.0.1:1?master_name=m&password=%" +
			secret,
		"sentinel://127.0.0.1:1?master_name=m&password=x&" + secret, "sentinel://127.0.0.1:1?master_name=m&addr=" +
			secret,
		"sentinel://127.0.0.1:1?master_name=m&addr=" + secret + "@h:1",
		"sentinel://127.0.0.1:1?master_name=m&addr=user:" + secret + "@h:1",
		"sentinel://127.0.0.1:1?master_name=m&addr=h:" + secret, "sentinel://127.0.0.1:1/" + secret + "?master_name=m",
		"sentinel://127.0.0.1:1?master_name=m&db=" + secret, "rediss+sentinel://user:" + secret +
			"?@127.0.0.1:1?master_name=m",

		"cluster://user:" + secret + "@127.0.0.1:1", "cluster://user:" + secret + "/@127.0.0.1:1",
		"cluster://user:1/" + secret + "@127.0.0.1:1", "cluster://user:1/" + secret, "cluster://127.0.0.1:1?addr=" +
			secret + "@h:1",
		"cluster://127.0.0.1:1?" + secret + "=1", "rediss+cluster://user:" + secret + "?@127.0.0.1:1",
	} {
		s, err := remote.Open(u, nil)
		if err == nil {
			var r [1]remote.Result
			s.Run(t.Context(), 20*time.Millisecond, []lua.Call{takeOne(s, "key")}, r[:])
			err = errors.Join(r[0].Err, s.Close())
			if err == nil {
				t.Errorf("%q: somebody answers", u)
				continue
			}
		}
		if text := err.Error(); strings.Contains(text, secret) {
			t.Errorf("%q: %s", u, text)
		}
	}
	if text := remote.ErrParse(errors.New("a new error of go-redis: " + secret)).Error(); strings.Contains(text, secret) {
		t.Error(text)
	}
	_, err := remote.Open("redis://127.0.0.1:1", &remote.RedisOptions{Prefix: "tl{" + secret})
	if err == nil || strings.Contains(err.Error(), secret) || !strings.Contains(err.Error(), `Prefix has '{' at byte 3`) {
		t.Errorf("an illegal prefix: %v", err)
	}
}

func TestOpenSaysAllThatIsWrong(t *testing.T) {
	s, err := remote.Open("redis://h:0/a@b?pool_size=x&read_only=1", &remote.RedisOptions{Prefix: strings.Repeat("p", 65)})
	for _, want := range []string{"port", "path has an @", "pool_size", "read_only", "Prefix has 65 bytes"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want something on %q", err, want)
		}
	}
	if err := s.Close(); s != nil || err != nil { // a program may defer it before it looks at err
		t.Errorf("%v, %v", s, err)
	}
}

func TestOpenSaysWhatIsWrong(t *testing.T) {
	for u, want := range map[string]string{
		"":                            "scheme",
		"localhost:6379":              "scheme",
		"redis:localhost":             "two slashes",
		"redis://h:x":                 "cannot be parsed",
		"redis://h:0":                 "port",
		"redis://h/a@b":               "path has an @",
		"redis://h/one":               "number of a database",
		"redis://h/1/2":               "number of a database",
		"redis://h#1":                 "fragment",
		"redis://h?dial_timeout=fast": "invalid value",
		"redis://h?dial_timeuot=1s":   "unknown for this scheme",
		"redis://h?pool_size=many":    "pool_size",
		// go-redis would panic.
		"redis://h?pool_size=1&pool_size=99999999999":                  "pool_size",
		"redis://h?pipeline_pool_size=99999999999":                     "pipeline_pool_size",
		"sentinel://h?master_name=m&route_randomly=true":               "route_randomly",
		"sentinel://h?master_name=m&route_by_latency=0&replica_only=1": "replica_only",
		"sentinel://h":                              "master_name",
		"sentinel://?master_name=m&addr=h:1":        "needs a host",
		"sentinel://h?master_name=m&addr=h":         "addr",
		"sentinel://h?master_name=m&username=u&x=1": "unknown for this scheme",
		"cluster://h/1":                             "no numbered databases",
		"cluster://h?read_only=true":                "read_only",
		"unix://":                                   "path of a socket",
		"unix://h/path":                             "no host",
	} {
		_, err := remote.Open(u, nil)
		if err == nil || !strings.HasPrefix(err.Error(), "remote: the Redis URL: ") ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want something on %q", u, err, want)
		}
	}
}

// The TLS of RedisOptions is that of every kind of client whose URL has TLS, for the URL's host
// unless it names another. Elsewhere it would change nothing, so it is refused.
func TestOpenWithTLS(t *testing.T) {
	for u, name := range map[string]string{"rediss://h:1": "", "rediss+sentinel://h:1?master_name=m": "", "rediss+cluster://h:1": "", "rediss://h:2": "other"} {
		pool := x509.NewCertPool()
		given := &tls.Config{RootCAs: pool, ServerName: name, MinVersion: tls.VersionTLS13}
		s, err := remote.Open(u, &remote.RedisOptions{TLS: given})
		if err != nil {
			t.Errorf("%s: %v", u, err)
			continue
		}
		var is *tls.Config
		switch c := s.Client().(type) {
		case *redis.Client:
			is = c.Options().TLSConfig
		case *redis.ClusterClient:
			is = c.Options().TLSConfig
		}
		if is == nil || is.RootCAs != pool || is.MinVersion != tls.VersionTLS13 || is.ServerName != cmp.Or(name, "h") || given.ServerName != name {
			t.Errorf("%s: %+v", u, is)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
	o := &remote.RedisOptions{TLS: &tls.Config{MinVersion: tls.VersionTLS12}}
	if _, err := remote.Open("redis://h:1", o); err == nil || !strings.Contains(err.Error(), "its scheme must begin with rediss") {
		t.Errorf("a URL without TLS: %v", err)
	}
	c := redis.NewClient(&redis.Options{Addr: "h:1"})
	defer c.Close()
	if err := remote.Check(remote.NewRedis(c, o)); err == nil || !strings.Contains(err.Error(), "RedisOptions.TLS is set: must be nil") {
		t.Errorf("NewRedis: %v", err)
	}
}

func TestOpenSettings(t *testing.T) {
	for u, check := range map[string]func(*redis.Options) bool{
		"redis://h": func(o *redis.Options) bool {
			return o.Addr == "h:6379" && o.MaxRetries == 0 && o.ContextTimeoutEnabled &&
				o.DialTimeout == 600*time.Millisecond &&
				o.DialerRetries == 1 && o.PoolTimeout == 25*time.Millisecond && o.ReadTimeout == 600*time.Millisecond &&
				o.PipelinePoolSize == -1 && o.MaintNotificationsConfig.Mode == "disabled" && o.TLSConfig == nil
		},
		"redis://u:p%2F%40%23@h:1/2?dial_timeout=1s&pool_timeout=1s&max_retries=2&pipeline_pool_size=3&read_timeout=-1": func(o *redis.Options) bool {
			return o.Username == "u" && o.Password == "p/@#" && o.DB == 2 && o.DialTimeout == time.Second &&
				o.PoolTimeout == time.Second && o.MaxRetries == 2 && o.PipelinePoolSize == 3 &&
				o.ReadTimeout == 600*time.Millisecond
		},
		"rediss://h:1?skip_verify=true": func(o *redis.Options) bool {
			return o.TLSConfig != nil && o.TLSConfig.ServerName == "h" && o.TLSConfig.InsecureSkipVerify
		},
		"redis://[::1]:7": func(o *redis.Options) bool { return o.Addr == "[::1]:7" },
		"unix://u:p@/a/b.sock?db=3": func(o *redis.Options) bool {
			return o.Network == "unix" && o.Addr == "/a/b.sock" && o.DB == 3 && o.Password == "p"
		},
		"sentinel://s:sp@h:1/2?master_name=m&username=u&password=p": func(o *redis.Options) bool {
			return o.Username == "u" && o.Password == "p" && o.DB == 2 && o.ContextTimeoutEnabled && o.TLSConfig == nil
		},
		"rediss+sentinel://h:1?master_name=m": func(o *redis.Options) bool { return o.TLSConfig != nil },
	} {
		s, err := remote.Open(u, nil)
		if err != nil {
			t.Errorf("%s: %v", u, err)
			continue
		}
		if o := s.Client().(*redis.Client).Options(); !check(o) {
			t.Errorf("%s: %+v", u, o)
		}
		if err := errors.Join(s.Close(), s.Close()); err != nil {
			t.Errorf("%s: closed: %v", u, err)
		}
	}
	for u, check := range map[string]func(*redis.ClusterOptions) bool{
		"cluster://u:p@h:1?addr=i:2&addr=j:3": func(o *redis.ClusterOptions) bool {
			return strings.Join(o.Addrs, " ") == "h:1 i:2 j:3" && o.Password == "p" && o.MaxRedirects == 2 &&
				o.ClusterStateReloadInterval == 2*time.Second && o.ContextTimeoutEnabled && o.TLSConfig == nil &&
				o.DialerRetries == 1 && o.MaintNotificationsConfig.Mode == "disabled"
		},
		"redis+cluster://h/":              func(o *redis.ClusterOptions) bool { return o.TLSConfig == nil },
		"rediss+cluster://h:1":            func(o *redis.ClusterOptions) bool { return o.TLSConfig != nil },
		"cluster://h:1?max_redirects=5":   func(o *redis.ClusterOptions) bool { return o.MaxRedirects == 5 },
		"cluster://h:1?read_only=false&a": nil,
	} {
		s, err := remote.Open(u, nil)
		if check == nil {
			if err == nil {
				t.Errorf("%s: opened", u)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", u, err)
			continue
		}
		if o := s.Client().(*redis.ClusterClient).Options(); !check(o) {
			t.Errorf("%s: %+v", u, o)
		}
		if err := s.Close(); err != nil {
			t.Errorf("%s: closed: %v", u, err)
		}
	}
}

// FuzzOpen: no URL makes Open panic, dial, or show a piece of it in an error. What it opens waits
// for nothing without a limit, and can be closed.
func FuzzOpen(f *testing.F) {
	f.Add("redis", "user", "pass/word", "host:1", "/0", "db=1", "")
	f.Add("redis", "", "", "[::1]:7", "", "dial_timeout=0&read_timeout=-1&pool_timeout=-2&write_timeout=0", "")
	f.Add("rediss", "u", "p", "h", "/7", "skip_verify=true&max_retries=-1&protocol=2", "my:")
	f.Add("redis", "u", "p", "h", "/", "pool_size=1048576&max_active_conns=1&pipeline_pool_size=5", "")
	f.Add("redis", "u", "p", "h", "/0", "pool_size=99999999999", "")
	f.Add("redis", "u", "p", "h", "/x", "context_timeout_enabled=false&client_name=a", "{")
	f.Add("redis", "u#", "p?", "h@i", "//", "=&&;", "")
	f.Add("redis", "u", "p", "h", "", "max_concurrent_dials=0&conn_max_lifetime=1ns&pool_fifo=1&dialer_retries=-3", "")
	f.Add("redis", "u", "p", "h", "", "max_concurrent_dials=many", "")
	f.Add("unix", "", "p@ss", "", "/a", "", "")
	f.Add("unix", "", "", "", "/a", "db=3", "x")
	f.Add("sentinel", "u", "p%", "h", "", "master_name=m&addr=x:1", "")
	f.Add("sentinel", "u", "p", "h", "/2", "master_name=m&addr=x:1&username=a&password=b&replica_only=1", "")
	f.Add("rediss+sentinel", "u", "p", "h:1", "", "master_name=m&addr=x:1&db=1", "")
	f.Add("cluster", "u", "p?", "h", "/", "pool_size=-1", "")
	f.Add("cluster", "u", "p", "h:1", "", "addr=x:1&addr=[::1]:2&max_redirects=-1&route_randomly=0", "")
	f.Add("rediss+cluster", "u", "p", "", "", "", "")
	// Pieces that are long enough to be known again in an error.
	f.Add("redis", "somebody-of-our-users", "%zz", "a-host-of-our-network", "/a-path-that-is-wrong",
		"a-parameter-nobody-knows=1", "")
	f.Add("redis", "u", "p", "h", "/a-path-that-is-wrong", "", "")
	f.Add("redis", "u", "p", "h", "", "a-parameter-nobody-knows=1", "")
	f.Add("redis", "u", "p", "h", "", "dial_timeout=a-value-that-is-wrong", "")
	f.Add("redis", "u", "p", "h:a-port-that-is-wrong", "", "", "")
	f.Add("a-scheme-that-is-wrong", "u", "p", "h", "", "", "")
	f.Add("redis", "u", "p", "h", "", "", "a prefix that is wrong {")
	f.Fuzz(func(t *testing.T, scheme, user, password, host, path, query, prefix string) {
		const secret = "S3CR3T"
		raw := scheme + "://" + user + ":" + secret + password + "@" + host + path + "?" + query
		if asksToDial(raw) {
			t.Skip("a pool that is to be filled is dialed at once, wherever that may be")
		}
		s, err := remote.Open(raw, &remote.RedisOptions{Prefix: prefix})
		if err != nil {
			separator := func(r rune) bool { return strings.ContainsRune(":/@?&=", r) }
			for _, piece := range append(strings.FieldsFunc(raw, separator), prefix) {
				// Nothing that long is a word of ours, but for names of parameters.
				_, ours := remote.Numbers[piece]
				if strings.Contains(err.Error(), secret) ||
					len(piece) > 16 && !ours && strings.Contains(err.Error(), piece) {
					t.Fatalf("%q: %q", raw, err)
				}
			}
			if s != nil || !strings.HasPrefix(err.Error(), "remote: ") {
				t.Fatalf("%v beside %v", s, err)
			}
			return
		}
		if n := goroutinesOf(raw); n > 0 {
			t.Errorf("%q: %d goroutines, and no call yet", raw, n)
		}
		if err := remote.Check(s); err != nil || remote.CheckPrefix(prefix) != nil {
			t.Errorf("%q opens a store that is no good: %v, %q", raw, err, prefix)
		}
		client := checkPatience(t, s)
		if err := errors.Join(s.Close(), s.Close()); err != nil {
			t.Errorf("%q opens and does not close: %v", raw, err)
		}
		gone, cancel := context.WithCancel(t.Context())
		cancel() // so that nobody is asked in any case
		if err := client.Ping(gone).Err(); !errors.Is(err, redis.ErrClosed) {
			t.Errorf("%q: the client is left open: %v", raw, err)
		}
		var r [1]remote.Result
		if s.Run(t.Context(), time.Second, []lua.Call{takeOne(s, "k")}, r[:]); !errors.Is(r[0].Err, remote.ErrClosed) {
			t.Errorf("%q, closed: %v", raw, r[0].Err)
		}
	})
}

// asksToDial reports whether a URL has connections made in advance. That is the one thing that
// dials without a call.
func asksToDial(raw string) bool {
	u, err := url.Parse(raw)
	return err == nil && slices.ContainsFunc(u.Query()["min_idle_conns"],
		func(n string) bool { return strings.Trim(n, "0") != "" })
}

// goroutinesOf reports how many goroutines Open starts: those that dial. Of three tries, as others
// may start meanwhile.
func goroutinesOf(raw string) int {
	least := math.MaxInt
	for range 3 {
		before := runtime.NumGoroutine()
		s, err := remote.Open(raw, nil)
		least = min(least, runtime.NumGoroutine()-before)
		if err == nil {
			_ = s.Close()
		}
		if least <= 0 {
			return 0
		}
	}
	return least
}

// checkPatience wants a bound for everything that a store's client waits for, whatever its URL
// says: go-redis takes some values of a timeout for none at all. It returns the client.
func checkPatience(t *testing.T, s *remote.Redis) (client redis.UniversalClient) {
	t.Helper()
	var waits []time.Duration
	var heeds bool
	var dials int
	switch c := s.Client().(type) {
	case *redis.Client:
		o := c.Options()
		waits = []time.Duration{o.DialTimeout, o.ReadTimeout, o.WriteTimeout, o.PoolTimeout}
		heeds, dials, client = o.ContextTimeoutEnabled, o.DialerRetries, c
	case *redis.ClusterClient:
		o := c.Options()
		waits = []time.Duration{o.DialTimeout, o.ReadTimeout, o.WriteTimeout, o.PoolTimeout}
		heeds, dials, client = o.ContextTimeoutEnabled, o.DialerRetries, c
	default:
		t.Fatalf("a store over a %T", c)
	}
	if slices.Min(waits) <= 0 || !heeds || dials < 1 {
		t.Errorf("timeouts of %v, heeds the context: %v, dials %d times", waits, heeds, dials)
	}
	return client
}

func TestOpenIsLazy(t *testing.T) {
	s, err := remote.Open("unix:///nowhere/nobody.sock", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if n := s.Node("x"); n != "/nowhere/nobody.sock" {
		t.Errorf("node %q", n)
	}
	var r [1]remote.Result
	s.Run(context.Background(), time.Second, []lua.Call{takeOne(s, "k")}, r[:])
	if !errors.Is(r[0].Err, os.ErrNotExist) {
		t.Errorf("dialing nobody: %v", r[0].Err)
	}
}
