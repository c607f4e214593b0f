package remote

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"sync/atomic"

	"github.com/redis/go-redis/v9"
)

// Redis is the shared tier on Redis ≥ 6.2 or Valkey ≥ 8.0: one server, a primary behind Sentinel, a
// Cluster or a Ring. [Open] makes one with a client of its own, and [NewRedis] with a client that
// you have. Its methods may be called concurrently.
//
// Each call is sent once, even if the client's settings ask for retries. The next call settles what
// a lost reply charged, but a second execution could not be settled. All calls that are due
// together on a node go into one pipeline, in one round trip. Calls are sent to primaries only.
//
// A Redis owns no goroutine. Errors contain no user's key and no password.
type Redis struct {
	names naming
	nodes topology
	// cluster is nodes if that is a Cluster, where slots move. A Ring watches its shards itself.
	cluster *cluster
	lanes   lanes
	limits  deadlines // of calls
	// foreign is the client if it is none of go-redis' own types. It is then the only node.
	foreign redis.UniversalClient
	broken  error // why the store cannot be used; see check

	skipsHooks bool // see SkipsHooks

	own    func() error // closes the client that Open made; nil for a borrowed one
	closed atomic.Bool
}

// RedisOptions are the options of [NewRedis] and [Open]. The zero value and nil are the defaults.
type RedisOptions struct {
	// Prefix begins the name of everything that is written, so that several services may share a
	// Redis. It has up to 64 of the characters A-Z a-z 0-9 _ . : - and is "tl:" if empty. Processes
	// share a limit only under the same prefix.
	Prefix string

	// HashKeys puts the SHA-256 of every user's key into the name of its bucket instead of the key,
	// so that e-mail addresses, tokens and IP addresses do not appear in Redis, its logs and its
	// monitors. Keys over 200 bytes are always hashed. NOTE: the hash has no salt, because
	// processes must agree on it. Anyone who can read Redis can test guesses: all IPv4 addresses
	// within minutes.
	//
	// Changing it starts new, full buckets for all keys up to 200 bytes.
	HashKeys bool

	// TLS, if not nil, is the TLS of Open for a URL with TLS: authorities, a client certificate.
	// Without a ServerName it is that of the URL. A client given to NewRedis has its own, so there
	// it must be nil.
	TLS *tls.Config

	// Logger, if not nil, gets at DEBUG what go-redis itself logs, of all clients of this process:
	// one line for each attempt while Redis is gone, beside those of tiered. So slog.Default()
	// keeps go-redis quiet, unless you log at DEBUG. The last Logger counts. With nil go-redis
	// logs as before, by default to stderr: it has one log for the whole process, and other clients
	// may need it.
	Logger *slog.Logger
}

// NewRedis returns a store that uses the client c, with any settings. [Redis.Close] leaves c open.
// [Check] reports a nil client or an illegal prefix.
//
// A *redis.Client (also a failover client), *redis.ClusterClient or *redis.Ring is asked for the
// node of each bucket, and for that node's client. Another implementation of redis.UniversalClient
// is used through its own Pipeline, as one node and with its own timeouts.
//
// NOTE: set ContextTimeoutEnabled in your client's options if your hooks (traces, metrics) should
// see the store's calls. Without it, and with a ReadTimeout or WriteTimeout of -2, go-redis ignores
// a context's deadline, and the only way to bound a call is a clone that has no hooks. With it, the
// client's own ReadTimeout and WriteTimeout hold too: a Redis that takes longer counts as gone. On
// a ClusterClient or a Ring add hooks to the nodes, in OnNewNode.
//
// NOTE: set DialerRetries to 1. By default go-redis dials five times within half a second. A call
// is over by then, and its error is a timeout instead of what is wrong with the address or the
// certificate.
//
// A request never makes a call to this client itself, as it does over a store of [Open]: see
// [KeepsTimeout]. That costs a rarely used key up to half of a call's time more.
//
// Some things are bounded by the client's own settings, not by the caller's timeout. A connection
// that is being dialed outlives the call that wanted it by up to DialTimeout. A ClusterClient
// without ContextTimeoutEnabled takes up to its ReadTimeout (5 s by default) if a node is frozen
// while the client reads its first slot map, or while it redirects a call whose slot has moved. If
// a node of a Ring is down, its keys move to other nodes, where their buckets start full.
func NewRedis(c redis.UniversalClient, o *RedisOptions) *Redis {
	s := &Redis{names: naming{prefix: defaultPrefix}, lanes: lanes{borrowed: true}}
	if o != nil {
		if o.Logger != nil {
			redis.SetLogger(clientLog{o.Logger})
		}
		s.names.hash = o.HashKeys
		if o.Prefix != "" {
			s.names.prefix = o.Prefix
		}
	}
	s.broken = checkPrefix(s.names.prefix)
	if o != nil && o.TLS != nil {
		s.broken = errors.Join(s.broken, errors.New("remote: RedisOptions.TLS is set: must be nil for NewRedis, whose client has its own"))
	}
	if isNil(c) {
		s.broken = errors.Join(s.broken, errors.New("remote: the Redis client is nil: must be made by redis.NewClient or its like, or by remote.Open"))
		return s
	}
	switch c := c.(type) {
	case *redis.Client:
		o := c.Options()
		s.nodes, s.skipsHooks = single{c}, !heedsBy(o.ContextTimeoutEnabled, o.ReadTimeout, o.WriteTimeout)
	case *redis.ClusterClient:
		o := c.Options()
		s.cluster = newCluster(c)
		s.nodes, s.skipsHooks = s.cluster, !heedsBy(o.ContextTimeoutEnabled, o.ReadTimeout, o.WriteTimeout)
	case *redis.Ring:
		o := c.Options() // as they were given: -2 is what it is to its shards, and -1 is no limit
		s.nodes, s.skipsHooks = ring{c}, !heedsBy(o.ContextTimeoutEnabled, o.ReadTimeout+1, o.WriteTimeout+1)
	default:
		s.nodes, s.foreign = single{}, c
	}
	return s
}

