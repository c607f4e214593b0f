package lua

import "slices"

// The rules that every script checks before it reads anything.

// outside is the number of the first argument that is no whole number that a script takes, if x[0]
// is the first-th; or 0.
func outside(first int, x ...int64) int {
	for i, x := range x {
		if x < 0 || x >= Whole {
			return first + i
		}
	}
	return 0
}

const firstLimit = longCall + 1 // number of the first limit's first argument, of three

// Broken reports the first argument that is out of range or against its rule, by its number in
// lua/call.lua, or 0.
func (c *Call) Broken() int {
	limits := c.limits()
	// Two arguments have no field: 4 is any text, 14 is MaxBack.
	for _, n := range [...]int{
		outside(1, c.Want, c.Min, c.TTL, 0, c.Seq, c.Ack, c.Hold, c.Ret, c.Refund, c.Debt, c.Deadline, c.Epoch, c.Now, 0,
			c.Owed, c.Seen, c.Fleet, c.At, c.To, c.Since, c.Reset),
		outside(firstLimit, limits...),
	} {
		if n > 0 {
			return n
		}
	}
	if c.MaxDebt < 0 || c.MaxDebt > MostTokens {
		return firstLimit + len(limits)
	}
	leased := c.Lease != ""
	switch {
	case c.Min > c.Want:
		return 2
	case c.TTL < 1 || c.TTL > LongestLease:
		return 3
	case leased && c.Seq > 0 && c.Ack >= c.Seq:
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
	case c.Debt > 0 && c.Since < 1:
		return 20
	case c.Reset > 0 && !leased:
		return 21
	case len(limits) > MostLimits*limitFields:
		return firstLimit + MostLimits*limitFields
	}
	for i := 0; i < len(limits); i += limitFields {
		if limits[i] < 1 || limits[i] > MostTokens {
			return firstLimit + i
		}
		if limits[i+1] < 1 || limits[i+1] > LongestPeriod {
			return firstLimit + i + 1
		}
	}
	a := &algorithms[c.Algorithm]
	if c.To > 1 && a.has&Entries == 0 { // only a log sets the cost of an entry
		return 19
	}
	if a.broken != nil {
		if n := a.broken(c); n > 0 {
			return n
		}
	}
	if len(c.Also) > 0 && a.has&Several == 0 {
		return firstLimit + limitFields
	}
	return 0
}

// limits are a call's limits as the scripts get them, three numbers each.
func (c *Call) limits() (all []int64) {
	for i := range 1 + len(c.Also) {
		x := c.limitArguments(i)
		all = append(all, x[:]...)
	}
	return all
}

// brokenBucket reports the first argument that breaks a rule of the single token bucket's.
func brokenBucket(c *Call) int {
	if c.Reset > 0 {
		return 21
	}
	return 0
}

// brokenLog reports the first argument that breaks a rule of the log's.
func brokenLog(c *Call) int {
	for i, x := range [...]int64{c.Ack, c.Hold, c.Ret, c.Refund} {
		if x > 0 {
			return 6 + i
		}
	}
	return 0
}

// brokenBuckets reports the first argument that breaks a rule of the token buckets'.
func brokenBuckets(c *Call) int {
	return c.brokenLimit(
		func(l Limit) bool { return l.Tokens >= 1 && l.Tokens <= MostTokens },
		func(l, o Limit) bool { return l.Period == o.Period })
}

// brokenBlocks reports the first argument that breaks a rule of the sliding window's.
func brokenBlocks(c *Call) int {
	return c.brokenLimit(func(l Limit) bool {
		return l.Span >= 1 && l.Span <= MostSpan && float64(l.Span)*float64(l.Period) <= float64(LongestWindow)
	}, func(l, o Limit) bool { return l.Period == o.Period && l.Span == o.Span })
}

// brokenLimit reports the first third number of a limit that is not legal, or the period of one
// that is the same as an earlier one.
func (c *Call) brokenLimit(legal func(Limit) bool, same func(l, earlier Limit) bool) int {
	limits := c.Limits()
	for i, l := range limits {
		at := firstLimit + limitFields*i
		if !legal(l) {
			return at + 2
		}
		if slices.ContainsFunc(limits[:i], func(earlier Limit) bool { return same(l, earlier) }) {
			return at + 1
		}
	}
	return 0
}
