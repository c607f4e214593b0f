package report

import (
	"fmt"
	"strconv"
	"strings"
)

// titles are the headings of the loads' tables, in order. The others are in the raw output only.
var titles = []struct{ load, title string }{
	{"hot", "One hot key, never refused"},
	{"cold", "100 000 keys at random, each rarely: Redis decides"},
	{"warm", "100 000 keys at random, all decided in the process"},
}

// Tables renders a table for each load, and what they were measured on.
func (r *Results) Tables() string {
	var out strings.Builder
	fmt.Fprintf(&out, "Medians of a run on %s, %s, %s, redis-server %s, commit %s.\n",
		r.Config["machine"], r.Config["cpu"], r.Config["go"], r.Config["redis"], r.Config["commit"])
	for _, t := range titles {
		if len(r.rows[t.load]) == 0 {
			continue
		}
		fmt.Fprintf(&out, "\n### %s\n\n", t.title)
		r.table(&out, t.load)
	}
	fmt.Fprintf(&out, "\nModules: %s.\n", r.Config["modules"])
	return out.String()
}

func (r *Results) table(out *strings.Builder, load string) {
	out.WriteString("| limiter | 1 goroutine | 2 or 16 | client CPU | server CPU | Redis commands | allocs |\n")
	out.WriteString("|---|--:|--:|--:|--:|--:|--:|\n")
	for _, limiter := range r.rows[load] {
		most := r.most(load, limiter)
		at := func(goroutines int, unit string, format func(float64) string) string {
			if x, ok := r.Median(load, limiter, goroutines, unit); ok {
				return format(x)
			}
			return ""
		}
		name := limiter
		if strings.HasPrefix(name, "ours") {
			name = "**" + name + "**"
		}
		fmt.Fprintf(out, "| %s |\n", strings.Join([]string{
			name, at(1, wall, duration), at(most, wall, duration), at(most, client, duration),
			at(most, server, duration), at(most, commands, number), at(1, allocs, number),
		}, " | "))
	}
}

// duration writes seconds with three digits.
func duration(seconds float64) string {
	switch ns := seconds * 1e9; {
	case ns < 999.5:
		return number(ns) + " ns"
	case ns < 999.5e3:
		return number(ns/1e3) + " µs"
	default:
		return number(ns/1e6) + " ms"
	}
}

// number writes three digits, and small ones as a power of ten.
func number(x float64) string {
	switch {
	case x == 0:
		return "0"
	case x < 0.001:
		digits, exponent, _ := strings.Cut(strconv.FormatFloat(x, 'e', 1, 64), "e-")
		return digits + "·10⁻" + superscripts.Replace(strings.TrimLeft(exponent, "0"))
	case x < 100:
		return strconv.FormatFloat(x, 'g', 3, 64)
	default:
		return strconv.FormatFloat(x, 'f', 0, 64)
	}
}

var superscripts = strings.NewReplacer("0", "⁰", "1", "¹", "2", "²", "3", "³", "4", "⁴", "5", "⁵", "6", "⁶", "7", "⁷",
	"8", "⁸", "9", "⁹")
