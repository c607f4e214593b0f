package measure

// cell is what adds up: of a segment and a limit, or of several of them.
type cell struct {
	offered, admitted, ideal int64 // tokens
	alone                    int64 // of admitted, without Redis

	within, denied int64 // requests that the ideal admits, and of these the refused ones
	waited         int64 // decisions
	times          histogram

	shares []share // by process
}

// share is what a process was asked for and what it admitted, in tokens.
type share struct{ demand, admitted int64 }

// of returns the share of a process.
func (c *cell) of(process int) *share {
	c.shares = grown(c.shares, process)
	return &c.shares[process]
}

// grown is s with an element i.
func grown[T any](s []T, i int) []T {
	if i >= len(s) {
		s = append(s, make([]T, i+1-len(s))...)
	}
	return s
}

// merge adds all that o has counted.
func (c *cell) merge(o *cell) {
	c.offered += o.offered
	c.admitted += o.admitted
	c.ideal += o.ideal
	c.alone += o.alone
	c.within += o.within
	c.denied += o.denied
	c.waited += o.waited
	c.times.merge(&o.times)
	for i, s := range o.shares {
		mine := c.of(i)
		mine.demand += s.demand
		mine.admitted += s.admitted
	}
}

// jain is Jain's index of fairness of admitted by demand over the processes that were asked: 1 when all have the same part,
// 1/n when one of n has all. It is −1 when nobody was asked or nothing was admitted.
func jain(shares []share) float64 {
	var n, sum, squares float64
	for _, s := range shares {
		if s.demand > 0 {
			x := float64(s.admitted) / float64(s.demand)
			n++
			sum += x
			squares += x * x
		}
	}
	if squares == 0 {
		return -1
	}
	return sum * sum / (n * squares)
}
