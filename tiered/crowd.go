package tiered

import "time"

// crowd is whether there are too many processes for a policy's shares: see [Group.fit].
type crowd struct {
	is    bool          // so this process wants no shares
	since time.Duration // since then there are too many; 0 if there are not
	calm  time.Duration // until then others may not have come back to their shares yet
}

// patience is how long there must be too many processes before one of them gives up its shares. A
// rolling deploy has more processes than usual for a moment.
const patience = 30 * time.Second

// count learns how many processes there are, and of how many each can have a whole token. It
// reports whether there are too many now and were not, or the other way round.
func (c *crowd) count(now time.Duration, members, most int64) (changed bool) {
	was := c.is
	switch {
	case members <= most:
		c.since = 0
		if c.is = c.is && 2*members > most; was && !c.is {
			c.calm = now + patience
		}
	case c.since == 0:
		c.since = now
	}
	c.is = c.is || c.since > 0 && now-c.since >= patience
	return c.is != was
}

// changes reports whether processes are giving their shares up, or coming back to them, each at
// another time.
func (c *crowd) changes(now time.Duration) bool { return c.since > 0 || now < c.calm }
