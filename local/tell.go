package local

import "time"

// TellsLater reports that the fail mode has admitted tokens that no refill pays within a minute, so
// the owner has to tell Redis of them after the outage, though nobody may ask for the key again. It
// reports that once, until StillOwes reports false. down says that the node does not answer now: the
// outage may be over when StillOwes is asked.
func (b *Bucket) TellsLater(down bool) bool {
	if !b.Policy().slow() {
		return false
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.hot.life != inUse || b.hot.owing() == 0 {
		return false
	}
	tells := &b.hot.view.telling
	first := *tells == tellNot
	switch {
	case down:
		*tells = tellOutage
	case first:
		*tells = tellLater
	}
	return first
}

// StillOwes reports whether the owner has to tell Redis of a debt that TellsLater has reported, and
// whether now. down says that the node does not answer now. A debt is not told before the owner has
// seen that, nor twice: a key whose calls fail while its node answers others is left to its next
// request. After its first failures nobody knows which it is.
func (b *Bucket) StillOwes(down bool) (owes, tell bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	v := &b.hot.view
	switch {
	case v.telling == tellNot:
		return false, false
	case b.hot.life != inUse || b.hot.owing() == 0:
	case down:
		v.telling = tellOutage
		return true, false
	case v.telling == tellOutage:
		return true, true
	case 0 < v.failures && v.failures < retries:
		return true, false
	}
	v.telling = tellNot
	return false, false
}

// TellDebt is Report after an outage.
func (b *Bucket) TellDebt(now time.Duration) Effect {
	b.mu.Lock()
	b.hot.view.telling = tellLater
	b.mu.Unlock()
	e, _ := b.Report(now)
	return e
}
