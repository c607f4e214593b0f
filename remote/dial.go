package remote

import (
	"context"

	"github.com/redis/go-redis/v9"
)

// Dial opens a connection to a node and closes it; see [Store].
func (s *Redis) Dial(ctx context.Context, node Node) error {
	if err := s.usable(ctx); err != nil {
		return err
	}
	client := s.clientOf(ctx, node)
	if client == nil {
		return nil
	}
	o := client.Options()
	conn, err := o.Dialer(ctx, o.Network, o.Addr)
	if err != nil {
		return err
	}
	return conn.Close()
}

// clientOf returns the client of a node, or nil if it is not known.
func (s *Redis) clientOf(ctx context.Context, node Node) *redis.Client {
	for i := range presenceNames {
		client, err := s.nodes.pick(ctx, s.names.presence(i))
		if err != nil || client == nil {
			return nil
		}
		if nodeOf(client) == node {
			return client
		}
	}
	return nil
}
