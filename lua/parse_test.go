package lua

import "strconv"

// ParseCall reads a call from KEYS[1] and ARGV, to show that they say all of it. It reports false
// if there are too many or too few arguments, or one is no number.
func ParseCall(a Algorithm, bucket string, argv []string) (c Call, ok bool) {
	c.Bucket, c.Algorithm, c.Fleet = bucket, a, 1
	short, before := len(argv) <= mostShort, longCall
	if short {
		before = shortCall
	}
	if n := len(argv) - 1; n >= before && n%limitFields == 0 { // limits are threes, and so is what comes before them
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
		case TokenBucket, TokenBuckets:
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
