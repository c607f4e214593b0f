package fleet

import (
	"errors"
	"net"

	"github.com/redis/go-redis/v9"

	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// Job is what a process does: it has a Group with a limiter for each load. The Redis is either the one of URL, through
// a store of remote.Open, or the one of Client.
type Job struct {
	URL    string
	Client *Client
	Loads  []Load
	Seed   uint64
	Dir    string // for a file of records per load; Start makes it

	Processes, MaxKeys int // these are tiered.Options

	Damaged bool // somebody damages buckets: Redis may refuse calls, and that does not fail the test
}

// Client is a go-redis client at its defaults, as a user has one, but for what is said here. It is borrowed.
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

	Key     string  // of every request; "shared" when empty
	Keys    int64   // the number of keys to draw from, instead of one; -1 means a new key for each request
	Most    int64   // requests, after which the load ends; 0 is no end
	Workers int     // how many requests at once; 0 is 4
	Cancel  float64 // part of the requests whose context is canceled within 2 ms
}

// openStore makes the store, over connections of the child's network, and what closes it and the client that it
// borrows.
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
