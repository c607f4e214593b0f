package tiered

import (
	"time"

	"github.com/tiered-limiter/tiered-limiter/local"
)

// decideByRule decides if no limit applies, or if the limit can never admit so many tokens. It reports false if the
// limit decides.
func (t *taking) decideByRule(now time.Duration) (o outcome, decided bool) {
	b := t.bucket
	p := b.Policy()
	for ; p.Rule == local.Unresolved; p = b.Policy() {
		b.limiter().resolve(b, t.key)
	}
	switch {
	case p.Rule == local.Unlimited:
		t.limiter.admittedUnlimited.Add(t.cost)
	case p.Rule == local.Blocked:
		b.CountRefused(t.cost)
	case t.cost <= p.Cap:
		return o, false
	}
	t.clear()
	return b.byRule(now), true
}

// byRule returns the outcome of a rule, or that of a limit whose burst is too small.
func (b *bucket) byRule(now time.Duration) outcome {
	switch p := b.Policy(); p.Rule {
	case local.Unlimited:
		return outcome{p, how{Granted, Local, false}, 0, 0}
	case local.Blocked:
		return outcome{p, how{ExceedsBurst, Local, false}, 0, 0}
	}
	return b.refuseForGood(now, ExceedsBurst)
}
