package tiered

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
	"unicode/utf8"

	"github.com/tiered-limiter/tiered-limiter/internal/calendar"
	"github.com/tiered-limiter/tiered-limiter/internal/ratetext"
	"github.com/tiered-limiter/tiered-limiter/local"
)

// The words of a limit's text.
const (
	textUnlimited = "unlimited"
	textBlocked   = "blocked"
	textBurst     = "burst"
	textPrecision = "precision"
	textAnd       = "and"
)

// ParseLimit reads "100/s", "100/min burst 200", "1000/h precision 30s", "unlimited" or "blocked".
// Spaces may stand around the slash. The period is s, min, h, day, week, ms or us, or a duration
// such as 10s, 15min, 1h30m or 30d. Or it is one of the calendar, for a FixedWindow: month, quarter
// or year, and with a time zone or a begin also day and week: "10000/month in Europe/Berlin from
// day 17", "70/week from sunday", "100/day in UTC", "1000/year in Europe/London from april 6".
// Digits may be grouped, as in
// 1_000_000. Of several limits "and" stands between them: "10/s burst 20 and 1000/h". The error names all problems, each with its position.
func ParseLimit(text string) (Limit, error) {
	switch words := strings.Fields(text); {
	case len(words) == 1 && words[0] == textUnlimited:
		return unlimited, nil
	case len(words) == 1 && words[0] == textBlocked:
		return blocked, nil
	}
	p := limitParser{text: text}
	l := p.limits()
	if p.errs == nil {
		return l, nil
	}
	if meant := meant(text); meant != "" {
		p.errs[0] = fmt.Errorf("%w: write %s", p.errs[0], meant)
	}
	return Limit{}, errors.Join(p.errs...)
}

// meant returns the text that was probably meant by one that is no limit, "" if that is not known.
func meant(text string) string {
	p := limitParser{text: ratetext.Meant(text)}
	if l := p.limit(); p.errs == nil {
		return l.String()
	}
	if several := separators.Split(text, -1); len(several) > 1 { // 10/s, 1000/h
		p = limitParser{text: strings.Join(several, " "+textAnd+" ")}
		if l := p.limits(); p.errs == nil {
			return l.String()
		}
	}
	switch strings.ToLower(strings.Join(strings.Fields(text), " ")) {
	case "unlimited", "none", "no limit", "no", "off", "inf", "infinite", "infinity", "unbounded", "∞", "-1":
		return textUnlimited
	case "blocked", "0", "0/s", "0/min", "block", "deny", "never":
		return textBlocked
	}
	return ""
}

// separators are what others write between several limits.
var separators = regexp.MustCompile(`\s*[,;+&]\s*`)

// limitParser reads the words of a limit, and collects what is wrong with them.
type limitParser struct {
	text string
	at   int  // the next word is searched from here
	more bool // an "and" was read, and another limit follows
	errs []error
}

// limits reads one limit, or several.
func (p *limitParser) limits() Limit {
	l := p.limit()
	for n := 1; p.more && p.errs == nil; n++ {
		if n == maxLimits {
			p.wrong(p.at-len(textAnd), textAnd, fmt.Sprintf("must stand between %d limits at most", maxLimits))
		}
		p.more = false
		l = l.And(p.limit())
	}
	return l
}

