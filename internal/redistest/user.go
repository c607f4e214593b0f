package redistest

import (
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
)

// A guarded run is one with TIERED_TEST_GUARDED=1: what tests make their stores of then connects as docs/operations.md
// asks, as a user with no right but those that are listed there, over the unix socket where there is one, and with RESP2.
// What the tests themselves ask of a server they ask as the default user, who may do all but run scripts: a store that
// comes past the guard does not work.
const guardedEnv = "TIERED_TEST_GUARDED"

// Guarded reports whether this is a guarded run.
func Guarded() bool { return os.Getenv(guardedEnv) == "1" }

// User and Password are the store's in a guarded run. The password is one that a URL must escape.
const (
	User     = "tiered"
	Password = "p/ss@w0rd?"
)

// The parts of the rights in docs/operations.md, each an addition to the first.
const (
	OnServer   = "redis-user"          // whatever the topology
	OnCluster  = "redis-user-cluster"  // on each node of a Cluster
	OnRing     = "redis-user-ring"     // on each shard of a Ring
	OnDatabase = "redis-user-database" // for a database other than 0
	OnWindows  = "redis-user-windows"  // for policies that count in windows
)

// Rights are the words of a part's ACL SETUSER line behind the user's name and password, as docs/operations.md has them.
func Rights(t testing.TB, part string) []string {
	t.Helper()
	page, err := os.ReadFile(filepath.Join(root(t), "docs", "operations.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(page), "<!-- "+part+": begin -->\n")
	text, _, found := strings.Cut(rest, "<!-- "+part+": end -->")
	const start = "ACL SETUSER " + User + " "
	_, line, is := strings.Cut(text, start)
	if !found || !is || strings.Contains(line, start) {
		t.Fatalf("docs/operations.md has no one line %q… in its section %s", start, part)
	}
	line, _, _ = strings.Cut(line, "\n```")
	return strings.Fields(strings.TrimPrefix(line, "on >PASSWORD "))
}

// root is the directory of the module that has docs/operations.md: a test runs in that of its package.
func root(t testing.TB) string {
	t.Helper()
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "docs", "operations.md")); err == nil {
			return dir
		}
		up := filepath.Dir(dir)
		if up == dir {
			t.Fatal("there is no docs/operations.md above the test's directory")
		}
		dir = up
	}
}

// guard makes the server's users those of a guarded run, from its next start on.
func (s *Server) guard(parts ...string) {
	s.t.Helper()
	store := []string{"--user", User, "on", ">" + Password}
	for _, part := range append([]string{OnServer, OnWindows}, parts...) {
		store = append(store, Rights(s.t, part)...)
	}
	s.Args = append(s.Args, append(store, "--user", "default", "on", "nopass", "~*", "&*", "+@all", "-eval", "-evalsha")...)
	s.guarded = true
}

// User is the name of the user that a store connects as.
func (s *Server) User() string {
	if s.guarded {
		return User
	}
	return "default"
}

// URL is the server's address as remote.Open takes it, with parameters ("db=1").
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

// Options are o with the server's address and the store's user: for a store over a client of the test's.
func (s *Server) Options(o redis.Options) *redis.Options {
	o.Addr = s.Addr
	if s.guarded {
		o.Network, o.Addr, o.Username, o.Password, o.Protocol = "unix", s.Socket, User, Password, 2
	}
	return &o
}

// StoreClient returns a client at go-redis' defaults for a store, closed at the end of the test.
func (s *Server) StoreClient() *redis.Client {
	c := redis.NewClient(s.Options(redis.Options{}))
	s.t.Cleanup(func() { _ = c.Close() })
	return c
}

// access is what of Options goes into those of a ClusterClient, a Ring and a URL of several addresses.
func (s *Server) access() (user, password string, protocol int) {
	if s.guarded {
		return User, Password, 2
	}
	return "", "", 0
}

// ClusterOptions are o with the nodes' addresses and the store's user.
func (c *Cluster) ClusterOptions(o redis.ClusterOptions) *redis.ClusterOptions {
	o.Addrs = c.Addrs()
	o.Username, o.Password, o.Protocol = c.Servers[0].access()
	return &o
}

// URL is the cluster's address as remote.Open takes it, to be found through some of its nodes.
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

// URL is the address of whatever server is the primary, as remote.Open takes it.
func (s *Sentinel) URL() string {
	query := url.Values{"master_name": {s.Name}}
	if user, password, protocol := s.Primary.access(); user != "" {
		query.Set("username", user)
		query.Set("password", password)
		query.Set("protocol", fmt.Sprint(protocol))
	}
	return (&url.URL{Scheme: "sentinel", Host: s.Sentinel.Addr, RawQuery: query.Encode()}).String()
}

// RingOptions are o with the servers' addresses under the names "0", "1", … and the store's user. The servers were started
// with StartShards.
func RingOptions(servers []*Server, o redis.RingOptions) *redis.RingOptions {
	o.Addrs = map[string]string{}
	for i, s := range servers {
		o.Addrs[fmt.Sprint(i)] = s.Addr
	}
	o.Username, o.Password, o.Protocol = servers[0].access()
	return &o
}
