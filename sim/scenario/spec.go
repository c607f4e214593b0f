package scenario

import (
	"fmt"
	"math/bits"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/tiered-limiter/tiered-limiter/internal/misspelled"
	"github.com/tiered-limiter/tiered-limiter/internal/ratetext"
	"github.com/tiered-limiter/tiered-limiter/lua"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// spec says how the values of a field are written, and which there may be. The type of a value is
// int64 (also of an int), float64, Duration, string, Part, time.Time or tiered.Limit.
type spec struct {
	form    string                          // what a value looks like; empty if any text is one
	span    string                          // which values there may be
	words   []string                        // if they are these only
	pattern string                          // of a text
	why     func(text string) (rule string) // which it breaks, in place of the form
	parse   func(text string) (v any, ok bool)
	has     func(v any) bool
	format  func(v any) string
}

func values[V any](form, span string, parse func(string) (V, bool), has func(V) bool, format func(V) string) spec {
	return spec{
		form: form, span: span,
		parse:  func(text string) (any, bool) { v, ok := parse(text); return v, ok },
		has:    func(v any) bool { return has(v.(V)) },
		format: func(v any) string { return format(v.(V)) },
	}
}

// between are the values from least to most.
func between[V int64 | float64 | Duration](
	form string, least, most V, parse func(string) (V, bool), format, limit func(V) string,
) spec {
	has := func(v V) bool { return v >= least && v <= most }
	return values(form, limit(least)+" to "+limit(most), parse, has, format)
}

func whole(least, most int64) spec {
	return between("a whole number, as in 50 or 1_000", least, most, ratetext.ParseWhole, formatWhole, power)
}

func duration(least, most Duration) spec {
	return between("a duration, as in 300us, 1.5s or 1h", least, most, parseDuration, Duration.String, Duration.String)
}

func number(least, most float64) spec {
	return between("a number, as in 1.1", least, most, parsePlain, formatPlain, formatPlain)
}

func ratio(least, most float64) spec {
	return between("a ratio, as in 5% or 0.05", least, most, parseRatio, formatRatio, formatRatio)
}

func perSecond(least, most float64) spec {
	return between("a number per period, as in 1000/s, 100/min or 10/100ms", least, most, parseRate, formatRate,
		formatRate)
}

// some are 1 to most of the processes, or a share of them.
func some(most int64) spec {
	counts, shares := whole(1, most), ratio(leastShare, 1)
	return values("a number of processes or a share of them, as in 3 or 10%",
		counts.span+" processes, or "+shares.span+" of them", parsePart, func(p Part) bool {
			return p.Share == 0 && counts.has(int64(p.Count)) || p.Count == 0 && shares.has(p.Share)
		}, Part.String)
}

// text is what matches a pattern, of 1 to so many characters.
func text(most int, what, pattern string) spec {
	matches := regexp.MustCompile(pattern).MatchString
	self := func(s string) string { return s }
	has := func(s string) bool { return utf8.ValidString(s) && utf8.RuneCountInString(s) <= most && matches(s) }
	s := values("", fmt.Sprintf("1 to %d %s", most, what), func(s string) (string, bool) { return s, true }, has, self)
	s.pattern = pattern
	return s
}

// printable is a text that people see.
func printable(most int) spec { return text(most, "printable characters", `^[\pL\pM\pN\pP\pS ]+$`) }

// oneWord is a word of a list.
func oneWord(words ...string) spec {
	s := text(maxLearn, "", "")
	s.span, s.words = "one of "+strings.Join(words, ", "), words
	return s
}

// or adds a value outside of the span.
func (s spec) or(also int64, means string) spec {
	has := s.has
	s.has = func(v any) bool { return has(v) || v == any(also) }
	s.span += fmt.Sprintf(", or %d for %s", also, means)
	return s
}

// exceptZero takes zero out of the span of a duration.
func (s spec) exceptZero() spec {
	has := s.has
	s.has = func(v any) bool { return has(v) && v != any(Duration(0)) }
	s.span += ", and not 0s"
	return s
}

// read returns the value that text says, or the rule that it breaks.
func (s *spec) read(text string) (v any, rule string) {
	v, ok := s.parse(text)
	switch {
	case s.words != nil && !slices.Contains(s.words, text):
		return nil, oneOf(text, s.words)
	case !ok && s.why != nil:
		return nil, s.why(text)
	case !ok:
		return nil, "must be " + s.form
	case !s.has(v):
		return nil, "must be " + s.span
	}
	return v, ""
}

// limitText is a limit as the limiter reads it, or several.
func limitText() spec {
	const form = "a whole number per period, as in 1000/s, 100/min or 10/s and 1000/h"
	parse := func(text string) (tiered.Limit, bool) {
		l, err := tiered.ParseLimit(text)
		return l, err == nil
	}
	has := func(l tiered.Limit) bool {
		again, ok := parse(l.String())
		return ok && again == l && l != tiered.Unlimited() && l != tiered.Blocked()
	}
	s := values(form, form, parse, has, tiered.Limit.String)
	s.why = func(text string) string {
		_, err := tiered.ParseLimit(text)
		var rules []string
		for line := range strings.SplitSeq(err.Error(), "\n") {
			_, rule, _ := strings.Cut(line, fmt.Sprintf("limit %.80q: ", text))
			rules = append(rules, rule)
		}
		return strings.Join(rules, "; ")
	}
	return s
}

func algorithms() (words []string) {
	for _, a := range lua.Choices() {
		words = append(words, a.String())
	}
	return words
}

// firstStart is when a run begins at the earliest: time in a bubble does not go back.
var firstStart = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)

// instant is a time.
func instant() spec {
	last := firstStart.AddDate(100, 0, 0)
	parse := func(text string) (time.Time, bool) {
		t, err := time.Parse(time.RFC3339, text)
		return t.UTC(), err == nil
	}
	format := func(t time.Time) string { return t.Format(time.RFC3339Nano) }
	return values("a time, as in 2000-01-01T00:00:00Z", format(firstStart)+" to "+format(last), parse,
		func(t time.Time) bool { return !t.Before(firstStart) && !t.After(last) }, format)
}

// isZero reports whether v is what it is when it is left out.
func isZero(v any) bool { return v == reflect.Zero(reflect.TypeOf(v)).Interface() }

func formatWhole(v int64) string { return strconv.FormatInt(v, 10) }

// power writes the limits that are powers of two as such.
func power(v int64) string {
	if v >= 1<<16 && bits.OnesCount64(uint64(v)) == 1 {
		return "2^" + strconv.Itoa(bits.TrailingZeros64(uint64(v)))
	}
	return formatWhole(v)
}

const missing = "missing" // the value of what is not there

// oneOf is the rule of a word that must be in a list. If word looks like a slip, it names the
// likeliest one.
func oneOf(word string, list []string) string {
	return "must be one of " + strings.Join(list, ", ") + meant(word, list)
}

// meant asks back if a word of the list is at most two letters away: "; did you mean kill?"
func meant(word string, list []string) string {
	if near := misspelled.Meant(word, list); near != "" {
		return "; did you mean " + near + "?"
	}
	return ""
}
