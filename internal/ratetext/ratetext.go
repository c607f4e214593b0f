// Package ratetext reads and writes rates and periods, such as 100/min, 1000/s and 5/30d. Limits
// and scenarios share it.
package ratetext

import (
	"strconv"
	"strings"
	"time"
)

const day = 24 * time.Hour

// periods are the words for a period. Of several words for one period the first is the one that is
// written.
var periods = []struct {
	word   string
	period time.Duration
}{
	{"s", time.Second},
	{"min", time.Minute},
	{"h", time.Hour},
	{"day", day},
	{"week", 7 * day},
	{"ms", time.Millisecond},
	{"us", time.Microsecond},
	{"sec", time.Second},
	{"second", time.Second},
	{"m", time.Minute},
	{"minute", time.Minute},
	{"hour", time.Hour},
	{"d", day},
	{"w", 7 * day},
}

// Parse reads a rate: a whole number, a slash and a period. It reports false if it cannot read all
// of it. It then returns 0 for a part that it cannot read. It does not check ranges.
func Parse(text string) (tokens int64, period time.Duration, ok bool) {
	amount, per, _ := strings.Cut(text, "/")
	tokens, isWhole := ParseWhole(amount)
	period, isPeriod := ParsePeriod(per)
	return tokens, period, isWhole && isPeriod
}

// Format writes a rate so that Parse returns the same.
func Format(tokens int64, period time.Duration) string {
	return strconv.FormatInt(tokens, 10) + "/" + FormatPeriod(period)
}

// ParsePeriod reads a unit, such as min, a whole number of a unit, such as 15min, 30d or 2weeks, or
// what [time.ParseDuration] reads. It reports false if the text is neither, or if the period is not
// positive.
func ParsePeriod(text string) (time.Duration, bool) {
	number := text[:len(text)-len(strings.TrimLeft(text, "0123456789_"))]
	unit := text[len(number):]
	for _, p := range periods {
		switch plural := p.word + "s"; {
		case unit == p.word && number == "":
			return p.period, true
		case unit == p.word, unit == plural && len(p.word) > 2 && number != "":
			n, ok := ParseWhole(number)
			if d := time.Duration(n) * p.period; ok && n > 0 && d/p.period == time.Duration(n) {
				return d, true
			}
			return 0, false
		}
	}
	d, err := time.ParseDuration(text)
	if err != nil || d <= 0 {
		return 0, false
	}
	return d, true
}

// FormatPeriod writes a period so that ParsePeriod returns the same, if it is positive.
func FormatPeriod(d time.Duration) string {
	for _, p := range periods {
		if p.period == d {
			return p.word
		}
	}
	if d > 0 && d%day == 0 {
		return strconv.FormatInt(int64(d/day), 10) + "d"
	}
	return FormatDuration(d)
}

// FormatDuration writes d as [time.Duration.String] does, but with us for microseconds and without
// parts that are zero: 300us, 1.5s, 1m, 1h30m.
func FormatDuration(d time.Duration) string {
	s := strings.Replace(d.String(), "µ", "u", 1)
	if strings.HasSuffix(s, "m0s") {
		s = s[:len(s)-2]
	}
	if strings.HasSuffix(s, "h0m") {
		s = s[:len(s)-2]
	}
	return s
}

// maxDigits bounds the text of a number.
const maxDigits = 400

// ParseWhole reads a whole number. An underscore may stand between two digits.
func ParseWhole(text string) (int64, bool) {
	digits, ok := WithoutSeparators(text)
	if !ok || strings.HasPrefix(text, "+") {
		return 0, false
	}
	n, err := strconv.ParseInt(digits, 10, 64)
	if err != nil {
		return 0, false
	}
	return n, true
}

// WithoutSeparators removes the underscores of a number. It reports false if one does not stand
// between two digits, or if the text is too long for a number.
func WithoutSeparators(text string) (string, bool) {
	if len(text) > maxDigits {
		return "", false
	}
	digit := func(i int) bool { return i >= 0 && i < len(text) && '0' <= text[i] && text[i] <= '9' }
	for i := range len(text) {
		if text[i] == '_' && (!digit(i-1) || !digit(i+1)) {
			return "", false
		}
	}
	return strings.ReplaceAll(text, "_", ""), true
}
