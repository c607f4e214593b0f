package report

import (
	"sync/atomic"
	"time"

	"github.com/tiered-limiter/tiered-limiter/internal/histogram"
)

// Kind is how a request was decided. The zero Kind is that of one that was not, and is not read.
type Kind uint8

// The kinds. Tokens are counted for those up to Blocked.
const (
	Granted Kind = 1 + iota
	Fallback
	Open
	Unlimited
	Limited
	FallbackSpent
	Unavailable
	Blocked

	ExceedsBurst // from here on no tokens are counted
	Invalid
	Canceled
	Shadowed       // a refused request counts as this besides
	GrantedByRedis // one that is Granted may count as this besides
	LimitedByRedis // and one that is Limited as this
	kinds
)

// Requests makes requests of the tokens that are counted anyway. A request of one token counts
// nothing, so it costs nothing. Any other request counts by how many tokens it cost more than one.
// All methods may be called concurrently.
type Requests struct {
	counts atomic.Pointer[requestCounts] // nil until it is needed: of thousands of policies, most are rarely asked
}

// requestCounts are 2 kB.
type requestCounts struct {
	stripes [8]struct { // so that cores rarely write to the same one
		surplus [kinds]atomic.Int64 // tokens counted for the kind − requests of it
		_       [192 - 8*kinds]byte
	}
	waits histogram.Histogram
}

// made returns the counts, and makes them if there are none.
func (r *Requests) made() *requestCounts {
	if c := r.counts.Load(); c != nil {
		return c
	}
	r.counts.CompareAndSwap(nil, new(requestCounts))
	return r.counts.Load()
}

// Add counts a request of n tokens for key, or with times = -1 takes it back. It must be called
// where its tokens are counted, and may be left out if tokens are counted for k and n is 1.
func (r *Requests) Add(key string, k Kind, n, times int64) {
	surplus := n - 1
	if k > Blocked {
		surplus = -1
	}
	if surplus == 0 {
		return
	}
	stripe, c := 0, r.made()
	if key != "" {
		stripe = int(key[len(key)-1]) % len(c.stripes)
	}
	c.stripes[stripe].surplus[k].Add(times * surplus)
}

// Of returns how many requests of a kind there were. tokens are those counted for it, 0 if none
// are.
func (r *Requests) Of(k Kind, tokens int64) int64 {
	if c := r.counts.Load(); c != nil {
		for i := range c.stripes {
			tokens -= c.stripes[i].surplus[k].Load()
		}
	}
	return max(tokens, 0) // a decision under way has counted one of both
}

// Waited counts how long a request waited for Redis.
func (r *Requests) Waited(d time.Duration) { r.made().waits.Observe(d) }

// Waits returns how long requests waited for Redis, by the buckets of a histogram. They are nil if
// none did.
func (r *Requests) Waits() (sum time.Duration, buckets []int64) {
	if c := r.counts.Load(); c != nil {
		return c.waits.Read()
	}
	return 0, nil
}
