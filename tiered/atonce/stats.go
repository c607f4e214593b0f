package atonce

import "github.com/tiered-limiter/tiered-limiter/tiered"

// Stats are the figures of a Limiter in this process. [tiered.Stats] has them too, by policy.
type Stats = tiered.AtOnceStats

// Stats returns the figures now. It takes longer the more keys are in use.
func (l *Limiter) Stats() Stats {
	if l == nil || l.group == nil {
		return Stats{}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.stats
	s.Keys = len(l.keys)
	for _, k := range l.keys {
		s.Waiting += k.queue.Len()
	}
	return s
}
