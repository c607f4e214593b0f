// Package calendar says when the days, weeks, months, quarters and years of a time zone begin.
package calendar

import (
	"fmt"
	"hash/fnv"
	"sync"
	"time"
)

// Unit is a period of the calendar. Its String is "day", "week", "month", "quarter" or "year".
type Unit uint8

// The units. The zero Unit is none.
const (
	Day Unit = iota + 1
	Week
	Month
	Quarter
	Year
)

// units has the words, and the longest time that one of each lasts: clocks may be set back by an
// hour in it.
var units = [...]struct {
	word    string
	longest time.Duration
}{
	Day: {"day", day}, Week: {"week", 7 * day}, Month: {"month", 31 * day}, Quarter: {"quarter", 92 * day}, Year: {"year", 366 * day},
}

const day = 24 * time.Hour

// String returns the word, "" for no unit.
func (u Unit) String() string {
	if int(u) < len(units) {
		return units[u].word
	}
	return fmt.Sprintf("unit %d", uint8(u))
}

// ParseUnit returns the unit of a word, 0 if there is none.
func ParseUnit(word string) Unit {
	for u := Day; int(u) < len(units); u++ {
		if units[u].word == word {
			return u
		}
	}
	return 0
}

// Period says which windows a limit counts by: a unit of the calendar of a time zone, and where in
// it they begin. The zero Period is none. Periods with one meaning are made equal by
// [Period.Canonical].
type Period struct { // small, because every Limit has one
	// Zone is the IANA name of the time zone, such as "Europe/Berlin"; "" means UTC. Not "Local",
	// which is another one on each machine.
	Zone string

	// Day is that of the month on which a Month, a Quarter or a Year begins, 1 … 31. In a shorter
	// month it is the last day. Of a Week it is the day of the week, from 1 for Monday to 7 for
	// Sunday. 0 means 1.
	Day int16

	// Month is that in which a Year begins, and with it a Quarter, 1 … 12. 0 means January.
	Month int8

	Unit Unit
}

// IsZero reports whether p is none.
func (p Period) IsZero() bool { return p == Period{} }

// Canonical returns p without what is said twice.
func (p Period) Canonical() Period {
	if p.Unit == 0 {
		return p // an error
	}
	if p.Zone == "UTC" {
		p.Zone = ""
	}
	if p.Day == 1 {
		p.Day = 0
	}
	if p.Month == int8(time.January) {
		p.Month = 0
	}
	return p
}

// Longest is the length of the longest window, unless its zone moves by more than an hour
// meanwhile, as Antarctica/Casey did by three.
func (p Period) Longest() time.Duration {
	if int(p.Unit) >= len(units) || p.Unit == 0 {
		return 0
	}
	return units[p.Unit].longest + time.Hour
}

// Check calls bad for each field that is wrong.
func (p Period) Check(bad func(field string, value any, rule string)) {
	if p.Unit < Day || p.Unit > Year {
		bad("Unit", fmt.Sprintf("%q", p.Unit), "must be a day, week, month, quarter or year")
		return
	}
	most := int16(31)
	switch p.Unit {
	case Day:
		most = 0
	case Week:
		most = 7
	}
	switch {
	case most == 0 && p.Day != 0:
		bad("Day", p.Day, "must be 0, because a day begins at midnight")
	case p.Day < 0 || p.Day > most:
		bad("Day", p.Day, fmt.Sprintf("must be 1 to %d for a %s, or 0 for 1", most, p.Unit))
	}
	switch {
	case p.Unit < Quarter && p.Month != 0:
		bad("Month", p.Month, "must be 0: only a quarter or a year begins in a month")
	case p.Month < 0 || p.Month > int8(time.December):
		bad("Month", p.Month, "must be 1 to 12, or 0 for January")
	}
	if _, err := zone(p.Zone); err != nil {
		bad("Zone", fmt.Sprintf("%.80q", p.Zone), zoneRule)
	}
}

const zoneRule = "must be a time zone that this process has data of, such as Europe/Berlin or UTC, and not Local " +
	"(import time/tzdata if the machine has none)"

// zones has the zones that were loaded, by their names. A process reads the data of a zone once.
var zones sync.Map

// located is a zone with its location and the digest of its data.
type located struct {
	in   *time.Location
	data string
}

// zone returns a zone by its name.
func zone(name string) (located, error) {
	if name == "" {
		return located{in: time.UTC}, nil
	}
	if z, ok := zones.Load(name); ok {
		return z.(located), nil
	}
	if name == "Local" {
		return located{}, fmt.Errorf("calendar: the zone is Local")
	}
	in, err := time.LoadLocation(name)
	if err != nil {
		return located{}, err
	}
	z := located{in, Digest(in)}
	zones.Store(name, z)
	return z, nil
}

// Digest returns a digest of how the clocks of a location go from 2020 to 2060. It has a fixed
// beginning, because processes that start at different times compare theirs. Laws that change
// nearly always change the next years, so it need not reach farther.
func Digest(in *time.Location) string {
	sum := fnv.New32a()
	at, last := time.Date(2020, 1, 1, 0, 0, 0, 0, in), time.Date(2060, 1, 1, 0, 0, 0, 0, in)
	for before := -1; at.Before(last); at = steady(at) {
		if _, offset := at.Zone(); offset != before {
			fmt.Fprintln(sum, at.Unix(), offset)
			before = offset
		}
	}
	return fmt.Sprintf("%08x", sum.Sum32())
}

