package scenario

import "time"

// units are what the units are called, how they are written, and the largest value of an expectation.
var units = [...]struct {
	name, form string
	most       float64
}{
	Tokens:  {"tokens", "1000", maxValue},
	Ratio:   {"parts of one", "5% or 0.05", 1e6},
	Seconds: {"time", "1ms or 1.5s", float64(maxLength) / float64(time.Second)},
	PerSec:  {"calls per second", "500/s or 500", maxRate},
	Count:   {"plain numbers", "80", maxValue},
}

// String names the unit: tokens, parts of one, time, calls per second, plain numbers.
func (u Unit) String() string { return units[u].name }

func (u Unit) most() float64 { return units[u].most }

// span says which values there are.
func (u Unit) span() string {
	if u == Seconds {
		return "0s to " + Duration(maxLength).String()
	}
	return u.Format(0) + " to " + u.Format(u.most())
}

// Format writes a value of an Expectation as text has it: 1000, 5%, 1.5ms, 500/s.
func (u Unit) Format(v float64) string {
	switch u {
	case Ratio:
		return formatRatio(v)
	case Seconds:
		return formatSeconds(v)
	case PerSec:
		return formatRate(v)
	}
	return formatNumber(v, 0)
}

// parse reads a value in the unit; rule says what is wrong with it.
func (u Unit) parse(text string) (v float64, rule string) {
	ok := false
	switch u {
	case Ratio:
		v, ok = parseRatio(text)
	case Seconds:
		v, ok = parseSeconds(text)
	case PerSec:
		if v, ok = parseNumber(text, 0); !ok {
			v, ok = parseRate(text)
		}
	default:
		v, ok = parseNumber(text, 0)
	}
	if !ok {
		return 0, "must be in " + u.String() + ", as in " + units[u].form
	}
	return v, ""
}
