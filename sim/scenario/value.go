package scenario

import (
	"fmt"
	"math"
	"math/big"
	"strconv"
	"strings"
	"time"

	"github.com/tiered-limiter/tiered-limiter/internal/ratetext"
)

// How values are written. Whatever is printed here is read back as exactly the same value: decimal
// points are moved in the text, not by arithmetic.

// String is d as Go writes it, but with us for microseconds and without parts that are zero: 300us,
// 1.5s, 1m, 1h30m.
func (d Duration) String() string { return ratetext.FormatDuration(time.Duration(d)) }

func parseDuration(text string) (Duration, bool) {
	d, err := time.ParseDuration(text)
	return Duration(d), err == nil
}

// String is p as a scenario has it: 10%, 3, or nothing for all.
func (p Part) String() string {
	switch {
	case p.Share != 0 && p.Count != 0:
		return fmt.Sprintf("%s and %d", formatRatio(p.Share), p.Count) // which is not valid
	case p.Share != 0:
		return formatRatio(p.Share)
	case p.Count != 0:
		return strconv.Itoa(p.Count)
	}
	return ""
}

func parsePart(text string) (p Part, ok bool) {
	if strings.HasSuffix(text, "%") {
		p.Share, ok = parseRatio(text)
		return p, ok
	}
	n, ok := ratetext.ParseWhole(text)
	return Part{Count: int(n)}, ok && int64(int(n)) == n
}

func parsePlain(text string) (float64, bool) { return parseNumber(text, 0) }

func formatPlain(v float64) string { return formatNumber(v, 0) }

// parseNumber reads a decimal number of 0 or more, times ten to the power of shift.
func parseNumber(text string, shift int) (float64, bool) {
	mantissa, exponent, scientific := strings.Cut(text, "e")
	if e, err := strconv.Atoi(exponent); scientific && err != nil {
		return 0, false
	} else {
		shift += e
	}
	mantissa, ok := ratetext.WithoutSeparators(mantissa)
	if !ok || strings.Trim(mantissa, "0123456789.") != "" { // no sign, no hexadecimal, no infinity
		return 0, false
	}
	v, err := strconv.ParseFloat(mantissa+"e"+strconv.Itoa(shift), 64)
	return v, err == nil
}

// formatNumber writes v times ten to the power of shift with as few digits as say exactly which
// float64 v is.
func formatNumber(v float64, shift int) string {
	if math.IsNaN(v) || math.IsInf(v, 0) {
		return strconv.FormatFloat(v, 'f', -1, 64)
	}
	mantissa, exponent, _ := strings.Cut(strconv.FormatFloat(v, 'e', -1, 64), "e")
	e, _ := strconv.Atoi(exponent)
	e += shift
	_, fraction, _ := strings.Cut(mantissa, ".")
	exact, _ := new(big.Rat).SetString(mantissa + "e" + strconv.Itoa(e))
	return exact.FloatString(max(0, len(fraction)-e))
}

// parseRatio reads 5% or 0.05.
func parseRatio(text string) (float64, bool) {
	if percent, ok := strings.CutSuffix(text, "%"); ok {
		return parseNumber(percent, -2)
	}
	return parseNumber(text, 0)
}

func formatRatio(v float64) string { return formatNumber(v, 2) + "%" }

// parseRate reads 1000/s, 100/min, 2.5/100ms as so many per second.
func parseRate(text string) (float64, bool) {
	amount, period, found := strings.Cut(text, "/")
	n, ok := parseNumber(amount, 0)
	per, good := ratetext.ParsePeriod(period)
	if !found || !ok || !good {
		return 0, false
	}
	return n / per.Seconds(), true
}

func formatRate(v float64) string { return formatNumber(v, 0) + "/s" }

// parseSeconds reads a duration as seconds.
func parseSeconds(text string) (float64, bool) {
	d, ok := parseDuration(text)
	return float64(d) / 1e9, ok && d >= 0
}

func formatSeconds(v float64) string {
	if !(v >= 0 && v <= longest) {
		return formatPlain(v) + "s" // which is not valid
	}
	return Duration(math.Round(v * 1e9)).String()
}

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
