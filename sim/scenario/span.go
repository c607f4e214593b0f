package scenario

import (
	"fmt"
	"math/bits"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// set reads text into the value at p. If that cannot be, it says by which rule and leaves the value as it was.
func (sp *span) set(p any, text string) (rule string) {
	var ok bool
	switch p := p.(type) {
	case *int:
		return assign(p, text, sp, "a whole number, as in 50 or 1_000", func(text string) (int, bool) {
			n, ok := parseWhole(text)
			return int(n), ok && int64(int(n)) == n
		})
	case *int64:
		return assign(p, text, sp, "a whole number, as in 50 or 1_000_000", parseWhole)
	case *Duration:
		return assign(p, text, sp, "a duration, as in 300us, 1.5s or 1h", parseDuration)
	case *Part:
		return assign(p, text, sp, "a number of processes or a share of them, as in 3 or 10%", parsePart)
	case *string:
		return assign(p, text, sp, "", func(text string) (string, bool) { return text, true })
	case *float64:
		switch sp.scale {
		case perSecond:
			return assign(p, text, sp, "a number per period, as in 1000/s, 100/min or 10/100ms", parseRate)
		case ratio:
			return assign(p, text, sp, "a ratio, as in 5% or 0.05", parseRatio)
		}
		return assign(p, text, sp, "a number, as in 1.1", func(text string) (float64, bool) { return parseNumber(text, 0) })
	case perPeriod:
		amount, period, found := strings.Cut(text, "/")
		var v struct {
			tokens int64
			per    Duration
		}
		v.tokens, ok = parseWhole(amount)
		if ok {
			v.per, ok = parsePeriod(period)
		}
		if !found || !ok {
			return "must be a whole number per period, as in 1000/s, 100/min or 10/100ms"
		}
		if rule := cmpOr(tokensSpan.broken(&v.tokens), perSpan.broken(&v.per)); rule != "" {
			return rule
		}
		*p.tokens, *p.per = v.tokens, v.per
		return ""
	}
	panic(fmt.Sprintf("scenario: a field of type %T", p)) // the tables are ours
}

// assign is set for one type.
func assign[V any](p *V, text string, sp *span, form string, parse func(string) (V, bool)) (rule string) {
	v, ok := parse(text)
	if !ok {
		return "must be " + form
	}
	if rule := sp.broken(&v); rule != "" {
		return rule
	}
	*p = v
	return ""
}

func cmpOr(a, b string) string {
	if a != "" {
		return a
	}
	return b
}

// The two halves of a limit's rate.
var (
	tokensSpan = span{min: 1, max: maxTokens, notation: "tokens"}
	perSpan    = span{min: micro, max: maxPer, wholeMicro: true, notation: "period"}
)

// broken is the rule that the value at p breaks, empty if none. Zero is a value like others here.
func (sp *span) broken(p any) string {
	ok := false
	switch p := p.(type) {
	case *int:
		ok = sp.whole(int64(*p))
	case *int64:
		ok = sp.whole(*p)
	case *Duration:
		ok = sp.whole(int64(*p)) && !(sp.wholeMicro && int64(*p)%micro != 0)
	case *float64:
		ok = sp.real(*p)
	case *Part:
		switch {
		case p.Share != 0 && p.Count != 0:
			return "must have a share or a count, not both"
		case p.Share != 0:
			ok = sp.real(p.Share)
		default:
			ok = sp.whole(int64(p.Count))
		}
	case *string:
		switch {
		case sp.words != nil:
			for _, w := range sp.words {
				ok = ok || w == *p
			}
			if !ok {
				return oneOf(*p, sp.words)
			}
		case sp.most > 0:
			ok = isReply(*p, int(sp.most))
		default:
			ok = isName(*p)
		}
	}
	if ok {
		return ""
	}
	return sp.rule(p)
}

func (sp *span) whole(v int64) bool {
	return v >= sp.min && v <= sp.max && !(sp.notZero && v == 0) || sp.also != 0 && v == sp.also
}

func (sp *span) real(v float64) bool { return v >= sp.least && v <= sp.most }

// isName reports whether a limit may have this name: the limiter's rule for the name of a policy.
func isName(s string) bool {
	return s != "" && len(s) <= 64 && strings.Trim(s, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-") == ""
}

// isReply reports whether Redis could say so: a word in capitals, and perhaps more.
func isReply(s string, most int) bool {
	for i := range len(s) {
		if s[i] < ' ' || s[i] > '~' {
			return false
		}
	}
	word, _, _ := strings.Cut(s, " ")
	return word != "" && len(s) <= most && 'A' <= word[0] && word[0] <= 'Z' && strings.ToUpper(word) == word
}

// isText reports whether s is some characters that can be seen, and blanks.
func isText(s string, least, most int) bool {
	if n := utf8.RuneCountInString(s); !utf8.ValidString(s) || n < least || n > most {
		return false
	}
	for _, r := range s {
		if !unicode.IsPrint(r) {
			return false
		}
	}
	return true
}

// rule says what a value like that at p must be, and what leaving it out means.
func (sp *span) rule(p any) string {
	r := "must be " + sp.span(p)
	if _, ok := p.(*string); !ok && sp.left != "" {
		r += ", or left out for " + sp.left
	}
	return r
}

// span says which values p may have: "1 to 5000".
func (sp *span) span(p any) string {
	switch p := p.(type) {
	case *Duration:
		s := Duration(sp.min).String() + " to " + Duration(sp.max).String()
		if sp.max == maxPer {
			s = "1us to 100 years, in whole microseconds"
		}
		if sp.notZero {
			s += ", and not 0s"
		}
		return s
	case *int, *int64:
		s := power(sp.min) + " to " + power(sp.max)
		if sp.notation != "" {
			s += " " + sp.notation
		}
		if sp.also != 0 {
			s += ", or " + strconv.FormatInt(sp.also, 10) + " for " + sp.alsoMeans
		}
		return s
	case *float64:
		write := func(v float64) string { return formatNumber(v, 0) }
		switch sp.scale {
		case ratio:
			write = formatRatio
		case perSecond:
			write = formatRate
		}
		return write(sp.least) + " to " + write(sp.most)
	case *Part:
		return power(sp.min) + " to " + power(sp.max) + " processes, or " + formatRatio(sp.least) + " to " + formatRatio(sp.most) + " of them"
	case perPeriod:
		return tokensSpan.span(p.tokens) + ", per " + perSpan.span(p.per)
	}
	switch {
	case sp.words != nil:
		return "one of " + strings.Join(sp.words, ", ")
	case sp.most > 0:
		return fmt.Sprintf("1 to %d ASCII characters that begin with a word in capitals", int(sp.most))
	}
	return "1 to 64 of " + nameRule
}

// power writes the limits that are powers of two as such.
func power(v int64) string {
	if v >= 1<<16 && bits.OnesCount64(uint64(v)) == 1 {
		return "2^" + strconv.Itoa(bits.TrailingZeros64(uint64(v)))
	}
	return strconv.FormatInt(v, 10)
}

// isZero reports whether the value at p is what it is when it was left out.
func isZero(p any) bool {
	switch p := p.(type) {
	case *int:
		return *p == 0
	case *int64:
		return *p == 0
	case *float64:
		return *p == 0
	case *Duration:
		return *p == 0
	case *string:
		return *p == ""
	case *Part:
		return *p == Part{}
	case perPeriod:
		return *p.tokens == 0 && *p.per == 0
	}
	return false
}

// format writes the value at p.
func (sp *span) format(p any) string {
	switch p := p.(type) {
	case *int:
		return strconv.Itoa(*p)
	case *int64:
		return strconv.FormatInt(*p, 10)
	case *Duration:
		return p.String()
	case *Part:
		if p.Share != 0 && p.Count != 0 {
			return fmt.Sprintf("%s and %d", formatRatio(p.Share), p.Count)
		}
		return p.String()
	case *string:
		return *p
	case *float64:
		switch sp.scale {
		case ratio:
			return formatRatio(*p)
		case perSecond:
			return formatRate(*p)
		}
		return formatNumber(*p, 0)
	case perPeriod:
		return strconv.FormatInt(*p.tokens, 10) + "/" + formatPeriod(*p.per)
	}
	return ""
}
