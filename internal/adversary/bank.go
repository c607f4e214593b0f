package adversary

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/tiered-limiter/tiered-limiter/internal/invariant"
	"github.com/tiered-limiter/tiered-limiter/lua"
	"github.com/tiered-limiter/tiered-limiter/remote"
)

// Bank is where the bucket lives: a store whose state can be looked into.
type Bank struct {
	store remote.Store
	look  func(bucket string) (fields map[string]string, pttl int64)
	lose  func(bucket string)
	copy  func() *Bank // nil where there is no replica
}

// OnMemory is a bank of its own.
func OnMemory() *Bank { return onMemory(remote.NewMemory()) }

func onMemory(m *remote.Memory) *Bank {
	return &Bank{
		copy:  func() *Bank { return onMemory(m.Clone()) },
		store: m,
		look:  func(bucket string) (map[string]string, int64) { return m.Fields(bucket), m.PTTL(bucket) },
		lose:  m.Del,
	}
}

// OnRedis is a bank on a server, or on miniredis, whose scripts the shipped code loads and runs.
func OnRedis(client *redis.Client) *Bank {
	ctx := context.Background()
	return &Bank{
		store: remote.NewRedis(client, nil),
		look: func(bucket string) (map[string]string, int64) {
			p := client.Pipeline()
			fields, pttl := p.HGetAll(ctx, bucket), p.Do(ctx, "PTTL", bucket)
			_, _ = p.Exec(ctx)
			ms, err := pttl.Int64()
			if err != nil || fields.Err() != nil {
				panic(fmt.Sprintf("adversary: no look at the bucket: %v, %v", err, fields.Err()))
			}
			return fields.Val(), ms
		},
		lose: func(bucket string) {
			if err := client.Del(ctx, bucket).Err(); err != nil {
				panic(fmt.Sprintf("adversary: DEL: %v", err))
			}
		},
	}
}

// run executes one call. The network is ours, so an error is either the script's or a broken test.
func (b *Bank) run(c lua.Call) (lua.Reply, error) {
	var r [1]remote.Result
	b.store.Run(context.Background(), 10*time.Second, []lua.Call{c}, r[:])
	return r[0].Reply, r[0].Err
}

// state is what a bucket holds.
type state struct {
	invariant.Bucket
	fields map[string]string
	pttl   int64 // ms
}

// whole reads a field that is a whole number, 0 where there is none.
func (s *state) whole(field string) (n int64, err error) {
	if v := s.fields[field]; v != "" {
		if n, err = strconv.ParseInt(v, 10, 64); err != nil {
			err = fmt.Errorf("field %s is %q", field, v)
		}
	}
	return n, err
}

func (b *Bank) state(a lua.Algorithm, bucket string) (s state, err error) {
	s.fields, s.pttl = b.look(bucket)
	s.Bucket, err = invariant.Parse(a, s.fields, invariant.Unseen)
	return s, err
}
