package remote

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/tiered-limiter/tiered-limiter/lua"
)

// inspected is how many keys are looked at to find out whether each is on the one server. Of a node
// with a half of the slots that misses one in 65 000.
const inspected = 16

// inspections are commands as Inspect sends them, on a hash and a sorted set that nothing else
// uses. They leave neither.
func inspections(hash, sorted string) [][]any {
	return [][]any{
		{"time"},
		{"exists", hash},
		{"hset", hash, "v", "1"},
		{"pexpire", hash, 1000},
		{"hmget", hash, "v"},
		{"hgetall", hash},
		{"hdel", hash, "v"},
		{"unlink", hash},
		{"zadd", sorted, 0, "v"},
		{"pexpire", sorted, 1000},
		{"pttl", sorted},
		{"zmscore", sorted, "v"},
		{"zcount", sorted, "-inf", "+inf"},
		{"zrangebyscore", sorted, "-inf", "+inf"},
		{"zrem", sorted, "v"},
		{"eval", "return 1", 1, hash},
	}
}

// commandsOf are the commands that a user needs for some algorithms, besides EVALSHA, which no call
// works without.
func commandsOf(algorithms []lua.Algorithm) []string {
	all := append([]string{"eval"}, lua.Presence.Commands()...)
	for _, a := range algorithms {
		all = append(all, a.Script().Commands()...)
	}
	return all
}

// Dial opens a connection to a node and closes it; see [Store].
func (s *Redis) Dial(ctx context.Context, node Node) error {
	if err := s.usable(ctx); err != nil {
		return err
	}
	client, i, err := s.clientOf(ctx, node)
	if err != nil || i < 0 || client == nil {
		return nil
	}
	o := client.Options()
	if o.TLSConfig == nil {
		return dial(ctx, o)
	}
	// A server without TLS takes the handshake for the beginning of a command, and waits for its
	// end. go-redis heeds no context in a handshake: it may go on for DialTimeout.
	asking, cancel := context.WithCancel(ctx)
	defer cancel()
	dialed, plain := make(chan error, 1), make(chan bool, 1)
	go func() { dialed <- dial(ctx, o) }()
	go func() { plain <- speaksPlainly(asking, o.Network, o.Addr) }()
	for {
		select {
		case is := <-plain:
			if is {
				return ErrNoTLS
			}
			plain = nil
		case err := <-dialed:
			var record tls.RecordHeaderError
			if plain != nil && (errors.Is(err, io.EOF) || errors.As(err, &record)) && <-plain { // it has answered otherwise
				return ErrNoTLS
			}
			return err
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// dial opens a connection as the client does, and closes it.
func dial(ctx context.Context, o *redis.Options) error {
	conn, err := o.Dialer(ctx, o.Network, o.Addr)
	if err != nil {
		return err
	}
	return conn.Close()
}

// speaksPlainly reports whether a server answers without TLS. It sends nothing that is secret.
func speaksPlainly(ctx context.Context, network, addr string) bool {
	conn, err := new(net.Dialer).DialContext(ctx, network, addr)
	if err != nil {
		return false
	}
	defer func() { _ = conn.Close() }()
	defer context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })()
	reply := make([]byte, 1)
	if _, err = io.WriteString(conn, "PING\r\n"); err == nil {
		_, err = io.ReadFull(conn, reply)
	}
	return err == nil && (reply[0] == '+' || reply[0] == '-') // PONG, or an error that asks for a password
}

// Server returns what a node says that it is, and its version; see [Store].
func (s *Redis) Server(ctx context.Context, timeout time.Duration, node Node) (string, error) {
	if err := s.usable(ctx); err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	client, i, err := s.clientOf(ctx, node)
	if err != nil || i < 0 {
		return "", err
	}
	to := s.foreign
	if client != nil {
		to = s.lanes.bounded(client, timeout)
	}
	hello, err := to.Do(ctx, "hello").Result()
	if err != nil {
		return "", s.failure(err)
	}
	return strings.TrimSpace(fmt.Sprint(said(hello, "server"), " ", said(hello, "version"))), nil
}

// clientOf returns the client of a node, and the first presence set that is there: -1 if the node
// is not known.
func (s *Redis) clientOf(ctx context.Context, node Node) (client *redis.Client, set int, err error) {
	for i := range presenceNames {
		client, err = s.nodes.pick(ctx, s.names.presence(i))
		if err != nil || nodeOf(client) == node {
			return client, i, err
		}
	}
	return nil, -1, nil
}

// Inspect reports what a node that answers will refuse; see [Store].
func (s *Redis) Inspect(
	ctx context.Context, timeout time.Duration, node Node, algorithms []lua.Algorithm,
) error {
	if err := s.usable(ctx); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	client, i, err := s.clientOf(ctx, node)
	switch {
	case err != nil:
		return s.failure(err)
	case i < 0:
		return nil
	case client == nil:
		return s.inspect(ctx, s.foreign, i, commandsOf(algorithms))
	}
	return s.inspect(ctx, s.lanes.bounded(client, timeout), i, commandsOf(algorithms))
}

// inspect is Inspect by a client, with keys in the slot of the i-th presence set.
func (s *Redis) inspect(ctx context.Context, to redis.UniversalClient, i int, needed []string) error {
	sent := to.Pipeline()
	for _, args := range inspections(s.names.inspected(i, "h"), s.names.inspected(i, "z")) {
		if slices.Contains(needed, args[0].(string)) {
			sent.Do(ctx, args...)
		}
	}
	oneServer := s.foreign == nil && s.cluster == nil
	if oneServer { // HELLO is refused by some proxies, and then a key that is elsewhere tells
		sent.Do(ctx, "hello")
		for j := range inspected {
			sent.Do(ctx, "exists", s.names.inspected(j, "h"))
		}
	}
	cmds, err := sent.Exec(ctx)
	if len(cmds) == 0 {
		return err // the client is closed
	}
	var denied []string
	for _, cmd := range cmds {
		var reply redis.Error
		switch err := cmd.Err(); {
		case err == nil && cmd.Name() == "hello" && isCluster(cmd.(*redis.Cmd).Val()),
			err != nil && oneServer && isMoved(err):
			return elsewhere{ErrClusterNode}
		case err == nil:
		case !errors.As(err, &reply):
			return s.failure(err)
		case redis.IsPermissionError(err) && strings.Contains(err.Error(), " key"):
			return reportable(err)
		case redis.IsPermissionError(err):
			denied = append(denied, cmd.Name())
		}
	}
	if len(denied) > 0 {
		slices.Sort(denied)
		return serverError("NOPERM the user has no right to " + strings.Join(slices.Compact(denied), ", "))
	}
	return nil
}

// isCluster reports whether the reply to HELLO says that the server is a node of a Cluster.
func isCluster(hello any) bool { return said(hello, "mode") == "cluster" }

// said returns what a reply to HELLO, in RESP2 or RESP3, says under a name, "" for nothing.
func said(hello any, name string) any {
	switch reply := hello.(type) {
	case map[any]any:
		if value := reply[name]; value != nil {
			return value
		}
	case []any:
		if i := slices.Index(reply, any(name)); i >= 0 && i+1 < len(reply) {
			return reply[i+1]
		}
	}
	return ""
}
