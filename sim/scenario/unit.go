package scenario

import "time"

// units are what the units are called, how they are written, and the largest value of an expectation.
var units = [...]struct {
	name, form string
	most       float64
	parse      func(text string) (float64, bool)
	format     func(v float64) string
}{
	Tokens:  {"tokens", "1000", maxValue, parsePlain, formatPlain},
	Ratio:   {"parts of one", "5% or 0.05", 1e6, parseRatio, formatRatio},
	Seconds: {"time", "1ms or 1.5s", time.Duration(maxLength).Seconds(), parseSeconds, formatSeconds},
	PerSec:  {"calls per second", "500/s or 500", maxRate, parsePerSecond, formatRate},
	Count:   {"plain numbers", "80", maxValue, parsePlain, formatPlain},
}

func parsePerSecond(text string) (v float64, ok bool) {
	if v, ok = parsePlain(text); !ok {
		return parseRate(text)
	}
	return v, ok
}

// String names the unit: tokens, parts of one, time, calls per second, plain numbers.
func (u Unit) String() string { return units[u].name }

// Format writes a value of an Expectation as text has it: 1000, 5%, 1.5ms, 500/s.
func (u Unit) Format(v float64) string { return units[u].format(v) }

// parse reads a value in the unit; rule says what is wrong with it.
func (u Unit) parse(text string) (v float64, rule string) {
	v, ok := units[u].parse(text)
	least, most := 0.0, units[u].most
	if u == Seconds && v != 0 {
		least = 1e-9 // what a duration can say
	}
	switch {
	case !ok:
		return 0, "must be in " + u.String() + ", as in " + units[u].form
	case v >= least && v <= most:
		return v, ""
	case u == Seconds:
		return 0, "must be 0s to " + maxLength.String() + ", in time"
	}
	return 0, "must be " + u.Format(0) + " to " + u.Format(most) + ", in " + u.String()
}
