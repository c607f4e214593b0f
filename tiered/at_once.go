package tiered

// AtOnceStats are the figures of a limit on what runs at the same time: see package atonce. Places
// are in this process, and all figures but the first three are since its start.
type AtOnceStats struct {
	Running int64 // places that requests have now
	Keys    int   // that have something now: requests, spare places, or waiters
	Waiting int   // requests that wait now

	Granted     int64 // requests that got their places: by Redis, and
	Spare       int64 // from spare places of this process, without a call
	FailMode    int64 // by the fail mode
	Refused     int64 // requests refused because all places were taken
	Unavailable int64 // requests refused by the fail mode
	Lost        int64 // places that Redis may have given to others while requests had them
	Calls       int64 // calls to Redis, each with up to 64 keys
	Damaged     int64 // answers that said that a key in Redis is not ours
}

// plus adds figures up.
func (s AtOnceStats) plus(t AtOnceStats) AtOnceStats {
	return AtOnceStats{
		Running: s.Running + t.Running, Keys: s.Keys + t.Keys, Waiting: s.Waiting + t.Waiting,
		Granted: s.Granted + t.Granted, Spare: s.Spare + t.Spare, FailMode: s.FailMode + t.FailMode,
		Refused: s.Refused + t.Refused, Unavailable: s.Unavailable + t.Unavailable, Lost: s.Lost + t.Lost,
		Calls: s.Calls + t.Calls, Damaged: s.Damaged + t.Damaged,
	}
}
