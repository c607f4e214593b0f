package remote

import (
	"context"
	"errors"
	"reflect"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/tiered-limiter/tiered-limiter/lua"
)

// Redis is the shared tier on Redis ≥ 6.2 or Valkey ≥ 8.0: one server, a primary behind Sentinel, a Cluster or a Ring.
// Build it with [Open], which sets up a client for the purpose, or with [NewRedis] over a client that you have.
//
// Each call leaves the process once, whatever the client's settings say about retries: what a lost reply charged is
// settled by the next call, but a second execution could not be. All calls that are due together on a node make one
// pipeline, in one round trip. It writes to primaries only.
//
// It owns no goroutine. Errors contain no user's key and no password.
type Redis struct {
	names   naming
	nodes   topology
	clones  clones
	foreign redis.UniversalClient // the client when it is none of go-redis' own, and then the only node
	broken  error                 // why it cannot be used; see check

	own    func() error // closes the client that Open made; nil for a borrowed one
	closed atomic.Bool
}

// RedisOptions are the options of [NewRedis] and [Open]. The zero value and nil are the defaults.
type RedisOptions struct {
	// Prefix starts the name of everything that is written, so that several services may share a Redis: up to 64
	// characters of A-Z a-z 0-9 _ . : - and "tl:" when empty. Processes share a limit only under the same prefix.
	Prefix string

	// HashKeys puts a SHA-256 of every user's key into the name of its bucket instead of the key, so that e-mail
	// addresses, tokens and IP addresses do not show in Redis, its logs and its monitors. Keys over 200 bytes go in
	// hashed in any case. NOTE: the hash has no salt (processes must agree on it), so whoever reads Redis can test
	// guesses: all IPv4 addresses within minutes.
	//
	// Changing it starts new, full buckets for all keys up to 200 bytes.
	HashKeys bool
}

// NewRedis returns a store over a client of yours, at any settings; [Redis.Close] leaves it open. A nil client or an
// illegal prefix is reported by [Check], and so by whoever is given the store.
//
// A *redis.Client (a failover client too), *redis.ClusterClient or *redis.Ring is asked for the node of each bucket, and
// that node's client for a pipeline. Another implementation of redis.UniversalClient is used through its own Pipeline, as
// if it were one node and with its own timeouts.
//
// NOTE: set ContextTimeoutEnabled in your client's options if your hooks (traces, metrics) should see the store's calls.
// Without it go-redis pays no attention to a deadline, and the only way to bound a call is a clone that has no hooks. On
// a ClusterClient and a Ring add hooks to the nodes, in OnNewNode.
//
// NOTE: set DialerRetries to 1. At its defaults go-redis dials five times within half a second; a call is over by then, and
// its error is that it took too long, instead of what is wrong with the address or the certificate.
//
// Some things are bounded by the client's own settings, whatever the caller's timeout. A connection that is being dialed
// outlives the call that wanted it by up to DialTimeout. A ClusterClient without ContextTimeoutEnabled takes up to its
// ReadTimeout (5 s by default) when a node is frozen while it reads its first map of the slots, or just when it sends on
// a call whose slot has moved. When a node of a Ring is down its keys move to others, where their buckets start full.
func NewRedis(c redis.UniversalClient, o *RedisOptions) *Redis {
	s := &Redis{names: naming{prefix: defaultPrefix}}
	if o != nil {
		s.names.hash = o.HashKeys
		if o.Prefix != "" {
			s.names.prefix = o.Prefix
		}
	}
	s.broken = checkPrefix(s.names.prefix)
	if isNil(c) {
		s.broken = errors.Join(s.broken, errors.New("remote: the Redis client is nil"))
		return s
	}
	switch c := c.(type) {
	case *redis.Client:
		s.nodes = single{c}
	case *redis.ClusterClient:
		s.nodes = newCluster(c)
	case *redis.Ring:
		s.nodes = ring{c}
	default:
		s.nodes, s.foreign = single{}, c
	}
	return s
}

var _ Store = (*Redis)(nil)

// isNil reports whether there is no client: a nil interface or a nil pointer in one.
func isNil(c redis.UniversalClient) bool {
	if c == nil {
		return true
	}
	v := reflect.ValueOf(c)
	return v.Kind() == reflect.Pointer && v.IsNil()
}

// Key reports the name of a token bucket; see [RedisOptions] for prefix and hashing.
func (s *Redis) Key(policy, key string) string { return s.Name(Kind{}, policy, key) }

// Name reports the name of a bucket of any kind.
func (s *Redis) Name(k Kind, policy, key string) string { return s.names.bucket(k, policy, key) }

// Node reports the address of the node that answers for a bucket; see [Store]. On a Cluster it is what the client knows of
// the slots, and "" before the first call. A primary behind Sentinel is one node, whoever it is.
func (s *Redis) Node(bucket string) Node {
	if s.nodes == nil {
		return ""
	}
	return s.nodes.node(bucket)
}

// Nodes reports the addresses of the nodes that buckets may be on; see [Store]. Of a Ring those that are up.
func (s *Redis) Nodes() []Node {
	if s.nodes == nil {
		return nil
	}
	return s.nodes.all()
}

// Locate reports the node of a bucket, and loads the map of a Cluster's slots if there is none yet; see [Store].
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

// Run executes the calls; see [Store]. It returns within timeout if the client heeds a context's deadline, as those of
// [Open] do, and else within about three times that: connections are waited for and dialed during the first, and what
// was sent by then is written and read during one more each.
func (s *Redis) Run(ctx context.Context, timeout time.Duration, calls []lua.Call, results []Result) {
	if len(calls) == 0 {
		return
	}
	results = results[:len(calls)]
	err := s.usable(ctx)
	if err != nil {
		for i := range results {
			results[i] = Result{Err: err}
		}
		return
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	s.runAll(ctx, timeout, calls, results)
}

// Close makes later calls fail with [ErrClosed], and closes the client if [Open] made it: calls that are under way then
// fail too. Closing twice is fine.
func (s *Redis) Close() error {
	if s.closed.Swap(true) || s.own == nil {
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

// usable reports why nothing is executed, or nil.
func (s *Redis) usable(ctx context.Context) error {
	if s.closed.Load() {
		return ErrClosed
	}
	if s.broken != nil {
		return s.broken
	}
	return ctx.Err()
}
