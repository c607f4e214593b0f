package faultnet

import (
	"errors"
	"fmt"
	"time"
)

// Faults is what is wrong with a network; the zero value is a good one. Each fault is by itself: a
// black hole does not hold up dialing, as HoldDial does.
type Faults struct {
	// Refuse makes dialing fail at once, as if nobody listened: ECONNREFUSED in a *net.OpError.
	Refuse bool
	// HoldDial leaves dialing without an answer. It ends with its context, or goes on when the
	// fault is lifted.
	HoldDial bool

	// Delay, 0 or more, is by how much later what is written arrives, each way. Dialing takes two
	// of them.
	Delay time.Duration
	// Jitter, 0 or more, is the most that comes to the delay, uniformly. What is written first
	// still arrives first.
	Jitter time.Duration

	// HoldOut is a black hole for what is written: Write succeeds, and nothing arrives. A stream
	// does not go on after a gap: a connection that lost bytes is silent in this direction for the
	// rest of its life, healed or not. One that was not written to meanwhile is as good as before.
	// What was under way already arrives.
	HoldOut bool
	// HoldIn is a black hole for what is read: nothing arrives, not even that the far end hung up.
	// What it sent meanwhile is not lost, it arrives when the fault is lifted.
	HoldIn bool

	// CutBefore, 0 to 1, is the probability per Write that the connection is cut instead: the far
	// end sees nothing of it, and loses what is under way.
	CutBefore float64
	// CutAfter, 0 to 1, is the probability per Write that the connection is cut after it: the Write
	// arrives, and the cut takes the place of the first byte that comes back from then on. So what
	// was asked has been done for certain, and nobody hears of it. Where nothing comes back nothing
	// is cut.
	CutAfter float64
}

// validate reports all that is wrong with f, each problem with its field, value and rule.
func (f *Faults) validate() error {
	var problems []error
	must := func(ok bool, field string, value any, rule string) {
		if !ok {
			problems = append(problems, fmt.Errorf("faultnet: Faults.%s is %v: must be %s", field, value, rule))
		}
	}
	must(f.Delay >= 0, "Delay", f.Delay, "0 or more")
	must(f.Jitter >= 0, "Jitter", f.Jitter, "0 or more")
	must(f.CutBefore >= 0 && f.CutBefore <= 1, "CutBefore", f.CutBefore, "a probability, 0 to 1")
	must(f.CutAfter >= 0 && f.CutAfter <= 1, "CutAfter", f.CutAfter, "a probability, 0 to 1")
	return errors.Join(problems...)
}

// late reports whether bytes take time.
func (f *Faults) late() bool { return f.Delay > 0 || f.Jitter > 0 }

// due returns when what is sent now arrives, with such a part of the jitter, 0 to 1.
func (f *Faults) due(now time.Time, spread float64) time.Time {
	return now.Add(f.Delay).Add(time.Duration(float64(f.Jitter) * spread))
}

// Counts is what happened on a network since it was made. A test looks at it to see that a fault
// has really occurred.
type Counts struct {
	Dialed    int64 // connections made, those of [Net.Conn] included
	Refused   int64 // dials refused
	Held      int64 // dials left without an answer, for a while or for good
	Late      int64 // pieces of data, or ends of connections, that a delay or jitter held up, either way
	Lost      int64 // writes, or rests of them, that a black hole swallowed
	Withheld  int64 // pieces of data, or ends of connections, that came in during HoldIn
	CutBefore int64 // connections cut instead of a write
	CutAfter  int64 // connections cut instead of a reply
	CutNow    int64 // connections cut by [Net.Cut]
}

// Cut is the number of connections cut for whatever reason.
func (c Counts) Cut() int64 { return c.CutBefore + c.CutAfter + c.CutNow }
