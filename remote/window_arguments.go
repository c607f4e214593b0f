package remote

const (
	firstLimit  = 22 // number of the first limit's first argument, of three
	mostLimits  = 8
	limitFields = 3
)

// brokenWindowArgument is brokenArgument for the scripts that begin with lua/call.lua. Two Redis arguments have no field: 4
// is any text, 14 is MaxBack.
func brokenWindowArgument(c *Call) int {
	for i, x := range [...]int64{
		1: c.Want, 2: c.Min, 3: c.TTL, 5: c.Seq, 6: c.Ack, 7: c.Hold, 8: c.Ret, 9: c.Refund, 10: c.Debt, 11: c.Deadline,
		12: c.Epoch, 13: c.Now, 15: c.Owed, 16: c.Seen, 17: c.Fleet, 18: c.At, 19: c.To, 20: c.Since, 21: c.Reset,
	} {
		if x < 0 || x >= whole {
			return i
		}
	}
	limits := c.limits()
	for i, x := range limits {
		if x < 0 || x >= whole {
			return firstLimit + i
		}
	}
	leased := c.Lease != ""
	switch {
	case c.Min > c.Want:
		return 2
	case c.TTL < 1 || c.TTL > longestTTL:
		return 3
	case leased && c.Seq < 1:
		return 5
	case leased && c.Ack >= c.Seq:
		return 6
	case c.Hold > 0 && !leased, c.Hold > mostTokens:
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
	case len(limits) > mostLimits*limitFields:
		return firstLimit + mostLimits*limitFields
	}
	for i := 0; i < len(limits); i += limitFields {
		if limits[i] < 1 || limits[i] > mostTokens {
			return firstLimit + i
		}
		if limits[i+1] < 1 || limits[i+1] > longestTTL {
			return firstLimit + i + 1
		}
	}
	return algorithms[c.Algorithm].broken(c)
}

// limits are a call's limits as the scripts get them, three numbers each.
func (c *Call) limits() []int64 {
	third := algorithms[c.Algorithm].third
	all := append(make([]int64, 0, limitFields*(1+len(c.Also))), c.Cap, c.Period, third(Limit{c.Cap, c.Tokens, c.Period, c.Span}, c))
	for _, l := range c.Also {
		all = append(all, l.Cap, l.Period, third(l, c))
	}
	return all
}

// leastCap is the smallest cap of a call's limits.
func (c *Call) leastCap() int64 {
	least := c.Cap
	for _, l := range c.Also {
		least = min(least, l.Cap)
	}
	return least
}
