package scenario

import "time"

var longest = time.Duration(maxLength).Seconds() // of a time

// units are what the units are called, and how their values are written.
var units = [...]struct {
	name string
	spec
}{
	Tokens:  {"tokens", numbers("tokens, as in 1000", maxValue, parsePlain, formatPlain)},
	Ratio:   {"parts of one", numbers("a part of one, as in 5% or 0.05", 1e6, parseRatio, formatRatio)},
	Seconds: {"time", numbers("a time, as in 1ms or 1.5s", longest, parseSeconds, formatSeconds)},
	PerSec:  {"calls per second", numbers("calls per second, as in 500/s or 500", maxRate, parsePerSecond, formatRate)},
	Count:   {"plain numbers", numbers("a number, as in 80", maxValue, parsePlain, formatPlain)},
}

// numbers are 0 to most.
func numbers(form string, most float64, parse func(string) (float64, bool), format func(float64) string) spec {
	return between(form, 0, most, parse, format, format)
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
