package remote

const (
	firstLimit  = 22 // number of the first limit's first argument, of three
	limitFields = 3
)

// brokenWindowArgument is brokenArgument for the scripts that begin with lua/call.lua: what all scripts take, four arguments
// of their own, and the limits.
func brokenWindowArgument(c *Call) int {
	limits := c.limits()
	for _, n := range [...]int{
		c.sharedOutside(), outside(18, c.At, c.To, c.Since, c.Reset), outside(firstLimit, limits...), c.sharedBroken(),
	} {
		if n > 0 {
			return n
		}
	}
	switch {
	case c.Debt > 0 && c.Since < 1:
		return 20
	case c.Reset > 0 && c.Lease == "":
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