// limit reads one limit, up to the end or to an "and".
func (p *limitParser) limit() (l Limit) {
	amount, at := p.word()
	before, _, found := strings.Cut(amount, "/")
	if found {
		p.at = at + len(before) + 1
	} else if rest := strings.TrimLeft(p.text[p.at:], " \t"); strings.HasPrefix(rest, "/") { // 10 / min
		p.at, found = len(p.text)-len(rest)+1, true
	}
	if !found {
		p.wrong(at, amount, "must be tokens per period, as in 100/min") // "100 per minute": the other words are no burst either
		return l
	}
	amount = before
	per, perAt := p.word()
	l.Tokens, l.Per, _ = ratetext.Parse(amount + "/" + per)
	if !validTokens(l.Tokens) {
		p.wrong(at, amount, "must be a whole number of tokens, 1 to 2^40")
	}
	if unit := calendar.ParseUnit(per); unit >= Month {
		l.Calendar.Unit = unit
	} else if !validPeriod(l.Per) {
		p.wrong(perAt, per, "must be s, min, h, day, week, month, quarter, year, or a duration such as 15min, 1h30m "+
			"or 30d, from 1us to 100 years in whole us")
	}
	defer func() { l.Calendar = l.Calendar.Canonical() }()
	for given := map[string]bool{}; ; {
		name, at := p.word()
		if name == "" {
			return l
		}
		if given[name] {
			p.wrong(at, name, "must be given once")
		}
		given[name] = true
		switch name {
		case textAnd:
			p.more = true
			return l
		case textBurst:
			value, at := p.word()
			n, ok := ratetext.ParseWhole(value)
			if !ok || !validTokens(n) {
				p.wrong(at, value, "must be a burst of 1 to 2^40 tokens")
			}
			l.Burst = n
		case textPrecision:
			value, at := p.word()
			d, ok := ratetext.ParsePeriod(value)
			if !ok || !validPeriod(d) {
				p.wrong(at, value, "must be a precision, as in 30s, in whole us")
			}
			l.Precision = d
		case calendar.In, calendar.From:
			if l = l.ofCalendar(); l.Calendar.Unit == 0 {
				p.wrong(at, name, "is for days, weeks, months, quarters and years")
				return l // the words that follow mean nothing
			}
			p.calendar(name, &l.Calendar)
		default:
			p.wrong(at, name, "must be in, from, burst, precision or and")
		}
	}
}

// calendar reads the time zone of periods of the calendar, or where they begin.
func (p *limitParser) calendar(name string, c *Calendar) {
	word, at := p.word()
	if name == calendar.In {
		if rule := c.SetZone(word); rule != "" {
			p.wrong(at, word, rule)
		}
		return
	}
	before := p.at
	number, numberAt := p.word()
	if number == "" || number[0] < '0' || number[0] > '9' {
		p.at, number = before, ""
	}
	wrongWord, wrongNumber := c.SetFrom(word, number)
	if wrongWord != "" {
		p.wrong(at, word, wrongWord)
	} else if wrongNumber != "" {
		p.wrong(numberAt, number, wrongNumber)
	}
}

// word returns the next word, "" at the end, and where it begins.
func (p *limitParser) word() (word string, at int) {
	rest := p.text[p.at:]
	trimmed := strings.TrimLeft(rest, " \t")
	at = p.at + len(rest) - len(trimmed)
	if end := strings.IndexAny(trimmed, " \t"); end >= 0 {
		trimmed = trimmed[:end]
	}
	p.at = at + len(trimmed)
	return trimmed, at
}

func (p *limitParser) wrong(at int, what, rule string) {
	p.errs = append(p.errs, fmt.Errorf("tiered: limit %.80q: %.80q at position %d %s", p.text, what,
		utf8.RuneCountInString(p.text[:at])+1, rule))
}

// String returns l as [ParseLimit] reads it, such as "100/min burst 200".
func (l Limit) String() string {
	if l.several() {
		var all []string
		for _, one := range l.Each() {
			all = append(all, one.String())
		}
		return strings.Join(all, " "+textAnd+" ")
	}
	switch l.rule() {
	case local.Unlimited:
		return textUnlimited
	case local.Blocked:
		return textBlocked
	}
	s := ratetext.Format(l.Tokens, l.Per)
	if c := l.Calendar; !c.IsZero() {
		s = strings.TrimRight(fmt.Sprintf("%d/%v %v", l.Tokens, c.Unit, c.Canonical()), " ")
	}
	if l.Burst != 0 {
		s += fmt.Sprintf(" %s %d", textBurst, l.saidBurst())
	}
	if l.Precision != 0 {
		s += " " + textPrecision + " " + ratetext.FormatPeriod(l.Precision)
	}
	return s
}

// MarshalText returns what String does, "" for the zero Limit.
func (l Limit) MarshalText() ([]byte, error) {
	if l == (Limit{}) {
		return []byte{}, nil
	}
	if err := l.validate("Limit"); err != nil {
		return nil, err
	}
	return []byte(l.String()), nil
}

// UnmarshalText reads what [ParseLimit] does, and "" as the zero Limit.
func (l *Limit) UnmarshalText(text []byte) (err error) {
	if len(text) == 0 {
		*l = Limit{}
		return nil
	}
	parsed, err := ParseLimit(string(text))
	if err == nil {
		*l = parsed
	}
	return err
}
