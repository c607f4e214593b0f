package tiered_test

import (
	"bytes"
	"encoding/gob"
	"encoding/json"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/tiered-limiter/tiered-limiter/tiered"
)

func TestParseLimit(t *testing.T) {
	for _, c := range []struct {
		text string
		want tiered.Limit
		out  string // if it is not text
		errs []string
	}{
		{text: "100/s", want: tiered.PerSecond(100)},
		{text: "100/min burst 200", want: tiered.PerMinute(100).WithBurst(200)},
		{text: "  5/minute\tburst 7 ", want: tiered.PerMinute(5).WithBurst(7), out: "5/min burst 7"},
		{
			text: "1_000/h precision 30s", want: tiered.Limit{Tokens: 1000, Per: time.Hour, Precision: 30 * time.Second},
			out: "1000/h precision 30s",
		},
		{text: "10 / min", want: tiered.PerMinute(10), out: "10/min"},
		{text: "10 /min  burst 20", want: tiered.PerMinute(10).WithBurst(20), out: "10/min burst 20"},
		{text: "15/ 5min", want: tiered.Per(15, 5*time.Minute), out: "15/5m"},
		{text: "10/ month from day 3", want: tiered.PerMonth(10).From(3), out: "10/month from day 3"},
		{text: "10 per minute", errs: []string{`"10" at position 1 must be tokens per period, as in 100/min: write 10/min`}},
		{text: "10 requests per month", errs: []string{": write 10/month"}},
		{text: "1000-H", errs: []string{": write 1000/h"}},
		{text: "1.5/s", errs: []string{`"1.5" at position 1 must be a whole number of tokens, 1 to 2^40: write 3/2s`}},
		{text: "5k/h, burst=9000", errs: []string{": write 5000/h burst 9000"}},
		{text: "10 / MIN", errs: []string{`"MIN" at position 6`, ": write 10/min"}},
		{text: "0/s", errs: []string{": write blocked"}},
		{text: "None", errs: []string{": write unlimited"}},
		{text: "10 / ", errs: []string{`"" at position 6 must be s, min`}},
		{text: "10 burst 5/min", errs: []string{`"10" at position 1 must be tokens per period`}},
		{text: "3/week", want: tiered.Per(3, 7*24*time.Hour)},
		{text: "3/30d", want: tiered.Per(3, 30*24*time.Hour)},
		{text: "1/100ms", want: tiered.Every(100 * time.Millisecond)},
		{text: "unlimited", want: tiered.Unlimited()},
		{text: "blocked", want: tiered.Blocked()},
		{text: "", errs: []string{`"" at position 1 must be tokens per period`}},
		{text: "100", errs: []string{`"100" at position 1 must be tokens per period`}},
		{text: "100/mni", errs: []string{`"mni" at position 5 must be s, min`}},
		{text: "ten/min", errs: []string{`"ten" at position 1 must be a whole number`}},
		{text: "1.5/s", errs: []string{`"1.5" at position 1 must be a whole number`}},
		{text: "10/min burst", errs: []string{`"" at position 13 must be a burst`}},
		{text: "10/x burst y z", errs: []string{
			`"x" at position 4`, `"y" at position 12`, `"z" at position 14 must be in, from, burst, precision or and`,
		}},
		{text: "10/min burst 0", errs: []string{`"0" at position 14 must be a burst of 1 to 2^40`}},
		{text: "10/min burst 5 burst 6", errs: []string{`"burst" at position 16 must be given once`}},
		{text: "0/s burst z foo", errs: []string{
			`"0" at position 1 must be a whole number of tokens, 1 to 2^40`,
			`"z" at position 11 must be a burst`, `"foo" at position 13 must be in, from, burst, precision or and`,
		}},
		{text: "2000000000000/200000d", errs: []string{`"2000000000000" at position 1`, `"200000d" at position 15`}},
		{text: "9999999999999999999/x", errs: []string{`"9999999999999999999" at position 1`, `"x" at position 21`}},
		{text: "-3/1500ns", errs: []string{`"-3" at position 1`, `"1500ns" at position 4 must be s, min`}},
		{text: "1/s burst 99999999999999", errs: []string{`"99999999999999" at position 11 must be a burst of 1 to 2^40`}},
		{text: "1/s precision 1ns", errs: []string{`"1ns" at position 15 must be a precision`}},
		{text: "日本/s x", errs: []string{`"x" at position 6`}},
		{
			text: "10/s burst 20 and 1000/hour and 5_000/day",
			want: tiered.PerSecond(10).WithBurst(20).And(tiered.PerHour(1000), tiered.PerDay(5000)), out: "10/s burst 20 and 1000/h and 5000/day",
		},
		{text: "10/s and", errs: []string{`"" at position 9 must be tokens per period`}},
		{text: "and 10/s", errs: []string{`"and" at position 1 must be tokens per period`}},
		{text: "10/s and burst 5", errs: []string{`"burst" at position 10 must be tokens per period`}},
		{text: "10/s, 1000/h", errs: []string{": write 10/s and 1000/h"}},
		{text: "10/s+1000/h", errs: []string{": write 10/s and 1000/h"}},
		{text: "1/s" + strings.Repeat(" and 1/s", 8), errs: []string{`"and" at position 61 must stand between 8 limits at most`}},
		{text: "unlimited burst 5", errs: []string{`"unlimited" at position 1`}},
	} {
		got, err := tiered.ParseLimit(c.text)
		if len(c.errs) == 0 {
			want := c.out
			if want == "" {
				want = c.text
			}
			if err != nil || got != c.want || got.String() != want {
				t.Errorf("%q is %+v, written %q, and %v; want %+v, %q", c.text, got, got, err, c.want, want)
			}
			continue
		}
		for _, part := range c.errs {
			if err == nil || !strings.Contains(err.Error(), part) {
				t.Errorf("%q: %v, want %s", c.text, err, part)
			}
		}
	}
}

