package local

import (
	"github.com/tiered-limiter/tiered-limiter/lua"
)

// ledger counts what became of the tokens that were granted and not spent, since the bucket was
// made.
//
// Invariant: granted = spent + pot + toReturn + toRefund + returned + burnt, and no term is
// negative. The bucket keeps granted. Nobody keeps spent: it is what the equation leaves, so the
// hot path counts nothing.
type ledger struct {
	toReturn int64 // tokens of the lease that are to go back. Each call repeats them until a reply accepts them
	toRefund int64 // tokens that were admitted or granted directly, then not used. They are sent once
	returned int64 // either of them, accepted by Redis
	burnt    int64 // ended unspent, or lost on the way back
}

// unspent is the part of what was granted that is neither spent nor in the pot.
func (l *ledger) unspent() int64 { return l.toReturn + l.toRefund + l.returned + l.burnt }

// returnAccepted notes that Redis took n tokens of the lease back.
func (l *ledger) returnAccepted(n int64) {
	l.toReturn -= n
	l.returned += n
}

// refundAnswered notes that a call with n tokens to refund was answered. They are burnt if Redis
// did not credit them. They are not sent again: once the record of the call is over, a late copy of
// it could credit them a second time.
func (l *ledger) refundAnswered(n int64, r lua.Reply) {
	if r.Flags&lua.Unapplied != 0 {
		l.burnRefund(n)
		return
	}
	l.toRefund -= n
	l.returned += n
}

// burnReturn gives up all tokens of the lease that were to go back.
func (l *ledger) burnReturn() {
	l.burnt += l.toReturn
	l.toReturn = 0
}

// burnRefund gives up n tokens that were to be refunded.
func (l *ledger) burnRefund(n int64) {
	l.toRefund -= n
	l.burnt += n
}
