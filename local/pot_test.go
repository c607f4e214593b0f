package local

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/tiered-limiter/tiered-limiter/lua"
)

// Whatever happens to a pot, each token that went in is taken, burnt, given back or still there,
// and the generation never falls.
func TestPotKeepsItsTokens(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var p pot
		var in, out, generation int64
		now := time.Second
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			n := rapid.Int64Range(1, 20).Draw(t, "n")
			switch rapid.SampledFrom([]string{"take", "refill", "empty", "end", "send", "new id", "wait"}).Draw(t,
				"step") {
			case "take":
				left, ok := p.take(now, n)
				if ok && (p.over(now) || left < 0) {
					t.Fatalf("took %d at %v of a lease until %d, %d left", n, now, p.deadline.Load(), left)
				}
				if ok {
					out += n
				}
			case "refill":
				out += p.refill(now, n, now+time.Duration(rapid.IntRange(-5, 50).Draw(t, "life"))*ms)
				in += n
			case "empty":
				out += p.empty()
			case "end":
				end := now + 5*ms
				if p.endBy(end); p.deadline.Load() > int64(end) {
					t.Fatalf("the lease goes on until %d, not %v", p.deadline.Load(), end)
				}
			case "send":
				if p.callSent(); p.renewable(now, 0) {
					t.Fatal("a renewal while a call is under way")
				}
			case "new id":
				old := p.generation.Load()
				if p.newIdentity(); p.sameIdentity(old) {
					t.Fatal("a new lease id goes on in the generation of the old one")
				}
			case "wait":
				now += time.Duration(n) * ms
			}
			if held := p.tokens.Load(); held < 0 || in != out+held {
				t.Fatalf("%d went in, %d out, %d are held", in, out, held)
			}
			if p.live(now) > 0 == p.over(now) && p.tokens.Load() > 0 {
				t.Fatalf("%d live at %v of a lease until %d", p.live(now), now, p.deadline.Load())
			}
			if g := p.generation.Load(); g < generation {
				t.Fatalf("the generation fell from %d to %d", generation, g)
			} else {
				generation = g
			}
		}
	})
}

// A lease that is over does not come to life again with the deadline of the next one.
func TestPotBurnsWhatIsOverBeforeARefill(t *testing.T) {
	var p pot
	p.refill(0, 10, time.Second)
	if burnt := p.refill(time.Second, 5, 2*time.Second); burnt != 10 || p.live(time.Second) != 5 {
		t.Errorf("%d burnt and %d live, want 10 and 5", burnt, p.live(time.Second))
	}
}

// What a ledger is told to settle moves from one of its terms to another: their sum stays.
func TestLedgerMovesTokens(t *testing.T) {
	for _, c := range []struct {
		name string
		step func(*ledger)
		want ledger
	}{
		{"a return is accepted", func(l *ledger) { l.returnAccepted(4) }, ledger{3, 5, 4, 0}},
		{"a refund is credited", func(l *ledger) { l.refundAnswered(2, lua.Reply{}) }, ledger{7, 3, 2, 0}},
		{
			"a refund is not credited", func(l *ledger) { l.refundAnswered(2, lua.Reply{Flags: lua.Unapplied}) },
			ledger{7, 3, 0, 2},
		},
		{"returns are burnt", func(l *ledger) { l.burnReturn() }, ledger{0, 5, 0, 7}},
		{"a refund is burnt", func(l *ledger) { l.burnRefund(5) }, ledger{7, 0, 0, 5}},
	} {
		l := ledger{toReturn: 7, toRefund: 5}
		if c.step(&l); l != c.want || l.unspent() != 12 {
			t.Errorf("%s: %+v, want %+v", c.name, l, c.want)
		}
	}
}

// A debt never counts more as certain than there is, and never falls below what is certain or under
// way.
func TestDebtKeepsWhatIsCertain(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var d debt
		for range rapid.IntRange(1, 30).Draw(t, "steps") {
			n := rapid.Int64Range(1, 1<<51).Draw(t, "n")
			switch rapid.SampledFrom([]string{"admit", "charge", "report", "lower"}).Draw(t, "step") {
			case "admit":
				d.admitted += n
			case "charge":
				d.admitted, d.certain = d.admitted+n, d.certain+n
			case "report":
				admitted, certain := d.report()
				if admitted > maxDebt || certain > admitted {
					t.Fatalf("%+v reports %d, %d of it certain", d, admitted, certain)
				}
				c := Call{certain: certain}
				c.Debt = admitted
				d.accepted(c)
			case "lower":
				underWay := rapid.Int64Range(0, d.admitted-d.certain).Draw(t, "under way")
				if d.lower(n, underWay); d.admitted < d.certain+underWay {
					t.Fatalf("%+v, with %d under way", d, underWay)
				}
			}
			if d.certain < 0 || d.certain > d.admitted {
				t.Fatalf("%+v", d)
			}
		}
	})
}

// Nobody waits for nothing, and there is nothing to take where there never was a lease: a part that
// a bucket does not have answers as an empty one.
func TestAbsentPartsAnswerAsEmptyOnes(t *testing.T) {
	var l *leaseState
	var p *pending
	var w *windowState
	l.renewFrom(0)
	l.callSent()
	l.dropEnded(0)
	l.debtAccepted(Call{})
	p.stopRepeating()
	w.replied(Call{}, 0, lua.Reply{})
	w.countsUntil(Call{}, lua.Reply{}, 0)
	w.forgetDebt()
	w.forgetRefunds()
	if left, ok := l.take(0, 1); ok || left != 0 || l.live(0) != 0 || l.lives(0) || l.unspent() != 0 ||
		l.generation() != 0 {
		t.Error("a lease that there is not holds something")
	}
	if l.out(0) || l.backsOff(0) || l.owes() || l.hasNews() || l.owing(FailOpen) != 0 ||
		l.stats(FailLocal) != (Stats{}) {
		t.Error("a lease that there is not owes something")
	}
	if p.calling() || p.carries(0) || p.count()+p.crediting() > 0 || p.request(0, 0, 0, 1).n != 0 {
		t.Error("somebody waits where nobody does")
	}
	if w.refunds(1, false) != nil || w.endsWithWindow() || !w.refundAt(1, nil, lua.TokenBucket) {
		t.Error("windows are known of a bucket that refills")
	}
}
