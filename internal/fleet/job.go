package fleet

import (
	"errors"
	"fmt"

	"github.com/redis/go-redis/v9"

	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/sim/faultnet"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// Job is what a process does: carry loads under policies of one Group, and record each request. The Redis is either the
// one of URL, through a store of remote.Open, or the one of Client.
type Job struct {
	URL       string
	Client    *Client
	Processes int // Options.Processes
	MaxKeys   int // Options.MaxKeys
	Loads     []Load
	Seed      uint64
	Dir       string // for a file of records per load, and for the report
	Damaged   bool   // somebody damages buckets: Redis may refuse calls, and that does not fail the test
}

// Client is a go-redis client at its defaults, as a user has one, but for what is said here. It is borrowed.
type Client struct {
	Addrs    []string // of one server, of the sentinels (with Primary), or two and more of a Cluster
	Primary  string   // the name that the sentinels know
	User     string
	Password string
	Pool     int // connections at most, per server; 0 is the default
}

// Load is requests under a policy of its own.
type Load struct {
	Policy   string // its name
	FailMode tiered.FailMode
	Limit    tiered.Limit
	Also     []tiered.Limit

	Algorithm tiered.Algorithm
	Calendar  bool
	Shards    int

	Size   int64   // of a lease; 0 follows demand, tiered.NoLease takes directly
	Offer  float64 // requests per second, on average; 0 is as many as there can be
	Surges bool    // most of them within 0.8 of each 2 s, so that the bucket and the leases fill up in between
	Moves  int     // of so many processes each offers 0.8 of what all do for a second, in turn; 0 and 1 are no turns

	Key     string  // of every request; "shared" when empty
	Keys    int64   // so many keys instead, at random; -1 is a new one for each request
	Most    int64   // requests, after which the load ends; 0 is no end
	Workers int     // how many requests at once; 0 is 4
	Cancel  float64 // part of the requests whose context is canceled within 2 ms
}

// open makes the store, over connections of net, and what closes it and the client that it borrows.
func (j *Job) open(net *faultnet.Net) (store *remote.Redis, closes func() error, err error) {
	switch {
	case (j.URL == "") == (j.Client == nil):
		return nil, nil, errors.New("fleet: a Job has either a URL or a Client")
	case j.URL != "":
		if store, err = remote.Open(j.URL, nil); err != nil {
			return nil, nil, err
		}
		return store, store.Close, nil
	}
	c := j.Client
	client := redis.NewUniversalClient(&redis.UniversalOptions{
		Addrs: c.Addrs, MasterName: c.Primary, Username: c.User, Password: c.Password, PoolSize: c.Pool, Dialer: net.Dialer(nil),
	})
	store = remote.NewRedis(client, nil)
	return store, func() error { return errors.Join(store.Close(), client.Close()) }, nil
}

// check reports a Load that cannot be carried.
func (w *Load) check() error {
	switch {
	case w.Policy == "":
		return errors.New("fleet: Load.Policy is empty: it names the file of its records")
	case w.Offer < 0 || w.Cancel < 0 || w.Cancel > 1 || w.Workers < 0 || w.Moves < 0 || w.Keys < -1:
		return fmt.Errorf("fleet: Load %q is out of range: %+v", w.Policy, *w)
	}
	return nil
}
