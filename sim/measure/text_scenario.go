package measure

import (
	"strconv"
	"strings"
	"time"

	"github.com/tiered-limiter/tiered-limiter/sim/scenario"
)

// expectText is an expectation as a scenario has it.
func expectText(e *scenario.Expectation) string {
	b := []string{e.Metric, e.Op, bound(e.Value, unitOf(e.Metric))}
	for _, t := range []struct {
		name string
		at   scenario.Duration
	}{{"after", e.After}, {"before", e.Before}} {
		if t.at != 0 {
			b = append(b, t.name+"="+span(t.at))
		}
	}
	if e.Limit != "" {
		b = append(b, "limit="+e.Limit)
	}
	return strings.Join(b, " ")
}

// faultText is a fault as a scenario has it.
func faultText(f *scenario.Fault) string {
	b := []string{"at", span(f.At), f.Kind}
	add := func(name, value string, given bool) {
		if given {
			b = append(b, name+"="+value)
		}
	}
	add("for", span(f.For), f.For != 0)
	add("procs", percent(f.Procs.Share), f.Procs.Share != 0)
	add("procs", strconv.Itoa(f.Procs.Count), f.Procs.Count != 0)
	add("only", f.Only, f.Only != "")
	add("chance", percent(f.Chance), f.Chance != 0)
	for _, d := range []struct {
		name  string
		value scenario.Duration
	}{{"delay", f.Delay}, {"jitter", f.Jitter}, {"up", f.Up}, {"down", f.Down}, {"by", f.By}, {"lose", f.Lose}, {"restart", f.Restart}, {"every", f.Every}} {
		add(d.name, span(d.value), d.value != 0)
	}
	add("n", strconv.Itoa(f.N), f.N != 0)
	add("keys", strconv.FormatInt(f.Keys, 10), f.Keys != 0)
	add("error", f.Error, f.Error != "")
	return strings.Join(b, " ")
}

// bound is the value of an expectation, in all its digits.
func bound(v float64, u scenario.Unit) string {
	digits := func(v float64) string { // the 13th is what a multiplication left
		x, _ := strconv.ParseFloat(strconv.FormatFloat(v, 'g', 12, 64), 64)
		return strconv.FormatFloat(x, 'f', -1, 64)
	}
	switch {
	case u == scenario.Ratio:
		return digits(v*100) + "%"
	case u == scenario.Seconds && v > 0:
		unit := unitOfSeconds(v)
		return digits(v/unit.in) + unit.name
	}
	return digits(v)
}

// figure is a value of a metric in the unit of an expectation, in at most four digits or whole: 1000, 5%, 1.5ms, 261/s.
func figure(v float64, u scenario.Unit) string {
	switch {
	case v < 0:
		return "-"
	case u == scenario.Ratio:
		return percent(v)
	case u == scenario.Seconds:
		return lasting(v)
	case u == scenario.PerSec:
		return short(v) + "/s"
	}
	return short(v)
}

// short is v in four digits, or whole.
func short(v float64) string {
	if v >= 1000 {
		return strconv.FormatFloat(v, 'f', 0, 64)
	}
	return strconv.FormatFloat(fourDigits(v), 'f', -1, 64)
}

func fourDigits(v float64) float64 {
	x, _ := strconv.ParseFloat(strconv.FormatFloat(v, 'g', 4, 64), 64)
	return x
}

func percent(v float64) string { return short(v*100) + "%" }

// secondsUnit is one that seconds are written in.
type secondsUnit struct {
	name string
	in   float64 // s
}

// unitOfSeconds is the one that suits a number of seconds.
func unitOfSeconds(s float64) secondsUnit {
	for _, u := range []secondsUnit{{"s", 1}, {"ms", 1e-3}, {"us", 1e-6}} {
		if s >= u.in*0.99995 {
			return u
		}
	}
	return secondsUnit{"ns", 1e-9}
}

// lasting is seconds in the unit that suits them.
func lasting(s float64) string {
	if s <= 0 {
		return "0s"
	}
	u := unitOfSeconds(s)
	return short(s/u.in) + u.name
}

// span is a duration as a scenario has it, in ASCII and without zeros: 1h, 250ms.
func span(d scenario.Duration) string {
	text := strings.ReplaceAll(time.Duration(d).String(), "µ", "u")
	if strings.HasSuffix(text, "m0s") {
		text = strings.TrimSuffix(text, "0s")
	}
	if strings.HasSuffix(text, "h0m") {
		text = strings.TrimSuffix(text, "0m")
	}
	return text
}
