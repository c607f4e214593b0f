package local

import (
	"cmp"
	"slices"
	"time"
)

// step is what a refusal taught of the cost that was refused: when so many tokens may be there, and
// until when that is believed.
type step struct {
	tokens       int64
	opens, until time.Duration
}

// steps are what refusals taught where no single refill tells the level: with windows, with a log,
// and with several limits. They are in order, and what costs more opens later. A nil *steps knows
// nothing.
//
// Invariant: they do not change once they are stored in a denial.
type steps []step

// maxSteps bounds what is kept of one key. Between two costs that were refused, what a third one
// has to wait for is not known. So Redis is asked for it, and beyond so many costs it is told the
// time of the next higher one.
const maxSteps = 8

// with returns s with a newer step n, learned at now with whole tokens left. It keeps what is still
// believed and what n does not contradict. Redis counts in microseconds: what contradicts n by less
// than one is the same time, and stays as it was told.
func (s *steps) with(n step, now time.Duration, whole int64) *steps {
	var all steps
	if s != nil {
		all = *s
	}
	for _, o := range all {
		differs := o.tokens == n.tokens || (o.tokens < n.tokens) != (o.opens <= n.opens)
		if differs && o.opens > now && (n.opens-o.opens).Abs() < time.Microsecond {
			n.opens = o.opens
		}
	}
	next := make(steps, 0, len(all)+1)
	for _, o := range all {
		dead := o.until <= now || o.opens <= now || o.tokens <= whole || o.tokens == n.tokens
		if !dead && (o.tokens < n.tokens) == (o.opens <= n.opens) {
			next = append(next, o)
		}
	}
	i, _ := slices.BinarySearchFunc(next, n.tokens, func(o step, tokens int64) int { return cmp.Compare(o.tokens, tokens) })
	if next = slices.Insert(next, i, n); len(next) > maxSteps { // the cheapest says what is refused, the dearest for how long
		i = min(max(i, 2), len(next)-1)
		next = slices.Delete(next, i-1, i)
	}
	return &next
}

// above returns the steps of more than so many tokens: as many are there.
func (s *steps) above(whole int64) *steps {
	if s == nil || (*s)[0].tokens > whole {
		return s
	}
	i := slices.IndexFunc(*s, func(o step) bool { return o.tokens > whole })
	if i < 0 {
		return nil
	}
	rest := (*s)[i:]
	return &rest
}

// around returns the steps of the next lower cost and of the next higher one, or twice that of the
// cost itself. Either is nil if there is none.
func (s *steps) around(tokens int64) (lower, upper *step) {
	if s == nil {
		return nil, nil
	}
	for i := range *s {
		o := &(*s)[i]
		if o.tokens <= tokens {
			lower = o
		}
		if o.tokens >= tokens {
			return lower, o
		}
	}
	return lower, nil
}

// opens returns when so many tokens may be there: if that is not known, an upper bound, or a lower
// one for more than was ever refused.
func (s *steps) opens(tokens int64) time.Duration {
	switch lower, upper := s.around(tokens); {
	case upper != nil:
		return upper.opens
	case lower != nil:
		return lower.opens
	}
	return 0
}

// know reports whether so many tokens are refused, and opens tells when they are there.
func (s *steps) know(tokens int64) bool {
	lower, upper := s.around(tokens)
	return lower != nil && upper != nil && (lower.opens == upper.opens || len(*s) == maxSteps)
}

// until returns until when a request for tokens is believed to be refused. It is, if one for fewer
// is.
func (s *steps) until(tokens int64) time.Duration {
	if lower, _ := s.around(tokens); lower != nil {
		return lower.until
	}
	return 0
}