// What a configuration file says is what is read from what is written.
func TestTexts(t *testing.T) {
	type config struct {
		Limit tiered.Limit
		None  tiered.Limit
		Mode  tiered.FailMode
		Plans map[string]tiered.Limit
	}
	want := config{
		tiered.PerDay(5).WithBurst(9),
		tiered.Limit{},
		tiered.FailOpen,
		map[string]tiered.Limit{"free": tiered.PerHour(10), "pro": tiered.Unlimited()},
	}
	text := must(json.Marshal(want))
	const golden = `{"Limit":"5/day burst 9","None":"","Mode":"fail-open",` + `"Plans":{"free":"10/h","pro":"unlimited"}}`
	if string(text) != golden {
		t.Errorf("%s, want %s", text, golden)
	}
	var got config
	ok(t, json.Unmarshal(text, &got))
	if again, _ := json.Marshal(got); string(again) != golden {
		t.Errorf("read as %+v", got)
	}
	var b bytes.Buffer
	sent := map[string]tiered.Limit{
		"none": {}, "several": tiered.PerSecond(10).And(tiered.PerHour(1000).WithBurst(7)), "month": tiered.PerMonth(5).In("Asia/Tokyo").From(17),
	}
	var came map[string]tiered.Limit
	ok(t, gob.NewEncoder(&b).Encode(sent))
	if ok(t, gob.NewDecoder(&b).Decode(&came)); !maps.Equal(came, sent) {
		t.Errorf("%v, want %v", came, sent)
	}
	for _, broken := range []string{`{"Limit":"5"}`, `{"Mode":"open"}`, `{"Plans":{"free":"0/s"}}`} {
		if err := json.Unmarshal([]byte(broken), &got); err == nil {
			t.Errorf("%s is read", broken)
		}
	}
	for _, broken := range []any{tiered.Limit{Tokens: 5}, tiered.FailMode(3)} {
		if text, err := json.Marshal(broken); err == nil {
			t.Errorf("%#v is written %s", broken, text)
		}
	}
}

func FuzzParseLimit(f *testing.F) {
	for _, text := range []string{"100/min burst 200", "1/1h30m precision 1s", "unlimited", "blocked", "5/7d", "1_0/w", "10/s and 5/min"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		l, err := tiered.ParseLimit(text)
		if err != nil {
			return
		}
		if again, err := tiered.ParseLimit(l.String()); err != nil || again != l {
			t.Errorf("%q is %+v, written %q, and read as %+v, %v", text, l, l, again, err)
		}
	})
}