// Data returns a digest of what this process knows about the zone of a valid p: processes that work
// out other ends of its windows in these years have another one. It is "" for UTC.
func (p Period) Data() string {
	z, err := zone(p.Zone)
	if err != nil {
		return ""
	}
	return z.data
}

// Windows are the windows of a Period. All methods may be called concurrently.
type Windows struct {
	period Period
	in     *time.Location
}

// Windows returns those of a valid p; of a zone without data it returns those of UTC.
func (p Period) Windows() Windows {
	z, err := zone(p.Zone)
	if err != nil {
		z.in = time.UTC
	}
	return Windows{p, z.in}
}

// At returns the window of a valid p that contains t, from its first instant to that of the next
// one.
func (p Period) At(t time.Time) (from, to time.Time) { return p.Windows().At(t) }

// WindowsIn returns those of a valid p in a location, whatever p.Zone says.
func (p Period) WindowsIn(in *time.Location) Windows { return Windows{p, in} }

// At returns the window that contains t: from its first instant to that of the next one.
func (w Windows) At(t time.Time) (from, to time.Time) {
	n := w.number(t.In(w.in))
	from, to = w.begin(n), w.begin(n+1)
	for !t.Before(to) { // clocks were set back over a midnight, or a day was left out
		n++
		from, to = to, w.begin(n+1)
	}
	for t.Before(from) {
		n--
		from, to = w.begin(n), from
	}
	return from, to
}

// number returns the number of the window in which a local time lies, or of one beside it.
func (w Windows) number(t time.Time) int {
	months := t.Year()*12 + int(t.Month()) - 1
	switch w.period.Unit {
	case Day:
		return civilDay(t)
	case Week:
		return floor(civilDay(t)-w.firstDay(), 7)
	case Month:
		return months
	case Quarter:
		return floor(months-w.firstMonth(), 3)
	}
	return floor(months-w.firstMonth(), 12)
}

// begin returns the first instant of a window.
func (w Windows) begin(n int) time.Time {
	switch w.period.Unit {
	case Day:
		return w.midnight(0, n)
	case Week:
		return w.midnight(0, 7*n+w.firstDay())
	case Quarter:
		n = 3*n + w.firstMonth()
	case Year:
		n = 12*n + w.firstMonth()
	}
	days := time.Date(0, time.Month(n+2), 0, 0, 0, 0, 0, time.UTC).Day() // of this month
	return w.midnight(n, min(max(int(w.period.Day), 1), days))
}

// firstDay is the number of a day on which a week begins, as [civilDay] counts them.
func (w Windows) firstDay() int {
	return floor(civilDay(time.Unix(0, 0).UTC()), 7)*7 + mondays + max(int(w.period.Day), 1) - 1
}

// firstMonth is 0 for January.
func (w Windows) firstMonth() int { return int(max(w.period.Month, 1)) - 1 }

// civilDay numbers days: day 1 of month 0 of year 0 is 1, as in time.Date.
func civilDay(t time.Time) int {
	const yearZero = -62167219200 // seconds of 0000-01-01 in UTC
	y, m, d := t.Date()
	return int((time.Date(y, m, d, 0, 0, 0, 0, time.UTC).Unix()-yearZero)/int64(day/time.Second)) + 1
}

// mondays is by how many days Mondays are after multiples of 7, as civilDay counts them.
var mondays = civilDay(time.Date(2024, 1, 1, 0, 0, 0, 0, time.UTC)) % 7

// midnight returns when the clocks of the zone first show the beginning of a day: of month 0 for
// January of year 0, and a day of it that may lie outside. Where they are set forward over
// midnight, that is at the end of the gap.
func (w Windows) midnight(month, d int) time.Time {
	shown := time.Date(0, time.Month(month+1), d, 0, 0, 0, 0, time.UTC)
	at := shown.Add(-day - 2*time.Hour).In(w.in) // no zone is ahead by more
	for {
		_, offset := at.Zone()
		from := shown.Add(-time.Duration(offset) * time.Second)
		if from.Before(at) {
			from = at
		}
		end := steady(at)
		if from.Before(end) {
			return from.In(w.in)
		}
		at = end
	}
}

// steady returns a time after t until which the clocks of t's zone go on as at t. If a zone changes
// its clocks by a rule, ZoneBounds returns an end before t on the last day of a leap year
// (golang/go issue 81583).
func steady(t time.Time) time.Time {
	_, end := t.ZoneBounds()
	switch {
	case end.IsZero():
		return endOfTime
	case !end.After(t):
		end = t.Truncate(day).Add(day) // of UTC
	}
	return end.In(t.Location())
}

// endOfTime is later than any time that a limit meets.
var endOfTime = time.Unix(1<<40, 0)

// floor divides, rounding down.
func floor(a, b int) int {
	q := a / b
	if a%b < 0 {
		q--
	}
	return q
}
