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

// brokenBucketArgument is brokenArgument for lua/token_bucket.lua. Two Redis arguments have no field: 7 is any text, 17 is
// MaxBack.
func brokenBucketArgument(c *Call) int {
	for i, x := range [...]int64{
		1: c.Cap, 2: c.Tokens, 3: c.Period, 4: c.Want, 5: c.Min, 6: c.TTL, 8: c.Seq, 9: c.Ack, 10: c.Hold, 11: c.Ret,
		12: c.Refund, 13: c.Debt, 14: c.Deadline, 15: c.Epoch, 16: c.Now, 18: c.Owed, 19: c.Seen, 20: c.Fleet,
	} {
		if x < 0 || x >= whole {
			return i
		}
	}
	leased := c.Lease != ""
	switch {
	case c.Cap < 1 || c.Cap > mostTokens:
		return 1
	case c.Period < 1:
		return 3
	case c.Min > c.Want:
		return 5
	case c.TTL < 1 || c.TTL > longestTTL:
		return 6
	case leased && c.Seq < 1:
		return 8
	case leased && c.Ack >= c.Seq:
		return 9
	case c.Hold > 0 && !leased, c.Hold > mostTokens:
		return 10
	case c.Ret > 0 && (c.Hold > 0 || !leased):
		return 11
	case c.Refund > 0 && !leased:
		return 12
	case c.Debt > 0 && !leased:
		return 13
	case c.Owed > c.Debt:
		return 18
	case c.Fleet < 1:
		return 20
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