var _ Store = (*Redis)(nil)

// clientLog is a logger for go-redis.
type clientLog struct{ *slog.Logger }

func (l clientLog) Printf(ctx context.Context, format string, v ...any) {
	l.DebugContext(ctx, fmt.Sprintf(format, v...))
}

// SkipsHooks reports whether hooks of the client, such as traces and metrics, do not see the
// store's calls, because the client does not heed the deadline of a context. See [NewRedis].
func (s *Redis) SkipsHooks() bool { return s.skipsHooks }

// KeepsTimeout reports whether a store's Run ends within its timeout, whatever Redis does, and runs
// no code but its own: so a request may call it on its own goroutine. That is a store of [Open]. A
// client that its owner made may have hooks, and they may need what the caller of a request holds.
// Another type of Store says so by a method KeepsTimeout, which none has by embedding one of these.
func KeepsTimeout(s Store) bool {
	switch s := s.(type) {
	case *Redis:
		return s.own != nil
	case interface{ KeepsTimeout() bool }:
		return s.KeepsTimeout()
	}
	return false
}

// isNil reports whether c is a nil interface or holds a nil pointer.
func isNil(c redis.UniversalClient) bool {
	if c == nil {
		return true
	}
	v := reflect.ValueOf(c)
	return v.Kind() == reflect.Pointer && v.IsNil()
}

// Key returns the name of a token bucket; see [RedisOptions] for prefix and hashing.
func (s *Redis) Key(policy, key string) string { return s.Name(Kind{}, policy, key) }

// Name returns the name of a bucket of any kind.
func (s *Redis) Name(k Kind, policy, key string) string { return s.names.bucket(k, policy, key) }

// Node returns the address of the node that answers for a bucket; see [Store]. On a Cluster it
// comes from the client's slot map, and is "" before the first call. A primary behind Sentinel is
// one node, even after a failover.
func (s *Redis) Node(bucket string) Node {
	if s.nodes == nil {
		return ""
	}
	return s.nodes.node(bucket)
}

// TableNode returns the address of the node that has the table of standing shares; see [Store].
func (s *Redis) TableNode() Node { return s.Node(s.names.table()) }

// Nodes returns the addresses of the nodes that buckets may be on; see [Store]. For a Ring these
// are the nodes that are up.
func (s *Redis) Nodes() []Node {
	if s.nodes == nil {
		return nil
	}
	return s.nodes.all()
}

// Locate returns the node of a bucket. It loads the slot map of a Cluster if there is none yet; see
// [Store].
func (s *Redis) Locate(ctx context.Context, bucket string) (Node, error) {
	if err := s.usable(ctx); err != nil {
		return "", err
	}
	client, err := s.nodes.pick(ctx, bucket)
	if err != nil {
		return "", s.failure(err)
	}
	return nodeOf(client), nil
}

// Close makes later calls fail with [ErrClosed]. If [Open] made the client, Close closes it, and
// calls that are under way fail too. Closing twice is fine, and so is closing a nil store, as after
// an error of Open.
func (s *Redis) Close() error {
	if s == nil || s.closed.Swap(true) || s.own == nil {
		return nil
	}
	return s.own()
}

func (s *Redis) check() error {
	if s == nil || s.nodes == nil && s.broken == nil {
		return errors.New("remote: the *Redis is nil or empty: use remote.Open or remote.NewRedis")
	}
	return s.broken
}

// usable reports why no call is executed, or nil.
func (s *Redis) usable(ctx context.Context) error {
	if s.closed.Load() {
		return ErrClosed
	}
	if s.broken != nil {
		return s.broken
	}
	return ctx.Err()
}

// failure turns an error of go-redis into one of ours if that says more; see reportable.
func (s *Redis) failure(err error) error {
	if s.closed.Load() && errors.Is(err, redis.ErrClosed) {
		return ErrClosed
	}
	if s.foreign == nil && s.cluster == nil && isMoved(err) {
		return elsewhere{ErrClusterNode}
	}
	return reportable(err)
}
