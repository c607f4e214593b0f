package harness

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/sim/faultnet"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// Job is what a process does: it has a Group with a limiter for each load. The Redis is either the one of URL, through a store
// of remote.Open, or the one of Client.
type Job struct {
	URL    string
	Client *Client
	Loads  []Load
	Dir    string          // for a file of records per load; if empty, the process makes no requests of its own
	Net    faultnet.Faults // at the start
	Seed   uint64

	Budget, Timeout                 time.Duration // these and the next are tiered.Options
	Processes, MaxKeys, MaxInFlight int

	Verbose bool // every event is told
	Damaged bool // somebody damages buckets: Redis may refuse calls, and that does not fail the test
}

// Client is a go-redis client at its defaults, as a user has one, but for what is said here. It is borrowed.
type Client struct {
	Addrs    []string // of one server, of the sentinels (with Primary), or two and more of a Cluster
	Primary  string   // the name that the sentinels know
	User     string
	Password string
	Pool     int  // connections at most, per server; 0 is the default
	Strict   bool // of StrictOptions, not at the defaults
}

// StrictOptions are those of a client that fails at once: it leaves it to the limiter to try again. It dials within 200 ms, as that of remote.Open.
func StrictOptions() *redis.UniversalOptions {
	return &redis.UniversalOptions{
		MaxRetries:               -1,
		DialTimeout:              200 * time.Millisecond,
		DialerRetries:            1,
		ReadTimeout:              200 * time.Millisecond,
		WriteTimeout:             200 * time.Millisecond,
		PoolTimeout:              25 * time.Millisecond,
		PipelinePoolSize:         -1,
		ContextTimeoutEnabled:    true,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	}
}

// Load is requests under a policy of its own, whose name is that of the file of records too.
type Load struct {
	tiered.Policy

	Offer  float64 // requests per second, on average; 0 is as many as there can be
	Surges bool    // most of them within 0.8 of each 2 s, so that the bucket and the leases fill up in between
	Moves  int     // this many processes take turns: each offers 0.8 of the whole load for a second; 0 and 1 mean no turns

	Key     string  // of every request; "shared" when empty
	Keys    int64   // the number of keys to draw from, instead of one; -1 means a new key for each request
	Most    int64   // requests, after which the load ends; 0 is no end
	Workers int     // how many requests at once; 0 is 4
	Cancel  float64 // part of the requests whose context is canceled within 2 ms
}

// check reports a Load that cannot be offered.
func (w *Load) check() error {
	if w.Offer < 0 || w.Cancel < 0 || w.Cancel > 1 || w.Workers < 0 || w.Moves < 0 || w.Keys < -1 {
		return fmt.Errorf("harness: Load %q is out of range: %+v", w.Name, *w)
	}
	return nil
}

// openStore makes the store, over connections of the child's network, and what closes it and the client that it borrows.
func (c *child) openStore(j *Job) (store *remote.Redis, closes func() error, err error) {
	switch {
	case (j.URL == "") == (j.Client == nil):
		return nil, nil, errors.New("harness: a Job has either a URL or a Client")
	case j.URL != "":
		if store, err = remote.Open(j.URL, nil); err != nil {
			return nil, nil, err
		}
		return store, store.Close, nil
	}
	o := &redis.UniversalOptions{}
	if j.Client.Strict {
		o = StrictOptions()
	}
	o.Addrs, o.MasterName, o.PoolSize = j.Client.Addrs, j.Client.Primary, j.Client.Pool
	o.Username, o.Password = j.Client.User, j.Client.Password
	o.Dialer = c.net.Dialer(func(ctx context.Context, network, addr string) (net.Conn, error) {
		if instead := c.addr.Load(); instead != nil {
			addr = *instead
		}
		return new(net.Dialer).DialContext(ctx, network, addr)
	})
	client := redis.NewUniversalClient(o)
	if j.Verbose {
		client.AddHook(scripts{c})
	}
	store = remote.NewRedis(client, nil)
	return store, func() error { return errors.Join(store.Close(), client.Close()) }, nil
}
