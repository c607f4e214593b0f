package lua

import "strconv"

// A direct take has a short form, which leaves out what such a call does not say. A call of several buckets or of a sliding
// window has at most shortLimits limits in it: with more, the number of arguments would not tell the forms apart.
const (
	shortBucket  = 10 // the most arguments of the token bucket's short form; Now and MaxDebt may be left out
	shortCall    = 6  // arguments before the limits, in the short form of the others
	longCall     = 21
	longBucket   = 20
	shortLimits  = 5
	limitFields  = 3
	mostNumbers  = 3 + longCall
	shortWindows = shortCall + shortLimits*limitFields + 1 // with MaxDebt
)

// DirectArguments is the number of arguments of a direct take from a token bucket by Redis' own clock, without MaxDebt.
const DirectArguments = shortBucket - 2

// order appends the places of a call's numbers to to, in the order of the arguments; those of the limits of a window follow
// them, and MaxDebt is the last if it is not 0. A token bucket's To follows it if that is not 0. A nil in the long form is the lease id, the second one MaxBack.
func (c *Call) order(to []*int64, short bool) []*int64 {
	if c.Algorithm == TokenBucket {
		to = append(to, &c.Cap, &c.Tokens, &c.Period)
	}
	to = append(to, &c.Want, &c.Min, &c.TTL)
	if short {
		return append(to, &c.Deadline, &c.Epoch, &c.Now)
	}
	to = append(to, nil, &c.Seq, &c.Ack, &c.Hold, &c.Ret, &c.Refund, &c.Debt, &c.Deadline, &c.Epoch, &c.Now, nil, &c.Owed, &c.Seen, &c.Fleet)
	if c.Algorithm != TokenBucket {
		to = append(to, &c.At, &c.To, &c.Since, &c.Reset)
	}
	return to
}

// Arguments appends ARGV of the call to args: whole numbers as int64, and the lease id as a string. A direct take has the short
// form. A call that says more than the short form can has the long one, so that one that breaks a rule is refused, not made legal.
//
// like are the arguments of another call, or nil. What is the same number there is not allocated again: most of it is, among
// the calls of a policy.
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
	var room [mostNumbers]*int64
	places, lease := c.order(room[:0], short), true
	if short && c.Algorithm == TokenBucket && c.readsClock() {
		places = places[:len(places)-1] // Now
	}
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
	if c.Algorithm != TokenBucket {
		for i := range 1 + len(c.Also) {
			for _, x := range c.limitArguments(i) {
				number(x)
			}
		}
	}
	bucketTo := c.Algorithm == TokenBucket && c.To != 0
	if c.MaxDebt != 0 || bucketTo {
		number(c.MaxDebt)
	}
	if bucketTo {
		number(c.To)
	}
	return args
}

// limitArguments are the numbers of one of the limits, from 0, as the scripts other than the token bucket's get them.
func (c *Call) limitArguments(i int) [limitFields]int64 {
	l := c.limit(i)
	return [...]int64{l.Cap, l.Period, algorithms[c.Algorithm].third(l, c)}
}

// ArgumentCount is how many Arguments appends, or a few more.
func (c *Call) ArgumentCount() int {
	switch short := c.isShort(); {
	case c.Algorithm == TokenBucket && short && c.readsClock():
		return DirectArguments
	case c.Algorithm == TokenBucket && short:
		return shortBucket
	case c.Algorithm == TokenBucket:
		return longBucket + 2
	case short:
		return shortCall + limitFields*(1+len(c.Also)) + 1
	}
	return longCall + limitFields*(1+len(c.Also)) + 1
}

// readsClock reports whether the short form of a token bucket leaves out Now, and MaxDebt after it.
func (c *Call) readsClock() bool { return c.Now == 0 && c.MaxDebt == 0 }

// isShort reports whether the short form says all of the call: a direct take that breaks no rule about what it leaves out.
func (c *Call) isShort() bool {
	return c.Lease == "" && c.Hold|c.Ret|c.Refund|c.Debt|c.Owed == 0 && c.Fleet >= 1 &&
		c.To == 0 && (c.Algorithm == TokenBucket || c.At|c.Since|c.Reset == 0 && len(c.Also) < shortLimits) &&
		min(c.Seq, c.Ack, c.Seen) >= 0 && max(c.Seq, c.Ack, c.Seen, c.Fleet) < Whole
}

// ParseCall reads a call from KEYS[1] and ARGV. It reports false if there are too many or too few arguments, or one is no number.
func ParseCall(a Algorithm, bucket string, argv []string) (c Call, ok bool) {
	c.Bucket, c.Algorithm, c.Fleet = bucket, a, 1
	short := len(argv) <= shortWindows
	if a == TokenBucket {
		short = len(argv) <= shortBucket
	}
	first := shortCall // of the arguments that come last and may be left out
	switch {
	case a == TokenBucket && short:
		first = shortBucket - 1
	case a == TokenBucket:
		first = longBucket
	case !short:
		first = longCall
	}
	if a == TokenBucket && len(argv) == shortBucket-2 {
		argv = append(argv[:len(argv):len(argv)], "0") // Now
	}
	if a == TokenBucket && len(argv) == longBucket+2 {
		var err error
		if c.To, err = strconv.ParseInt(argv[longBucket+1], 10, 64); err != nil {
			return Call{}, false
		}
		argv = argv[:longBucket+1]
	}
	if n := len(argv) - 1; n >= first && (a == TokenBucket || n%limitFields == 0) {
		var err error
		if c.MaxDebt, err = strconv.ParseInt(argv[n], 10, 64); err != nil {
			return Call{}, false
		}
		argv = argv[:n]
	}
	lease := true
	for _, x := range c.order(nil, short) {
		if len(argv) == 0 {
			return Call{}, false
		}
		text := argv[0]
		argv = argv[1:]
		if x == nil && lease {
			c.Lease, lease = text, false
			continue
		}
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return Call{}, false
		}
		if x != nil {
			*x = n
		}
	}
	if a == TokenBucket {
		return c, len(argv) == 0
	}
	if len(argv) == 0 || len(argv)%limitFields != 0 {
		return Call{}, false
	}
	for i := 0; i < len(argv); i += limitFields {
		var n [limitFields]int64
		for j := range n {
			var err error
			if n[j], err = strconv.ParseInt(argv[i+j], 10, 64); err != nil {
				return Call{}, false
			}
		}
		l := Limit{Cap: n[0], Period: n[1]}
		switch a {
		case FixedWindow:
			c.Phase = n[2]
		case SlidingWindow:
			l.Span = n[2]
		case TokenBuckets:
			l.Tokens = n[2]
		}
		if i == 0 {
			c.Cap, c.Tokens, c.Period, c.Span = l.Cap, l.Tokens, l.Period, l.Span
		} else {
			c.Also = append(c.Also, l)
		}
	}
	return c, true
}
