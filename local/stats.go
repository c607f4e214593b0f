package local

// Stats counts tokens of one bucket, or of several together. Granted = Spent + Returned + Burnt +
// Held.
type Stats struct {
	Granted       int64 // by Redis
	Spent         int64 // admitted
	Returned      int64 // given back unspent, or refunded
	Burnt         int64 // ended unspent, or lost on the way back
	Held          int64 // in hand: unspent, or on the way back
	Refused       int64 // asked for and refused by the limit
	Failed        int64 // asked for while Redis did not answer, and not admitted
	Blocked       int64 // asked for and refused because the key is blocked. Not in Refused
	FallbackSpent int64 // part of Refused: by the fallback, while Redis did not answer
	Fallback      int64 // admitted by the fallback, while Redis did not answer
	Opened        int64 // admitted by fail-open, while Redis did not answer
	Settled       int64 // of Fallback, Opened and charges, reported to Redis afterwards
}

// Add adds t to s.
func (s *Stats) Add(t Stats) {
	s.Granted += t.Granted
	s.Spent += t.Spent
	s.Returned += t.Returned
	s.Burnt += t.Burnt
	s.Held += t.Held
	s.Refused += t.Refused
	s.Failed += t.Failed
	s.Blocked += t.Blocked
	s.FallbackSpent += t.FallbackSpent
	s.Fallback += t.Fallback
	s.Opened += t.Opened
	s.Settled += t.Settled
}
