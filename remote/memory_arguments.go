package remote

import "strconv"

// This file is what the scripts check before they read anything.

func argumentError(n int) error { return &ScriptError{Text: "RLARG argument " + strconv.Itoa(n)} }

// brokenArgument reports the first argument that is out of range or against its rule, by its number in the contract of the
// call's script, or 0.
func brokenArgument(c *Call) int {
	if c.Algorithm == TokenBucket {
		return brokenBucketArgument(c)
	}
	return brokenWindowArgument(c)
}

// brokenBucketArgument is brokenArgument for lua/token_bucket.lua: a limit, and what all scripts take.
func brokenBucketArgument(c *Call) int {
	const shared = 3 // arguments come before those
	if n := outside(1, c.Cap, c.Tokens, c.Period); n > 0 {
		return n
	}
	if n := c.sharedOutside(); n > 0 {
		return shared + n
	}
	switch {
	case c.Cap < 1 || c.Cap > MostTokens:
		return 1
	case c.Period < 1:
		return 3
	}
	if n := c.sharedBroken(); n > 0 {
		return shared + n
	}
	return 0
}

// outside is the number of the first argument that is no whole number that a script takes, if x[0] is the first-th; or 0.
func outside(first int, x ...int64) int {
	for i, x := range x {
		if x < 0 || x >= whole {
			return first + i
		}
	}
	return 0
}

// sharedOutside is outside for the arguments that all scripts take, from Want on, which is 1. Two of them have no field: 4 is
// any text, 14 is MaxBack.
func (c *Call) sharedOutside() int {
	return outside(1, c.Want, c.Min, c.TTL, 0, c.Seq, c.Ack, c.Hold, c.Ret, c.Refund, c.Debt, c.Deadline, c.Epoch, c.Now, 0,
		c.Owed, c.Seen, c.Fleet)
}

// sharedBroken is the first of them that is against its rule, or 0.
func (c *Call) sharedBroken() int {
	leased := c.Lease != ""
	switch {
	case c.Min > c.Want:
		return 2
	case c.TTL < 1 || c.TTL > LongestLease:
		return 3
	case leased && c.Seq < 1:
		return 5
	case leased && c.Ack >= c.Seq:
		return 6
	case c.Hold > 0 && !leased, c.Hold > MostTokens:
		return 7
	case c.Ret > 0 && (c.Hold > 0 || !leased):
		return 8
	case c.Refund > 0 && !leased:
		return 9
	case c.Debt > 0 && !leased:
		return 10
	case c.Owed > c.Debt:
		return 15
	case c.Fleet < 1:
		return 17
	}
	return 0
}

// tooLate answers a call that is late, or that no limit can ever grant.
func tooLate(c *Call, server int64) (Reply, bool) {
	if c.Deadline > 0 && server >= c.Deadline {
		return Reply{Code: Late, Now: server}, true
	}
	if c.Min > c.leastCap() {
		return Reply{Code: Never, Retry: -1, Now: server}, true
	}
	return Reply{}, false
}
