package picture

import (
	"math"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// unknown stands for what a report does not know.
const unknown = "—"

// largest is above everything that a report can mean: tokens, microseconds, anything per second.
const largest = 1e15

// known reports whether v is a value: −1 is none in a report, and neither is what is no finite number.
func known(v float64) bool { return v >= 0 && v <= largest }

// round returns v with three significant digits, but never fewer than its whole part has.
func round(v float64) string {
	digits := 0
	if v != 0 && math.Abs(v) < 1000 {
		digits = min(max(2-int(math.Floor(math.Log10(math.Abs(v)))), 0), 6)
	}
	text := strconv.FormatFloat(v, 'f', digits, 64)
	if strings.Contains(text, ".") {
		text = strings.TrimRight(strings.TrimRight(text, "0"), ".")
	}
	return text
}

// amount is a number for people: 12 345 with narrow spaces, 4.13.
func amount(v float64) string {
	if !known(v) {
		return unknown
	}
	text := round(v)
	whole, part, _ := strings.Cut(text, ".")
	if len(whole) > 4 {
		var b strings.Builder
		for i, c := range whole {
			if i > 0 && (len(whole)-i)%3 == 0 {
				b.WriteString("\u202f")
			}
			b.WriteRune(c)
		}
		whole = b.String()
	}
	if part != "" {
		return whole + "." + part
	}
	return whole
}

// short is a number on an axis, where there is room for five characters.
func short(v float64) string {
	for _, u := range []struct {
		one  float64
		name string
	}{{1e12, "T"}, {1e9, "G"}, {1e6, "M"}, {1e3, "k"}} {
		if v >= u.one && v >= 10000 {
			return round(v/u.one) + u.name
		}
	}
	return amount(v)
}

// percent is a ratio for people.
func percent(v float64) string { return with(v, v*100, "\u202f%") }

// perSecond is a rate for people.
func perSecond(v float64) string { return with(v, v, "/s") }

// with is an amount and its unit, if v is known.
func with(v, inUnits float64, unit string) string {
	if !known(v) {
		return unknown
	}
	return amount(inUnits) + unit
}

// length is a time for people, from seconds.
func length(s float64) string {
	switch {
	case s == 0:
		return "0\u202fs"
	case s < 1e-3:
		return with(s, s*1e6, "\u202fµs")
	case s < 1:
		return with(s, s*1e3, "\u202fms")
	case s < 120:
		return with(s, s, "\u202fs")
	case s < 7200:
		return with(s, s/60, "\u202fmin")
	}
	return with(s, s/3600, "\u202fh")
}

// clip returns at most n characters of text as [clean] leaves it, and an ellipsis for the others.
func clip(text string, n int) string {
	text = clean(text[:min(len(text), 4*n+4)])
	if utf8.RuneCountInString(text) <= n {
		return text
	}
	return string([]rune(text)[:max(n-1, 0)]) + "…"
}

// clean replaces what is no UTF-8, and characters that are not seen but change how others are: control characters,
// for which a drawing has no place, and those that turn the direction of text.
func clean(text string) string {
	return strings.Map(func(c rune) rune {
		switch {
		case c == '\n' || c == '\t':
			return c
		case unicode.IsControl(c), unicode.Is(unicode.Bidi_Control, c), c == '\ufeff',
			c >= 0xfffe && c&0xfffe == 0xfffe:
			return utf8.RuneError
		}
		return c
	}, strings.ToValidUTF8(text, string(utf8.RuneError)))
}

// plural is n and the word for it.
func plural(n int, one, more string) string {
	if n == 1 {
		return "1 " + one
	}
	return amount(float64(n)) + " " + more
}
