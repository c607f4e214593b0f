package lua

// A direct take has a short form, which leaves out what such a call does not say. It has at most
// shortLimits limits: with more, the number of arguments would not tell the forms apart.
const (
	shortCall   = 6 // arguments before the limits
	longCall    = 21
	shortLimits = 5
	limitFields = 3
	mostShort   = shortCall + shortLimits*limitFields + 1 // with MaxDebt
)

// DirectArguments is the number of arguments of a direct take by one limit, without MaxDebt.
const DirectArguments = shortCall + limitFields

// order appends the places of a call's numbers to to, in the order of the arguments. Those of the
// limits follow them, and MaxDebt is the last if it is not 0. A nil in the long form is the lease
// id, the second one MaxBack.
func (c *Call) order(to []*int64, short bool) []*int64 {
	to = append(to, &c.Want, &c.Min, &c.TTL)
	if short {
		return append(to, &c.Deadline, &c.Epoch, &c.Now)
	}
	return append(to, nil, &c.Seq, &c.Ack, &c.Hold, &c.Ret, &c.Refund, &c.Debt, &c.Deadline, &c.Epoch, &c.Now, nil, &c.Owed, &c.Seen,
		&c.Fleet, &c.At, &c.To, &c.Since, &c.Reset)
}

// Arguments appends ARGV of the call to args: whole numbers as int64, and the lease id as a string.
// A direct take has the short form. A call that says more than the short form can has the long one,
// so that one that breaks a rule is refused, not made legal.
//
// like are the arguments of another call, or nil. What is the same number there is not allocated
// again: most of it is, among the calls of a policy.
func (c *Call) Arguments(args, like []any) []any {
	return c.arguments(args, like, c.isShort())
}

// LongArguments is Arguments in the form that says all.
func (c *Call) LongArguments() []any { return c.arguments(nil, nil, false) }

func (c *Call) arguments(args, like []any, short bool) []any {
	first := len(args)
	number := func(x int64) {
		if at := len(args) - first; at < len(like) && like[at] == any(x) {
			args = append(args, like[at])
		} else {
			args = append(args, x)
		}
	}
	var room [longCall]*int64
	places, lease := c.order(room[:0], short), true
	for _, x := range places {
		switch {
		case x != nil:
			number(*x)
		case lease:
			lease = false
			args = append(args, c.Lease)
		default:
			number(MaxBack.Microseconds())
		}
	}
	for i := range 1 + len(c.Also) {
		for _, x := range c.limitArguments(i) {
			number(x)
		}
	}
	if c.MaxDebt != 0 {
		number(c.MaxDebt)
	}
	return args
}

// limitArguments are the numbers of one of the limits, from 0, as the scripts get them.
func (c *Call) limitArguments(i int) [limitFields]int64 {
	l := c.limit(i)
	return [...]int64{l.Cap, l.Period, algorithms[c.Algorithm].third(l, c)}
}

// ArgumentCount is how many Arguments appends.
func (c *Call) ArgumentCount() int {
	n := longCall
	if c.isShort() {
		n = shortCall
	}
	if c.MaxDebt != 0 {
		n++
	}
	return n + limitFields*(1+len(c.Also))
}

// isShort reports whether the short form says all of the call: a direct take that breaks no rule
// about what it leaves out.
func (c *Call) isShort() bool {
	return c.Lease == "" && c.Hold|c.Ret|c.Refund|c.Debt|c.Owed|c.At|c.To|c.Since|c.Reset == 0 && c.Fleet >= 1 &&
		len(c.Also) < shortLimits && min(c.Seq, c.Ack, c.Seen) >= 0 && max(c.Seq, c.Ack, c.Seen, c.Fleet) < Whole
}
