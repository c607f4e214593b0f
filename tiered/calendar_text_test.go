package tiered_test

import (
	"strings"
	"testing"
	"time"

	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// The texts of quotas are those of the limits that code makes, both ways.
func TestTextsOfQuotas(t *testing.T) {
	for text, limit := range map[string]tiered.Limit{
		"10000/month": tiered.PerMonth(10_000),
		"10000/month in Europe/Berlin from day 17": tiered.PerMonth(10_000).In("Europe/Berlin").From(17),
		"5/month from day 31":                      tiered.PerMonth(5).From(31),
		"5/quarter":                                tiered.PerQuarter(5),
		"5/quarter from february":                  tiered.PerQuarter(5).FromMonth(time.February, 1),
		"5/year in Europe/London from april 6":     tiered.PerYear(5).In("Europe/London").FromMonth(time.April, 6),
		"5/year from day 2":                        tiered.PerYear(5).From(2),
		"7/day in UTC":                             tiered.PerDay(7).In("UTC"),
		"7/day in America/New_York":                tiered.PerDay(7).In("America/New_York"),
		"7/week in UTC":                            tiered.PerWeek(7).From(1),
		"7/week from sunday":                       tiered.PerWeek(7).From(7),
		"7/week in Asia/Tokyo from saturday":       tiered.PerWeek(7).In("Asia/Tokyo").From(6),
		"7/day":                                    tiered.PerDay(7),
		"7/week":                                   tiered.PerWeek(7),
		"7/30d":                                    tiered.Per(7, 30*24*time.Hour),
	} {
		if got := limit.String(); got != text {
			t.Errorf("%+v is %q, want %q", limit, got, text)
		}
		if got, err := tiered.ParseLimit(text); err != nil || got != limit {
			t.Errorf("%q is %+v, %v, want %+v", text, got, err, limit)
		}
		if !limit.Calendar.IsZero() {
			ok(t, tiered.Policy{Name: "p", Limit: limit, Algorithm: tiered.FixedWindow}.Validate())
		}
	}
	for other, text := range map[string]string{
		"7/week from day 1":                         "7/week in UTC",
		"7/week from Monday in UTC":                 "7/week in UTC",
		"10_000/month from day 17 in Europe/Berlin": "10000/month in Europe/Berlin from day 17",
		"5/year from January 1 in UTC":              "5/year",
	} {
		if got, err := tiered.ParseLimit(other); err != nil || got.String() != text {
			t.Errorf("%q is %v, %v, want %q", other, got, err, text)
		}
	}
}

// What is wrong with a quota is told in one line with field, value and rule.
func TestBadQuotas(t *testing.T) {
	for text, want := range map[string]string{
		"5/month in Europe/Atlantis":      `"Europe/Atlantis" at position 12 must be a time zone that this process has data of`,
		"5/month in Local":                `"Local" at position 12 must be a time zone`,
		"5/month in":                      `"" at position 11 must be a time zone`,
		"5/month from day 0":              `"0" at position 18 must be a day, 1 to 31`,
		"5/month from day 32":             `"32" at position 18 must be a day, 1 to 31`,
		"5/month from day":                `"" at position 17 must be a day, 1 to 31`,
		"5/month from 17":                 `"17" at position 14 must be the day on which a month begins, as in from day 17`,
		"5/month from april":              `"april" at position 14 must be the day on which a month begins`,
		"5/week from day 8":               `"8" at position 17 must be a day, 1 to 7`,
		"5/week from april":               `"april" at position 13 must be the day of the week on which one begins`,
		"5/year from sunday":              `"sunday" at position 13 must be where one begins, as in from april, from april 6 or from day 6`,
		"5/day from day 3":                `"day" at position 12 is for weeks, months, quarters and years`,
		"5/min in UTC":                    `"in" at position 7 is for days, weeks, months, quarters and years`,
		"5/3months":                       `"3months" at position 3 must be s, min, h, day, week, month, quarter, year, or a duration`,
		"5/month in UTC in Europe/Berlin": `"in" at position 16 must be given once`,
		"5/month on day 3":                `"on" at position 9 must be in, from, burst, precision or and`,
	} {
		_, err := tiered.ParseLimit(text)
		if err == nil || !strings.Contains(err.Error(), want) || strings.Count(err.Error(), "\n") > 0 && !strings.Contains(text, " on ") {
			t.Errorf("%q: %v, want %s", text, err, want)
		}
	}
	for want, p := range map[string]tiered.Policy{
		`Policy.Limit.Calendar.Zone is "Europe/Atlantis": must be a time zone`:  {Limit: tiered.PerMonth(5).In("Europe/Atlantis")},
		"Policy.Limit.Calendar.Day is -1: must be 1 to 31 for a month":          {Limit: tiered.PerMonth(5).From(0)},
		"Policy.Limit.Calendar.Day is 32: must be 1 to 31 for a month":          {Limit: tiered.PerMonth(5).From(32)},
		"Policy.Limit.Calendar.Day is 8: must be 1 to 7 for a week":             {Limit: tiered.PerWeek(5).From(8)},
		"Policy.Limit.Calendar.Month is -1: must be 1 to 12":                    {Limit: tiered.PerYear(5).FromMonth(0, 1)},
		"Policy.Limit.Per is 1m0s: must be 0 beside a Calendar":                 {Limit: tiered.PerMinute(5).In("UTC")},
		"Policy.Calendar is true: must be false beside Limit.Calendar":          {Limit: tiered.PerMonth(5), Calendar: true},
		"Policy.Limit.Burst is 7: must be 0: a fixed window admits Tokens":      {Limit: tiered.PerMonth(5).WithBurst(7)},
		`Policy.Plans["pro"].Per is year: must be that of Limit, month`:         {Limit: tiered.PerMonth(5), Plans: map[string]tiered.Limit{"pro": tiered.PerYear(7)}},
		`Policy.Plans["pro"].Per is 1m0s: must be that of Limit, month`:         {Limit: tiered.PerMonth(5), Plans: map[string]tiered.Limit{"pro": tiered.PerMinute(7)}},
		"Policy.Plans[\"pro\"].Calendar.Day is 40: must be 1 to 31 for a month": {Limit: tiered.PerMonth(5), Plans: map[string]tiered.Limit{"pro": tiered.PerMonth(7).From(40)}},
	} {
		p.Name, p.Algorithm = "p", tiered.FixedWindow
		if err := p.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
	for _, a := range algorithms {
		err := tiered.Policy{Name: "p", Limit: tiered.PerMonth(5), Algorithm: a}.Validate()
		if a == tiered.FixedWindow {
			ok(t, err)
		} else if err == nil || !strings.Contains(err.Error(), "Policy.Limit.Calendar is a month: only a FixedWindow has it") {
			t.Errorf("%v: %v", a, err)
		}
	}
	p := tiered.Policy{Name: "p", Limit: tiered.PerMonth(5), Algorithm: tiered.FixedWindow}
	ok(t, p.CheckLimit(tiered.PerMonth(7).In("Asia/Tokyo").From(3)))
	if err := p.CheckLimit(tiered.PerQuarter(7)); err == nil {
		t.Error("a key of a month has a quarter")
	}
}
