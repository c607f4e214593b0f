package tiered

import (
	"math"
	"sync/atomic"
	"time"

	"github.com/tiered-limiter/tiered-limiter/internal/histogram"
	"github.com/tiered-limiter/tiered-limiter/local"
)

// Requests counts requests by how they were decided. A request over several keys counts once for each policy that
// admitted it. If it was refused, it counts for each policy that refused it.
type Requests struct {
	Granted   int64 // admitted by the limit
	Fallback  int64 // admitted by this process' fallback while Redis did not answer
	Open      int64 // admitted by fail-open while Redis did not answer
	Unlimited int64 // admitted by Unlimited

	Limited       int64 // refused by the limit
	FallbackSpent int64 // refused because the fallback was used up, while Redis did not answer
	Unavailable   int64 // refused by fail-closed
	Blocked       int64 // refused by Blocked
	ExceedsBurst  int64 // refused: cost above the burst
	Invalid       int64 // refused: the key or the cost is not valid
	Canceled      int64 // refused: the caller's context ended

	Shadowed int64 // of the refused ones above: they were admitted after all, because of Policy.Shadow

	GrantedByRedis int64 // of Granted: Redis was asked for this request; the rest were decided in this process
	LimitedByRedis int64 // of Limited: the same
}

// Admitted returns how many were admitted. It does not count Shadowed.
func (r Requests) Admitted() int64 { return r.Granted + r.Fallback + r.Open + r.Unlimited }

// Refused returns how many were refused. It counts Shadowed too.
func (r Requests) Refused() int64 {
	return r.Limited + r.FallbackSpent + r.Unavailable + r.Blocked + r.ExceedsBurst + r.Invalid + r.Canceled
}

// Histogram counts durations in buckets. The bound doubles every four buckets, as in schema 2 of a native histogram of
// Prometheus.
type Histogram struct {
	Sum     time.Duration // of all
	Buckets []int64       // how many are in each; the last one has no bound
}

// Count returns how many durations there are.
func (h Histogram) Count() (n int64) {
	for _, b := range h.Buckets {
		n += b
	}
	return n
}

// Bound returns the longest duration that bucket i counts: 61 µs for bucket 0, 4 s for the last but one. The last
// bucket has none: Bound returns the longest Duration.
func (h Histogram) Bound(i int) time.Duration {
	if i >= len(h.Buckets)-1 {
		return math.MaxInt64
	}
	return histogram.Bound(i)
}

func readHistogram(h *histogram.Histogram) (r Histogram) {
	r.Sum, r.Buckets = h.Read()
	return r
}

// requestCounts makes requests of the tokens that are counted anyway. A request of one token counts nothing, so it
// costs nothing. Any other request counts by how many tokens it cost more than one.
type requestCounts struct {
	large    atomic.Pointer[largeCounts] // nil until it is needed: of thousands of policies, most are rarely asked
	near     atomic.Int64                // see [local.Policy].NearLimit
	paid     atomic.Int64                // see [local.Policy].Paid
	refunded atomic.Int64                // tokens of admitted requests that were given back: they are counted as spent no more
}

// largeCounts are 2 kB.
type largeCounts struct {
	stripes [8]struct { // so that cores rarely write to the same one
		surplus [kinds]atomic.Int64
		_       [192 - 8*kinds]byte
	}
	waits histogram.Histogram
}

// counts returns the large counts, and makes them if there are none.
func (c *requestCounts) counts() *largeCounts {
	if l := c.large.Load(); l != nil {
		return l
	}
	c.large.CompareAndSwap(nil, new(largeCounts))
	return c.large.Load()
}

// kind is a Reason, or one of those that a Reason does not tell apart.
type kind uint8

const (
	byUnlimited = kind(Canceled) + 1 + iota
	byBlocked
	grantedByRedis
	limitedByRedis
	kinds
)

// kind returns the kind of an outcome.
func (o outcome) kind() kind {
	switch {
	case o.reason == Granted && o.policy.Rule == local.Unlimited:
		return byUnlimited
	case o.reason == ExceedsBurst && o.policy.Rule == local.Blocked && o.tier == Local: // not one that no limit would admit
		return byBlocked
	}
	return kind(o.reason)
}

// countRequest counts a request of n tokens. It must be called where its tokens are counted.
func (l *Limiter) countRequest(o outcome, key string, n int64) {
	if n == 1 && o.reason <= Unavailable && o.tier != Remote {
		return
	}
	l.addRequest(key, o.kind(), n, 1)
	if k, ok := o.byRedis(); ok {
		l.addRequest(key, k, n, 1)
	}
}

// byRedis returns the kind as which an outcome by Redis counts besides.
func (o outcome) byRedis() (kind, bool) {
	if o.tier == Remote && o.reason == Limited {
		return limitedByRedis, true
	}
	return grantedByRedis, o.tier == Remote && o.reason == Granted
}

// addRequest counts a request of a kind, or with -1 takes it back.
func (l *Limiter) addRequest(key string, k kind, n, times int64) {
	surplus := n - 1
	switch k {
	case kind(ExceedsBurst), kind(InvalidKey), kind(InvalidCost), kind(Canceled), kind(Shadowed), grantedByRedis,
		limitedByRedis: // no tokens are counted
		surplus = -1
	}
	if surplus == 0 {
		return
	}
	stripe, counts := 0, l.requests.counts()
	if key != "" {
		stripe = int(key[len(key)-1]) % len(counts.stripes)
	}
	counts.stripes[stripe].surplus[k].Add(times * surplus)
}

// of returns how many requests of a kind there were, by their tokens.
func (c *requestCounts) of(k kind, tokens int64) int64 {
	if l := c.large.Load(); l != nil {
		for i := range l.stripes {
			tokens -= l.stripes[i].surplus[k].Load()
		}
	}
	return max(tokens, 0) // a decision under way has counted one of both
}

// fill sets the numbers of requests by those of tokens. empty are the buckets of all histograms that are empty.
func (c *requestCounts) fill(p *PolicyStats, empty []int64) {
	p.NearLimit, p.Waits.Buckets, p.Refunded = c.near.Load(), empty, c.refunded.Load()
	if l := c.large.Load(); l != nil {
		p.Waits = readHistogram(&l.waits)
	}
	p.Requests = Requests{
		Granted:   c.of(kind(Granted), p.Spent+p.Standing+p.Refunded),
		Fallback:  c.of(kind(Fallback), p.Fallback),
		Open:      c.of(kind(Open), p.Open),
		Unlimited: c.of(byUnlimited, p.Unlimited),

		Limited:       c.of(kind(Limited), p.Limited),
		FallbackSpent: c.of(kind(FallbackSpent), p.FallbackSpent),
		Unavailable:   c.of(kind(Unavailable), p.Unavailable),
		Blocked:       c.of(byBlocked, p.Blocked),
		ExceedsBurst:  c.of(kind(ExceedsBurst), 0),
		Invalid:       c.of(kind(InvalidKey), 0) + c.of(kind(InvalidCost), 0),
		Canceled:      c.of(kind(Canceled), 0),

		Shadowed: c.of(kind(Shadowed), 0),

		GrantedByRedis: c.of(grantedByRedis, 0), LimitedByRedis: c.of(limitedByRedis, 0),
	}
}
