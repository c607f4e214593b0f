package local

import "sync/atomic"

// maxCost is the largest cost of a single request of late, in tokens. It is 0 if none cost more than 1.
type maxCost struct{ atomic.Int64 }

// note raises it to n. Of two calls at the same time the lower cost may win: the low-water mark is then a little low.
func (c *maxCost) note(n int64) {
	if n > 1 && n > c.Load() {
		c.Store(n)
	}
}

// fade lowers it by an eighth.
func (c *maxCost) fade() {
	n := c.Load()
	c.Store(n - (n+7)/8)
}
