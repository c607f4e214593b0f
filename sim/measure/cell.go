package measure

// cell is what adds up, of a segment and a limit or of several of them.
type cell struct {
	offered, admitted, ideal int64 // tokens
	alone                    int64 // of admitted, by the fail mode

	within, denied int64 // requests that the ideal bucket admits, and of these the refused ones
	waited         int64 // decisions
	times          histogram

	shares []share // by process
}

// share is what a process was asked for and what it admitted, in tokens.
type share struct{ demand, admitted int64 }

// of returns the share of a process.
func (c *cell) of(process int) *share {
	c.shares = grow(c.shares, process)
	return &c.shares[process]
}

// grown is s with an element i.
func grow[T any](s []T, i int) []T {
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

// fairness sums up the parts that some got of what they were due, in whole millionths, so that the sums do not depend
// on the order of adding.
type fairness struct {
	n, sum, squares, least int64
}

// add counts one. Nobody gets more than what was due: the rest is over-admission.
func (f *fairness) add(s share) {
	if s.demand <= 0 {
		return
	}
	x := int64(1e6 * min(1, float64(s.admitted)/float64(s.demand)))
	if f.n == 0 || x < f.least {
		f.least = x
	}
	f.n++
	f.sum += x
	f.squares += x * x
}

// merge adds all that o has.
func (f *fairness) merge(o fairness) {
	if f.n == 0 || o.n > 0 && o.least < f.least {
		f.least = o.least
	}
	f.n += o.n
	f.sum += o.sum
	f.squares += o.squares
}

// jain returns Jain's index, −1 if there is nobody or nobody got anything.
func (f *fairness) jain() float64 {
	if f.squares == 0 {
		return -1
	}
	return float64(f.sum) / float64(f.n) * float64(f.sum) / float64(f.squares)
}

// leastPart returns the least part, −1 if there is nobody.
func (f *fairness) leastPart() float64 {
	if f.n == 0 {
		return -1
	}
	return float64(f.least) / 1e6
}

// least is the least part of its demand that a process admitted, −1 when nobody was asked.
func least(shares []share) float64 {
	var f fairness
	for _, s := range shares {
		f.add(s)
	}
	return f.leastPart()
}

// jain is Jain's index of fairness of admitted by demand over the processes that were asked: 1 when all have the
// same part, 1/n when one of n has all. It is −1 when nobody was asked or nothing was admitted.
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
