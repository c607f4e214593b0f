package adversary

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

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
func (b *Bank) run(c remote.Call) (remote.Reply, error) {
	var r [1]remote.Result
	b.store.Run(context.Background(), 10*time.Second, []remote.Call{c}, r[:])
	return r[0].Reply, r[0].Err
}

// state is what a bucket holds.
type state struct {
	exists       bool
	level        float64
	escrow       int64
	last, behind int64 // µs: the time of the level, and by how much the bucket is ahead of the server's clock
	pttl         int64 // ms
	records      map[string]record
}

// record is what the bucket knows of one process' lease, as far as an audit needs it.
type record struct {
	out int64 // tokens that may still be spent
	end int64 // µs of the bucket's time: from here on they may not
}

// parseRecord reads seq|grant|out|want|end|debt.
func parseRecord(v string) (r record, err error) {
	parts := strings.Split(v, "|")
	if len(parts) != 6 {
		return r, fmt.Errorf("record %q", v)
	}
	if r.out, err = strconv.ParseInt(parts[2], 10, 64); err == nil {
		r.end, err = strconv.ParseInt(parts[4], 10, 64)
	}
	return r, err
}

func (b *Bank) state(bucket string) (s state, err error) {
	fields, pttl := b.look(bucket)
	s.exists, s.pttl = len(fields) > 0, pttl
	whole := func(field string) int64 {
		v := fields[field]
		if v == "" {
			return 0
		}
		n, e := strconv.ParseInt(v, 10, 64)
		if e != nil {
			err = fmt.Errorf("field %s is %q", field, v)
		}
		return n
	}
	if !s.exists {
		return s, nil
	}
	s.escrow, s.last, s.behind = whole("o"), whole("t"), whole("z")
	if s.level, err = strconv.ParseFloat(fields["l"], 64); err != nil {
		return s, err
	}
	for field, v := range fields {
		if !strings.HasPrefix(field, "p") {
			continue
		}
		if s.records == nil {
			s.records = make(map[string]record)
		}
		if s.records[field[1:]], err = parseRecord(v); err != nil {
			return s, err
		}
	}
	return s, err
}
