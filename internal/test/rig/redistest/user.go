package redistest

import (
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/fatal"
)

// A guarded run has TIERED_TEST_GUARDED=1. Its stores connect as docs/redis.md asks: as a user with
// only the rights that are listed there, over the unix socket if there is one, and with RESP2.
// Tests send their own commands as the default user, who may do everything except run scripts, so a
// store that does not use the limited user fails.
const guardedEnv = "TIERED_TEST_GUARDED"

// Guarded reports whether this is a guarded run.
func Guarded() bool { return os.Getenv(guardedEnv) == "1" }

// User and Password belong to the store in a guarded run. A URL must escape the password.
const (
	User     = "tiered"
	Password = "p/ss@w0rd?"
)

// The parts of the rights in docs/redis.md, by the words before them. Each is added to the first.
const (
	OnServer   = "## Redis user\n"                   // whatever the topology
	OnCluster  = "\n- Each node of a Cluster, "      // each node
	OnRing     = "\n- Each shard of a go-redis Ring" // each shard
	OnDatabase = "\n- A database other than 0"       // in the URL
	OnWindows  = "\n- Policies of "                  // that count in windows
)

// Rights returns the words of a part's ACL SETUSER command after the user's name and password, as in
// docs/redis.md.
func Rights(t testing.TB, part string) []string {
	t.Helper()
	page := string(fatal.Get(os.ReadFile(filepath.Join(root(t), "docs", "redis.md")))(t))
	_, rest, found := strings.Cut(page, part)
	_, line, is := strings.Cut(rest, "ACL SETUSER "+User+" ")
	if !found || !is || strings.Contains(rest, part) {
		t.Fatalf("docs/redis.md has no one place %q with an ACL SETUSER command", part)
	}
	return strings.Fields(strings.TrimPrefix(line[:strings.IndexAny(line, "`\n")], "on >PASSWORD "))
}

// root returns the directory of the module with docs/redis.md. A test runs in the directory of its
// package.
func root(t testing.TB) string {
	t.Helper()
	dir := fatal.Get(os.Getwd())(t)
	for {
		if _, err := os.Stat(filepath.Join(dir, "docs", "redis.md")); err == nil {
			return dir
		}
		up := filepath.Dir(dir)
		if up == dir {
			t.Fatal("there is no docs/redis.md above the test's directory")
		}
		dir = up
	}
}

// guard makes the server's users those of a guarded run, from its next start on.
func (s *Server) guard(part string) {
	s.t.Helper()
	s.args = append(s.args, "--user", User, "on", ">"+Password)
	for _, part := range []string{OnServer, OnWindows, part} {
		s.args = append(s.args, Rights(s.t, part)...)
	}
	s.args = append(s.args, "--user", "default", "on", "nopass", "~*", "&*", "+@all", "-eval", "-evalsha")
	s.guarded = true
}

// User returns the name of the user that a store connects as.
func (s *Server) User() string {
	if s.guarded {
		return User
	}
	return "default"
}

// URL returns the server's address as remote.Open takes it, with parameters ("db=1").
func (s *Server) URL(parameters ...string) string {
	if s.guarded {
		return s.UnixURL(parameters...)
	}
	return (&url.URL{Scheme: "redis", Host: s.Addr, RawQuery: strings.Join(parameters, "&")}).String()
}

// UnixURL is URL over the unix socket.
func (s *Server) UnixURL(parameters ...string) string {
	u := url.URL{Scheme: "unix", Path: s.Socket}
	if s.guarded {
		u.User = url.UserPassword(User, Password)
		parameters = append([]string{"protocol=2"}, parameters...)
	}
	u.RawQuery = strings.Join(parameters, "&")
	return u.String()
}

// Options returns o with the server's address and the store's user, for a store over a client of
// the test.
func (s *Server) Options(o redis.Options) *redis.Options {
	o.Addr = s.Addr
	if s.guarded {
		o.Network, o.Addr, o.Username, o.Password, o.Protocol = "unix", s.Socket, User, Password, 2
	}
	return &o
}

// StoreClient returns a client with go-redis' default settings for a store. It is closed at the end
// of the test.
func (s *Server) StoreClient() *redis.Client {
	c := redis.NewClient(s.Options(redis.Options{}))
	s.t.Cleanup(func() { _ = c.Close() })
	return c
}

// access returns the part of Options that goes into those of a ClusterClient, a Ring, and a URL
// with several addresses.
func (s *Server) access() (user, password string, protocol int) {
	if s.guarded {
		return User, Password, 2
	}
	return "", "", 0
}

// ClusterOptions returns o with the nodes' addresses and the store's user.
func (c *Cluster) ClusterOptions(o redis.ClusterOptions) *redis.ClusterOptions {
	o.Addrs = c.Addrs()
	o.Username, o.Password, o.Protocol = c.Servers[0].access()
	return &o
}

// URL returns the Cluster's address as remote.Open takes it, to be found through some of its nodes.
func (c *Cluster) URL(nodes ...int) string {
	u := url.URL{Scheme: "cluster", Host: c.Servers[nodes[0]].Addr}
	query := url.Values{}
	for _, n := range nodes[1:] {
		query.Add("addr", c.Servers[n].Addr)
	}
	if user, password, protocol := c.Servers[0].access(); user != "" {
		u.User = url.UserPassword(user, password)
		query.Set("protocol", fmt.Sprint(protocol))
	}
	u.RawQuery = query.Encode()
	return u.String()
}

// URL returns the address of the current primary as remote.Open takes it.
func (s *Sentinel) URL() string {
	query := url.Values{"master_name": {s.Name}}
	if user, password, protocol := s.Primary.access(); user != "" {
		query.Set("username", user)
		query.Set("password", password)
		query.Set("protocol", fmt.Sprint(protocol))
	}
	return (&url.URL{Scheme: "sentinel", Host: s.Sentinel.Addr, RawQuery: query.Encode()}).String()
}

// RingOptions returns o with the servers' addresses under the names "0", "1", … and the store's
// user. The servers must be started with StartShards.
func RingOptions(servers []*Server, o redis.RingOptions) *redis.RingOptions {
	o.Addrs = map[string]string{}
	for i, s := range servers {
		o.Addrs[fmt.Sprint(i)] = s.Addr
	}
	o.Username, o.Password, o.Protocol = servers[0].access()
	return &o
}
