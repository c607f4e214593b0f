package atonce

// Stats are the figures of a Limiter in this process, since it was made.
type Stats struct {
	Running int64 // places that requests have now
	Keys    int   // that have something now: requests, spare places, or waiters
	Waiting int   // requests that wait now

	Granted     int64 // requests that got their places: by Redis, and
	Spare       int64 // from spare places of this process, without a call
	FailMode    int64 // by the fail mode
	Refused     int64 // because all places were taken
	Unavailable int64 // by the fail mode
	Lost        int64 // places: see [Place.Lost]
	Claims      int64 // commands to Redis
	Damaged     int64 // answers that said that a key in Redis is not ours

	waiters int64 // so far
}

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
