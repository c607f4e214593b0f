package lua

// Limit is one limit of several on a bucket; see [Call].
type Limit struct {
	Cap, Tokens, Period, Span int64
}

// Call is one call of an algorithm's script. Amounts are tokens, 0 … 2⁴⁰ for Cap and costs; times
// are µs of the node's clock. Fields that an algorithm does not use are 0.
type Call struct {
	Bucket    string // KEYS[1]; in package remote, from Store.Name for the same algorithm
	Algorithm Algorithm

	Cap    int64 // the most at once, 1 … 2⁴⁰: a burst, or what a window holds
	Tokens int64 // refilled per Period, of a TokenBucket
	Period int64 // µs, ≥ 1: of the refill, or the length of a window
	// Phase is where the windows of a FixedWindow begin: at Phase + k·Period of the node's clock. A
	// Phase ≥ Period is the begin of the only window that the caller means, such as a month: a call
	// that reaches the node before it, or after its end, is Late.
	Phase int64
	Span  int64 // of a SlidingWindow: how many blocks of Period count, 1 … 512
	// MaxDebt is how far below zero a token bucket may go, if that is more than Cap: 0 … 2⁴⁰. It
	// goes one second of refill further. What a debt would charge below that is forgiven.
	MaxDebt int64
	Also    []Limit // further limits; at most seven, and never changed once a call was made with them

	Want int64 // tokens asked for; 0 settles only, and is a peek without Lease
	Min  int64 // grant no fewer; ≤ Want
	TTL  int64 // µs a lease lasts, 1 … 2⁵⁰

	Lease    string // id of the process; "" takes directly, and then Hold, Ret, Refund and Debt are 0
	Seq      int64  // higher with every call of a Lease; 0 for a dry run, which tells the answer and writes nothing
	Ack      int64  // highest Seq whose reply was accepted
	Hold     int64  // unspent tokens kept, 0 … 2⁴⁰
	Ret      int64  // leased tokens given back; needs Hold = 0
	Refund   int64  // tokens admitted, then not used; needs a Deadline ≤ the node's now + TTL
	Debt     int64  // tokens admitted without the bucket
	Owed     int64  // the part of Debt charged in any case
	Seen     int64  // overflow when Debt was last 0
	Fleet    int64  // processes that share the bucket, ≥ 1
	Deadline int64  // from this time on the node does nothing; 0 none
	Epoch    int64  // as last seen; 0 unknown

	At    int64 // stamp of the take that Refund or To is for
	To    int64 // the cost that this take gets, of a SlidingLog; of others, 1: what a Lease's call is granted is not leased
	Since int64 // when Debt was admitted; of windows, and not 0 there if Debt is not
	Reset int64 // forget what was counted by then; of windows, needs a Lease

	Now int64 // 0 reads the node's clock; anything else is for tests and simulation
}

// Dry reports whether the call is a dry run: it is answered as the call would be, but with the
// level and the reset time of before its grant.
func (c *Call) Dry() bool { return c.Lease != "" && c.Seq == 0 }

// Limits are all limits of the call.
func (c *Call) Limits() []Limit { return append([]Limit{c.limit(0)}, c.Also...) }

// limit is one of them, from 0.
func (c *Call) limit(i int) Limit {
	if i == 0 {
		return Limit{c.Cap, c.Tokens, c.Period, c.Span}
	}
	return c.Also[i-1]
}

// LeastCap is the smallest cap of a call's limits.
func (c *Call) LeastCap() int64 {
	least := c.Cap
	for _, l := range c.Also {
		least = min(least, l.Cap)
	}
	return least
}

// SafeBy reports whether what the call gives back may count, when the record that knows it ends at
// end: its deadline kills every copy of it before that.
func (c *Call) SafeBy(end int64) bool { return c.Deadline > 0 && c.Deadline <= end }
