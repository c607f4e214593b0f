package measure

import (
	"strconv"

	"github.com/tiered-limiter/tiered-limiter/sim/scenario"
)

// Figure formats a value of a metric in the unit of an expectation, in at most four digits or whole: 1000, 5%, 1.5ms,
// 261/s. An unknown value is -.
func Figure(v float64, u scenario.Unit) string {
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
	x, _ := strconv.ParseFloat(strconv.FormatFloat(v, 'g', 4, 64), 64)
	return strconv.FormatFloat(x, 'f', -1, 64)
}

func percent(v float64) string { return short(v*100) + "%" }

// lasting formats seconds in the unit that suits them.
func lasting(s float64) string {
	if s <= 0 {
		return "0s"
	}
	for _, u := range []struct {
		name string
		in   float64 // s
	}{{"s", 1}, {"ms", 1e-3}, {"us", 1e-6}} {
		if s >= u.in*0.99995 {
			return short(s/u.in) + u.name
		}
	}
	return short(s/1e-9) + "ns"
}
