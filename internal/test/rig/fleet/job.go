package fleet

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// Job is what a process does: it has a Group with a limiter for each load. The Redis is either the
// one of URL, through a store of remote.Open, or the one of Client.
type Job struct {
	URL    string
	Client *Client
	Loads  []Load
	Seed   uint64
	Dir    string // for a file of records per load; Start makes it

	Processes, MaxKeys int // these are tiered.Options

	Zones string // the directory with the data of time zones; "" for that of the machine

	Damaged bool // somebody damages buckets: Redis may refuse calls, and that does not fail the test
}

// Client is a go-redis client at its defaults, as a user has one, but for what is said here. It is
// borrowed.
type Client struct {
	Addrs    []string // of one server, of the sentinels (with Primary), or two and more of a Cluster
	Primary  string   // the name that the sentinels know
	User     string
	Password string
	Pool     int // connections at most, per server; 0 is the default
}

// Load is requests under a policy of its own, whose name is that of the file of records too.
type Load struct {
	tiered.Policy

	Offer  float64 // requests per second, on average; 0 is as many as there can be
	Surges bool    // most of them within 0.8 of each 2 s, so that the bucket and the leases fill up in between
	Moves  int     // this many processes take turns: each offers 0.8 of the whole load for a second; 0 and 1 mean no turns

	Asks    []string // plans that requests have, drawn; none is no plan
	Key     string   // of every request; "shared" when empty
	Keys    int64    // the number of keys to draw from, instead of one; -1 means a new key for each request
	Most    int64    // requests, after which the load ends; 0 is no end
	Workers int      // how many requests at once; 0 is 4
	Cancel  float64  // part of the requests whose context is canceled within 2 ms
}

// openStore makes the store, over connections of the child's network, and what closes it and the
// client that it borrows.
func (c *child) openStore(j *Job) (store *remote.Redis, closes func() error, err error) {
	if j.Client == nil {
		store, err = remote.Open(j.URL, nil)
		return store, func() error { return store.Close() }, err
	}
	client := redis.NewUniversalClient(&redis.UniversalOptions{
		Addrs: j.Client.Addrs, MasterName: j.Client.Primary, PoolSize: j.Client.Pool,
		Username: j.Client.User, Password: j.Client.Password,
		Dialer: c.net.Dialer(new(net.Dialer).DialContext),
	})
	store = remote.NewRedis(client, nil)
	return store, func() error { return errors.Join(store.Close(), client.Close()) }, nil
}

// quietPart is the part of each surgePeriod in which a load with Surges offers next to nothing.
const (
	surgePeriod = 2 * time.Second
	quietPart   = 1200 * time.Millisecond

	hotPart = 0.8 // of the requests of a load with Moves, offered by the process whose turn it is
)

// carrier carries a load with several workers.
type carrier struct {
	Load
	seed    uint64 // of the process
	limiter *tiered.Limiter
	out     io.Writer
	made    atomic.Int64 // requests
}

// work makes requests at a rate, one after the other, until ctx ends or all are made.
func (w *carrier) work(ctx context.Context, perSecond float64, random *rand.Rand) {
	next := time.Now()
	for ctx.Err() == nil {
		if w.Most > 0 && w.made.Add(1) > w.Most {
			return
		}
		if perSecond > 0 {
			next = next.Add(time.Duration(random.ExpFloat64() / (w.peak() * perSecond) * float64(time.Second)))
			// A request that is due already waits for nothing: one that hung for a second is made
			// up for.
			if wait := time.Until(next); wait > 0 {
				select {
				case <-ctx.Done():
					return
				case <-time.After(wait):
				}
			}
			if random.Float64() >= w.part(next) {
				continue
			}
		}
		w.one(random)
	}
}

// one makes one request and records it.
func (w *carrier) one(random *rand.Rand) {
	ctx := context.Background()
	if w.Cancel > 0 && random.Float64() < w.Cancel {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, time.Hour)
		defer time.AfterFunc(time.Duration(random.Int64N(int64(2*time.Millisecond))), cancel).Stop()
		defer cancel()
	}
	key := w.key(random)
	before := time.Now().UnixNano()
	asked := w.limiter.For(key)
	if len(w.Asks) > 0 {
		asked = asked.WithPlan(w.Asks[random.IntN(len(w.Asks))])
	}
	d := asked.Allow(ctx)
	r := Record{Before: before, After: time.Now().UnixNano(), Allowed: d.Allowed, Reason: d.Reason}
	_, _ = w.out.Write(r.bytes())
}

func (w *carrier) key(random *rand.Rand) string {
	switch {
	case w.Keys < 0:
		return strconv.FormatUint(random.Uint64(), 36)
	case w.Keys > 0:
		return strconv.FormatInt(random.Int64N(w.Keys), 10)
	default:
		return w.Key
	}
}

// peak is the most that is offered at any time, in times the average.
func (w *carrier) peak() float64 {
	peak := 1.0
	if w.Surges {
		peak *= 2.35
	}
	if w.Moves > 1 {
		peak *= hotPart * float64(w.Moves)
	}
	return peak
}

// part is the part of the peak that is offered at a time. By the wall clock, so that all processes
// surge together and take turns.
func (w *carrier) part(at time.Time) float64 {
	part := 1.0
	if w.Surges && at.UnixNano()%int64(surgePeriod) < int64(quietPart) {
		part *= 0.04
	}
	if w.Moves > 1 && at.Unix()%int64(w.Moves) != int64(w.seed)%int64(w.Moves) {
		part *= (1 - hotPart) / hotPart / float64(w.Moves-1)
	}
	return part
}
