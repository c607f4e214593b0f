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
	client, i, err := s.clientOf(ctx, node)
	if err != nil || i < 0 || client == nil {
		return nil
	}
	o := client.Options()
	conn, err := o.Dialer(ctx, o.Network, o.Addr)
	if err != nil {
		return err
	}
	return conn.Close()
}

// clientOf returns the client of a node, and the first presence set that is there: -1 if the node is not known.
func (s *Redis) clientOf(ctx context.Context, node Node) (client *redis.Client, set int, err error) {
	for i := range presenceNames {
		client, err = s.nodes.pick(ctx, s.names.presence(i))
		if err != nil || nodeOf(client) == node {
			return client, i, err
		}
	}
	return nil, -1, nil
}
