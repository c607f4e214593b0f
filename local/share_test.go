package local

import (
	"math"
	"testing"
	"time"

	"golang.org/x/time/rate"
)

func TestShareIsDebitedAndNeverRefilledByTelling(t *testing.T) {
	p := &Policy{Cap: 100, Tokens: 10, Per: time.Second}
	var s fallback
	s.resize(p, 0, 4, true)
	if s.tokens(0) != 25 {
		t.Fatalf("a new share has %v, want 25", s.tokens(0))
	}
	s.debit(0, 20)
	s.debit(0, 20) // as far as there are whole tokens
	if s.tokens(0) != 0 {
		t.Fatalf("%v left, want 0", s.tokens(0))
	}
	s.resize(p, 0, 2, false)
	if s.tokens(0) != 0 {
		t.Fatalf("a smaller fleet refilled the share to %v", s.tokens(0))
	}
	if got := s.tokens(time.Second); math.Abs(got-5) > 1e-6 {
		t.Fatalf("%v after 1 s, want r/N = 5", got)
	}
	s.resize(p, time.Second, 1000, false)
	if s.limiter.Burst() != 1 {
		t.Errorf("burst %d, want at least 1", s.limiter.Burst())
	}
}

// A share whose clock went back would mint tokens: the same calls on a bare limiter do
// (golang/go#65508).
func TestShareDoesNotMintWhenNowGoesBack(t *testing.T) {
	p := &Policy{Cap: 100, Tokens: 100, Per: time.Second}
	var s fallback
	s.resize(p, 0, 1, true)
	bare := rate.NewLimiter(100, 100)
	var ours, bares int64
	for i := range 1000 {
		at := time.Hour
		if i%2 == 1 {
			at -= 10 * time.Second
		}
		before := int64(s.tokens(at))
		s.debit(at, 5)
		ours += before - int64(s.tokens(at))
		if bare.AllowN(base.Add(at), 5) {
			bares += 5
		}
	}
	if ours > 100 {
		t.Errorf("%d tokens from a share of 100", ours)
	}
	if bares <= 100 {
		t.Errorf("the bare limiter gave %d: this test no longer shows anything", bares)
	}
}
