package adversary

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/tiered-limiter/tiered-limiter/internal/test/proof/invariant"
	"github.com/tiered-limiter/tiered-limiter/lua"
	"github.com/tiered-limiter/tiered-limiter/remote"
)

// table is the name of the table of standing shares in a store without a prefix.
const table = "{~0}st1"

// Store is where the bucket lives: a store whose contents can be read and removed.
type Store struct {
	Calls  remote.Store
	Table  string // the name of the table of standing shares
	Read   func(name string) (fields map[string]string, pttl int64)
	Remove func(name string)
	Copy   func() *Store // nil if there is no replica
	Stands bool          // its own clock stands still: what is left of a key's time is exact
}

// OnMemory returns a store in memory.
func OnMemory() *Store { return onMemory(remote.NewMemory()) }

func onMemory(m *remote.Memory) *Store {
	return &Store{
		Copy:   func() *Store { return onMemory(m.Clone()) },
		Calls:  m,
		Table:  table,
		Read:   func(bucket string) (map[string]string, int64) { return m.Fields(bucket), m.PTTL(bucket) },
		Remove: m.Del,
		Stands: true, // in a bubble
	}
}

// OnRedis returns a store on a server, or on miniredis. The shipped code loads and runs the scripts.
func OnRedis(client *redis.Client) *Store {
	ctx := context.Background()
	return &Store{
		Calls: remote.NewRedis(client, nil),
		Table: "tl:" + table, // buckets are named by the worlds, and the table by the store
		Read: func(bucket string) (map[string]string, int64) {
			p := client.Pipeline()
			fields, pttl := p.HGetAll(ctx, bucket), p.Do(ctx, "PTTL", bucket)
			_, _ = p.Exec(ctx)
			ms, err := pttl.Int64()
			if err != nil || fields.Err() != nil {
				panic(fmt.Sprintf("adversary: no look at the bucket: %v, %v", err, fields.Err()))
			}
			return fields.Val(), ms
		},
		Remove: func(bucket string) {
			if err := client.Del(ctx, bucket).Err(); err != nil {
				panic(fmt.Sprintf("adversary: DEL: %v", err))
			}
		},
	}
}

// run executes one call. The network is ours, so an error is either the script's or a broken test.
func (b *Store) run(c lua.Call) (lua.Reply, error) {
	var r [1]remote.Result
	b.Calls.Run(context.Background(), 10*time.Second, []lua.Call{c}, r[:])
	return r[0].Reply, r[0].Err
}

// state is what a bucket stores.
type state struct {
	invariant.Bucket
	fields map[string]string
	pttl   int64 // ms
}

// integer reads a field that is a whole number, 0 if there is none.
func (s *state) integer(field string) (n int64, err error) {
	if v := s.fields[field]; v != "" {
		if n, err = strconv.ParseInt(v, 10, 64); err != nil {
			err = fmt.Errorf("field %s is %q", field, v)
		}
	}
	return n, err
}

func (b *Store) state(a lua.Algorithm, bucket string) (s state, err error) {
	s.fields, s.pttl = b.Read(bucket)
	left := invariant.Unseen
	if b.Stands {
		left = time.Duration(s.pttl) * time.Millisecond
	}
	s.Bucket, err = invariant.Parse(a, s.fields, left)
	return s, err
}
