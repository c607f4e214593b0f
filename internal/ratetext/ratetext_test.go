package ratetext_test

import (
	"testing"
	"time"

	"github.com/tiered-limiter/tiered-limiter/internal/ratetext"
)

const day = 24 * time.Hour

func TestPeriods(t *testing.T) {
	for _, c := range []struct {
		text string
		want time.Duration // 0: it is not a period
		out  string
	}{
		{"s", time.Second, "s"},
		{"sec", time.Second, "s"},
		{"1s", time.Second, "s"},
		{"m", time.Minute, "min"},
		{"minute", time.Minute, "min"},
		{"hour", time.Hour, "h"},
		{"15min", 15 * time.Minute, "15m"},
		{"2hours", 2 * time.Hour, "2h"},
		{"1day", day, "day"},
		{"3weeks", 21 * day, "21d"},
		{"30sec", 30 * time.Second, "30s"},
		{"minutes", 0, ""},
		{"0min", 0, ""},
		{"1_min", 0, ""},
		{"2ss", 0, ""},
		{"1.5min", 0, ""},
		{"90m", 90 * time.Minute, "1h30m"},
		{"24h", day, "day"},
		{"7d", 7 * day, "week"},
		{"2w", 14 * day, "14d"},
		{"30d", 30 * day, "30d"},
		{"1.5d", 0, ""},
		{"100ms", 100 * time.Millisecond, "100ms"},
		{"1µs", time.Microsecond, "us"},
		{"0s", 0, ""},
		{"-1s", 0, ""},
		{"0d", 0, ""},
		{"9223372036854775807w", 0, ""},
		{"", 0, ""},
		{"mni", 0, ""},
		{"d1", 0, ""},
	} {
		got, ok := ratetext.ParsePeriod(c.text)
		if ok != (c.want > 0) || ok && got != c.want {
			t.Errorf("%q is %v, %v; want %v", c.text, got, ok, c.want)
		} else if ok && ratetext.FormatPeriod(got) != c.out {
			t.Errorf("%v is written %q, want %q", got, ratetext.FormatPeriod(got), c.out)
		}
	}
}

// What is written is read back as the same.
func FuzzRate(f *testing.F) {
	f.Add("100/min")
	f.Add("1_000/1h30m")
	f.Add("-5/30d")
	f.Fuzz(func(t *testing.T, text string) {
		tokens, period, ok := ratetext.Parse(text)
		if !ok {
			return
		}
		n, p, ok := ratetext.Parse(ratetext.Format(tokens, period))
		if !ok || n != tokens || p != period {
			t.Errorf("%q is %d per %v, written %q and read as %d per %v", text, tokens, period,
				ratetext.Format(tokens, period), n, p)
		}
	})
}
