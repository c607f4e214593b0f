package remote

import (
	"crypto/tls"
	"errors"
	"maps"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

// These are the settings of the clients that Open makes, unless the URL sets them. Reading and
// writing of a call are always bounded by the caller's timeout.
const (
	// dialTimeout and controlTimeout bound what go-redis does by itself: connecting, reading the
	// slot map, asking sentinels. They are two round trips of 250 ms, which a connection with TLS
	// takes, and short enough that a frozen node delays the search for its successor only briefly.
	dialTimeout    = 600 * time.Millisecond
	controlTimeout = 600 * time.Millisecond

	// poolTimeout bounds how long a call waits for a free connection. It is half of the default
	// timeout of a call, so that there is time left to use the connection.
	poolTimeout = 25 * time.Millisecond

	// slotsInterval is how often a Cluster's slot map is reloaded while calls are made. With
	// go-redis' default of 60 s, a client that gets no redirection would need that long to notice a
	// failover.
	slotsInterval = 2 * time.Second

	// redirects bounds how often a call whose slot moved is sent on: once to the new owner, and
	// once from a slot that is being migrated to its target.
	redirects = 2
)

// maxNumber bounds numbers of connections and of bytes in a URL. go-redis panics beyond 2³¹
// connections.
const maxNumber = 1 << 20

// Open returns a store with a client of its own; [Redis.Close] closes it. No connection is made
// before the first call, unless the URL sets min_idle_conns. The URL is one of
//
//	redis://user:password@host:port/db             one server; rediss with TLS
//	unix://user:password@/path/to.sock?db=1        one server, over a unix socket
//	sentinel://user:password@host:port/db?master_name=primary&addr=host2:port2&username=u&password=p
//	                                               the primary that Sentinel names; user and password before the @ are
//	                                               the sentinels', those in the query the primary's
//	cluster://user:password@host:port?addr=host2:port2
//	                                               a Cluster, found through any of the addresses
//
// sentinel and cluster are short for redis+sentinel and redis+cluster. With TLS they are
// rediss+sentinel and rediss+cluster. addr may be given several times. Further parameters are those
// of go-redis (dial_timeout, pool_size, protocol, skip_verify, …; see redis.ParseURL,
// ParseFailoverURL and ParseClusterURL). They override the settings made here: no retries, 600 ms
// to connect, one attempt, 25 ms to wait for a free connection, no maintenance notifications. The
// timeout for reading and writing is an argument of each call. Parameters that send calls to
// replicas are refused.
//
// With TLS a server must present a certificate for the host in the URL, signed by an authority that
// the operating system trusts. On Linux SSL_CERT_FILE names a file with other authorities. A URL
// cannot name an authority or a client certificate: [RedisOptions.TLS] has those.
//
// NOTE: a character in a user or password that is neither a letter nor a digit must be
// percent-encoded: / is %2F, @ is %40.
//
// NOTE: set [RedisOptions.Logger]. Without one go-redis writes about a line a second to stderr while
// Redis is gone.
//
// Errors say which part of the URL breaks which rule. They repeat nothing of the URL, because a
// mistake may put the password anywhere.
func Open(rawURL string, o *RedisOptions) (*Redis, error) {
	var t *tls.Config
	if o != nil {
		t = o.TLS
	}
	client, err := open(rawURL, t)
	if err != nil {
		if o != nil {
			err = errors.Join(err, checkPrefix(o.Prefix))
		}
		return nil, err
	}
	plain := RedisOptions{}
	if o != nil {
		plain = *o
	}
	plain.TLS = nil
	s := NewRedis(client, &plain)
	s.own, s.lanes.borrowed = client.Close, false
	if err := s.check(); err != nil {
		return nil, errors.Join(err, client.Close())
	}
	return s, nil
}

// schemes says how a URL with a scheme is parsed.
var schemes = map[string]struct {
	parse func(*url.URL, *tls.Config) (redis.UniversalClient, error)
	plain string // the scheme as go-redis knows it
}{
	"redis":           {openSingle, "redis"},
	"rediss":          {openSingle, "rediss"},
	"unix":            {openSingle, "unix"},
	"sentinel":        {openSentinel, "redis"},
	"redis+sentinel":  {openSentinel, "redis"},
	"rediss+sentinel": {openSentinel, "rediss"},
	"cluster":         {openCluster, "redis"},
	"redis+cluster":   {openCluster, "redis"},
	"rediss+cluster":  {openCluster, "rediss"},
}

const allSchemes = "rediss, unix, sentinel, rediss+sentinel, cluster or rediss+cluster"

func open(rawURL string, t *tls.Config) (redis.UniversalClient, error) {
	if strings.Contains(rawURL, "#") {
		return nil, errURL("it has a fragment; a # in user or password must be written %23")
	}
	if !strings.Contains(rawURL, ":/") && !strings.HasPrefix(rawURL, "redis:") { // host:port is a mistake that people make
		return nil, errURL("it has no scheme: must be as in redis://localhost:6379, or with " + allSchemes)
	}
	u, err := url.Parse(rawURL)
	if err != nil {
		return nil, errURL("it cannot be parsed; special characters in user and password must be percent-encoded")
	}
	scheme, ok := schemes[u.Scheme]
	if !ok {
		return nil, errURL("its scheme is unknown: must be redis, or " + allSchemes)
	}
	if err := checkURL(u); err != nil {
		return nil, err
	}
	if t != nil && scheme.plain != "rediss" {
		return nil, errURL("it has no TLS, and RedisOptions.TLS is set: its scheme must begin with rediss")
	}
	u.Scheme = scheme.plain
	return scheme.parse(u, t)
}

// withTLS returns the TLS of a URL, which is nil or has the name of the server, or ours with that name
// if it has none.
func withTLS(ofURL, ours *tls.Config) *tls.Config {
	if ofURL == nil || ours == nil {
		return ofURL
	}
	t := ours.Clone()
	t.InsecureSkipVerify = t.InsecureSkipVerify || ofURL.InsecureSkipVerify
	if t.ServerName == "" {
		t.ServerName = ofURL.ServerName
	}
	return t
}

// errURL says what is wrong with a URL. The problem must not contain a part of the URL.
func errURL(problem string) error { return errors.New("remote: the Redis URL: " + problem) }

// checkURL refuses URLs that would make the client connect to a piece of a password, and show it in
// the resulting errors.
func checkURL(u *url.URL) error {
	var all []error
	bad := func(is bool, problem string) {
		if is {
			all = append(all, errURL(problem))
		}
	}
	bad(u.Opaque != "", "two slashes must follow the scheme")
	bad(strings.Contains(u.Host, "@"), "its host has an @")
	bad(u.Host == "" && u.Opaque == "" && (strings.HasSuffix(u.Scheme, "sentinel") || strings.HasSuffix(u.Scheme, "cluster")),
		"it needs a host")
	bad(u.Scheme == "unix" && u.Host != "", "a unix URL has no host; its path begins with the third slash, and a / in "+
		"user or password must be written %2F")
	bad(strings.Contains(u.EscapedPath(), "@"),
		"its path has an @; a / in user or password must be written %2F, and an @ in a path %40")
	bad(u.Port() != "" && !isPort(u.Port()), "its port is not a number from 1 to 65535")
	query, err := url.ParseQuery(u.RawQuery)
	bad(err != nil, "its query cannot be parsed; a ? in user or password must be written %3F")
	for _, addr := range query["addr"] {
		host, port, err := net.SplitHostPort(addr)
		bad(err != nil || host == "" || strings.Contains(host, "@") || !isPort(port), "an addr parameter is not host:port")
	}
	for _, name := range []string{"route_by_latency", "route_randomly", "replica_only", "read_only"} {
		for _, on := range query[name] {
			bad(on != "" && on != "false" && on != "0", name+" sends calls to replicas, but all calls write")
		}
	}
	for _, name := range slices.Sorted(maps.Keys(numbers)) {
		for _, text := range query[name] {
			n, err := strconv.Atoi(text)
			bad(text != "" && (err != nil || n < numbers[name] || n > maxNumber), name+" is not a whole number up to 1048576")
		}
	}
	return errors.Join(all...)
}

// numbers are the parameters that are counts, with their minimum. go-redis panics on a bad one
// instead of returning an error.
var numbers = map[string]int{
	"pool_size": 0, "min_idle_conns": 0, "max_idle_conns": 0, "max_active_conns": 0, "max_concurrent_dials": 0,
	"pipeline_pool_size": -1, "pipeline_read_buffer_size": 0, "pipeline_write_buffer_size": 0,
}

func isPort(s string) bool {
	n, err := strconv.ParseUint(s, 10, 16)
	return err == nil && n > 0
}

func openSingle(u *url.URL, t *tls.Config) (redis.UniversalClient, error) {
	o, err := redis.ParseURL(u.String())
	if err != nil {
		return nil, errParse(err)
	}
	o.ContextTimeoutEnabled, o.TLSConfig = true, withTLS(o.TLSConfig, t)
	fill([...]*int{&o.MaxRetries, &o.DialerRetries, &o.PipelinePoolSize},
		[...]*time.Duration{&o.DialTimeout, &o.ReadTimeout, &o.WriteTimeout, &o.PoolTimeout})
	o.MaintNotificationsConfig = noMaintNotifications()
	return redis.NewClient(o), nil
}

func openSentinel(u *url.URL, t *tls.Config) (redis.UniversalClient, error) {
	o, err := redis.ParseFailoverURL(u.String())
	if err != nil {
		return nil, errParse(err)
	}
	if o.MasterName == "" {
		return nil, errURL("a sentinel URL needs the parameter master_name")
	}
	o.ContextTimeoutEnabled, o.TLSConfig = true, withTLS(o.TLSConfig, t)
	fill([...]*int{&o.MaxRetries, &o.DialerRetries, &o.PipelinePoolSize},
		[...]*time.Duration{&o.DialTimeout, &o.ReadTimeout, &o.WriteTimeout, &o.PoolTimeout}) // a failover client has no maintenance notifications
	return redis.NewFailoverClient(o), nil
}

func openCluster(u *url.URL, t *tls.Config) (redis.UniversalClient, error) {
	if strings.Trim(u.Path, "/") != "" {
		return nil, errURL("a cluster has no numbered databases, so its URL has no path; a / in user or " +
			"password must be written %2F")
	}
	o, err := redis.ParseClusterURL(u.String())
	if err != nil {
		return nil, errParse(err)
	}
	o.ContextTimeoutEnabled, o.TLSConfig = true, withTLS(o.TLSConfig, t)
	fill([...]*int{&o.MaxRetries, &o.DialerRetries, &o.PipelinePoolSize},
		[...]*time.Duration{&o.DialTimeout, &o.ReadTimeout, &o.WriteTimeout, &o.PoolTimeout})
	o.MaintNotificationsConfig = noMaintNotifications()
	o.ClusterStateReloadInterval = slotsInterval
	if o.MaxRedirects == 0 {
		o.MaxRedirects = redirects
	}
	if o.MinRetryBackoff == 0 {
		o.MinRetryBackoff = -1 // redirections have nothing to wait for; the default delays each by 10–30 ms
	}
	return redis.NewClusterClient(o), nil
}

// fill sets what the URL left open of the options that the three kinds of clients have in common:
// retries of a call and of a dial, and pipelines, none of which has a pool of its own because all
// calls are pipelines; and the timeouts of connecting, reading, writing and the pool. go-redis
// takes a timeout ≤ 0 for none at all; here it means our default.
func fill(counts [3]*int, timeouts [4]*time.Duration) {
	for i, ours := range [...]int{-1, 1, -1} {
		if *counts[i] == 0 {
			*counts[i] = ours
		}
	}
	for i, ours := range [...]time.Duration{dialTimeout, controlTimeout, controlTimeout, poolTimeout} {
		if *timeouts[i] <= 0 {
			*timeouts[i] = ours
		}
	}
}

// noMaintNotifications switches off a handshake that only some hosted Redis understand, and that
// looks up host names.
func noMaintNotifications() *maintnotifications.Config {
	return &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
}

// errParse says in our own words what go-redis could not parse, because its errors quote the URL.
func errParse(err error) error {
	text := err.Error()
	switch {
	case strings.HasPrefix(text, "redis: unexpected option"):
		return errURL("its query has a parameter that is unknown for this scheme; a ? or & in user or " +
			"password must be percent-encoded")
	case strings.HasPrefix(text, "redis: invalid database number"), strings.HasPrefix(text, "redis: invalid URL path"):
		return errURL("its path or its parameter db is not the number of a database")
	case strings.HasPrefix(text, "redis: empty unix socket path"):
		return errURL("a unix URL needs the path of a socket")
	case strings.HasPrefix(text, "redis: invalid"):
		return errURL("a parameter in its query has an invalid value: durations are like 100ms, switches true or false")
	default:
		return errURL("it is not understood")
	}
}
