package calendar_test

import (
	"archive/zip"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
	_ "time/tzdata" // so that the test does not depend on the machine

	"pgregory.net/rapid"

	"github.com/tiered-limiter/tiered-limiter/internal/calendar"
	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/fatal"
)

// zones are those of the Go distribution, whose data go by rules from the last change of a law on.
// Those of many machines have each change up to 2037 instead. Without them it is some zones that
// are known for their changes, with the data of the machine.
func zones(t *testing.T) (names []string, in map[string]*time.Location) {
	in = make(map[string]*time.Location)
	root, _ := exec.CommandContext(t.Context(), "go", "env", "GOROOT").Output()
	z, err := zip.OpenReader(filepath.Join(strings.TrimSpace(string(root)), "lib", "time", "zoneinfo.zip"))
	if err != nil {
		names = []string{
			"UTC", "Europe/Berlin", "America/New_York", "Asia/Beirut", "America/Havana", "America/Sao_Paulo", "Australia/Lord_Howe",
			"Pacific/Apia", "Africa/Casablanca", "Asia/Gaza", "America/St_Johns", "Asia/Kathmandu",
		}
		for _, name := range names {
			in[name] = fatal.Get(time.LoadLocation(name))(t)
		}
		return names, in
	}
	defer z.Close()
	seen := map[uint32]bool{} // another name of the same zone says nothing new
	for _, f := range z.File {
		if strings.HasSuffix(f.Name, "/") {
			continue
		}
		data := fatal.Get(io.ReadAll(fatal.Get(f.Open())(t)))(t)
		in[f.Name] = fatal.Get(time.LoadLocationFromTZData(f.Name, data))(t)
		if !seen[f.CRC32] {
			seen[f.CRC32] = true
			names = append(names, f.Name)
		}
	}
	return names, in
}

// some returns a few of the zones if the tests are to be short.
func some(names []string) []string {
	if !testing.Short() {
		return names
	}
	short := []string{"Pacific/Apia", "Asia/Beirut", "Europe/Berlin", "Australia/Lord_Howe"}
	for i := 0; i < len(names); i += 100 {
		short = append(short, names[i])
	}
	return short
}

// begins reports whether the windows of p begin on the date of t, by what package time says of it
// alone.
func begins(p calendar.Period, t time.Time) bool {
	last := time.Date(t.Year(), t.Month()+1, 0, 12, 0, 0, 0, time.UTC).Day()
	onDay := t.Day() == min(max(int(p.Day), 1), last)
	months := int(t.Month()) - int(max(p.Month, 1)) + 12
	switch p.Unit {
	case calendar.Day:
		return true
	case calendar.Week:
		return (int(t.Weekday())+6)%7+1 == max(int(p.Day), 1)
	case calendar.Month:
		return onDay
	case calendar.Quarter:
		return onDay && months%3 == 0
	}
	return onDay && months%12 == 0
}

// Ten years of windows of each zone: they follow each other without gap and overlap, each begins
// when the date first becomes one on which it begins by package time, and the microseconds at its
// edges are in the right one.
func TestTenYearsOfEachZone(t *testing.T) {
	names, locations := zones(t)
	periods := []calendar.Period{
		{Unit: calendar.Day},
		{Unit: calendar.Week},
		{Unit: calendar.Week, Day: 7},
		{Unit: calendar.Month},
		{Unit: calendar.Month, Day: 17},
		{Unit: calendar.Month, Day: 31},
		{Unit: calendar.Quarter, Day: 30, Month: 2},
		{Unit: calendar.Year, Month: 4, Day: 6},
	}
	for _, name := range some(names) {
		in := locations[name]
		begin := time.Date(2009, 6, 15, 12, 0, 0, 0, in)
		end := begin.AddDate(10, 0, 0)
		dates := datesShown(in, begin, end)
		for _, p := range periods {
			w := p.WindowsIn(in)
			from, to := w.At(begin)
			var wanted []time.Time
			for _, d := range dates {
				if slices.ContainsFunc(d.days, func(day time.Time) bool { return begins(p, day) }) {
					wanted = append(wanted, d.at)
				}
			}
			for i := 0; to.Before(end); i++ {
				if i >= len(wanted) || !to.Equal(wanted[i]) {
					t.Fatalf("%s, %+v: the window that begins at %v ends at %v, want %v", name, p, from, to, wanted[min(i, len(wanted)-1)])
				}
				next, after := w.At(to)
				if lastFrom, lastTo := w.At(to.Add(-time.Microsecond)); !next.Equal(to) || !lastFrom.Equal(from) || !lastTo.Equal(to) {
					t.Fatalf("%s, %+v: beside the edge %v: %v to %v, and from %v", name, p, to, lastFrom, lastTo, next)
				}
				if again, end := w.At(to.Add(45 * time.Minute)); !again.Equal(to) || !end.Equal(after) { // the clocks may be set back over it
					t.Fatalf("%s, %+v: after the edge %v: %v to %v", name, p, to, again, end)
				}
				_, before := next.In(in).Zone()
				_, then := after.In(in).Zone()
				moved := max(time.Duration(before-then)*time.Second-time.Hour, 0)
				if d := after.Sub(next); d > p.Longest()+moved {
					t.Fatalf("%s, %+v: %v to %v is longer than %v", name, p, next, after, p.Longest())
				}
				from, to = next, after
			}
		}
	}
}

// A date is first shown at a time. Dates before it may have been left out.
type shown struct {
	at   time.Time
	days []time.Time // the date, and what was left out before it
}

// datesShown walks through a time in steps of a quarter of an hour, which are the steps of all
// clocks, and returns when each new date is first shown: clocks may be set back over midnight.
func datesShown(in *time.Location, from, to time.Time) (all []shown) {
	date := func(t time.Time) time.Time {
		y, m, d := t.In(in).Date()
		return time.Date(y, m, d, 0, 0, 0, 0, time.UTC)
	}
	newest := date(from)
	for t := from.Truncate(15 * time.Minute).Add(15 * time.Minute); t.Before(to); t = t.Add(15 * time.Minute) {
		is := date(t)
		if !is.After(newest) {
			if t.In(in).Hour() < 8 { // no clock is set forward by four hours, so no date begins in the next twelve
				t = t.Add(12 * time.Hour)
			}
			continue
		}
		one := shown{at: t}
		for newest.Before(is) {
			newest = newest.AddDate(0, 0, 1)
			one.days = append(one.days, newest)
		}
		all = append(all, one)
	}
	return all
}

// At any instant of three hundred years the window contains it.
func TestWindowContains(t *testing.T) {
	names, in := zones(t)
	rapid.Check(t, func(t *rapid.T) {
		p := calendar.Period{
			Unit: rapid.SampledFrom([]calendar.Unit{calendar.Day, calendar.Week, calendar.Month, calendar.Quarter, calendar.Year}).Draw(t, "unit"),
			Zone: rapid.SampledFrom(names).Draw(t, "zone"),
		}
		switch p.Unit {
		case calendar.Day:
		case calendar.Week:
			p.Day = rapid.Int16Range(0, 7).Draw(t, "day")
		default:
			p.Day = rapid.Int16Range(0, 31).Draw(t, "day")
		}
		if p.Unit >= calendar.Quarter {
			p.Month = rapid.Int8Range(0, 12).Draw(t, "month")
		}
		at := time.UnixMicro(rapid.Int64Range(0, 300*365*24*3600*1_000_000).Draw(t, "at"))
		from, to := p.WindowsIn(in[p.Zone]).At(at)
		if at.Before(from) || !at.Before(to) {
			t.Fatalf("%v is in %v to %v", at, from, to)
		}
		if again, end := p.WindowsIn(in[p.Zone]).At(from); !again.Equal(from) || !end.Equal(to) {
			t.Fatalf("the window %v to %v is %v to %v at its begin", from, to, again, end)
		}
	})
}

func TestBadPeriods(t *testing.T) {
	t.Setenv("ZONEINFO", os.DevNull)
	for _, c := range []struct {
		p    calendar.Period
		want string
	}{
		{calendar.Period{Unit: calendar.Month}, ""},
		{calendar.Period{Unit: calendar.Month, Day: 31, Zone: "Europe/Berlin"}, ""},
		{calendar.Period{Zone: "UTC"}, "Unit"},
		{calendar.Period{Unit: 9}, "Unit"},
		{calendar.Period{Unit: calendar.Month, Day: 32}, "Day"},
		{calendar.Period{Unit: calendar.Month, Day: -1}, "Day"},
		{calendar.Period{Unit: calendar.Week, Day: 8}, "Day"},
		{calendar.Period{Unit: calendar.Day, Day: 1}, "Day"},
		{calendar.Period{Unit: calendar.Month, Month: 3}, "Month"},
		{calendar.Period{Unit: calendar.Year, Month: 13}, "Month"},
		{calendar.Period{Unit: calendar.Month, Zone: "Local"}, "Zone"},
		{calendar.Period{Unit: calendar.Month, Zone: "Europe/Atlantis"}, "Zone"},
		{calendar.Period{Unit: calendar.Month, Zone: "../etc/passwd"}, "Zone"},
	} {
		var got []string
		c.p.Check(func(field string, _ any, _ string) { got = append(got, field) })
		if strings.Join(got, " ") != c.want {
			t.Errorf("%+v: %v, want %q", c.p, got, c.want)
		}
	}
}

// A year begins after the last day of a leap year too, of which package time knows no end in a zone
// that changes its clocks by a rule.
func TestYearAfterALeapYear(t *testing.T) {
	names, in := zones(t)
	for _, name := range names {
		for year := 2020; year <= 2060; year++ {
			want := time.Date(year, 1, 1, 0, 0, 0, 0, in[name])
			for _, unit := range []calendar.Unit{calendar.Day, calendar.Month, calendar.Year} {
				w := calendar.Period{Unit: unit}.WindowsIn(in[name])
				if from, _ := w.At(want); !from.Equal(want) {
					t.Errorf("%s: the %v of %v begins at %v", name, unit, want, from)
				}
				if _, to := w.At(want.Add(-time.Microsecond)); !to.Equal(want) {
					t.Errorf("%s: the %v before %v ends at %v", name, unit, want, to)
				}
			}
		}
	}
}

// Zones whose clocks go alike have one digest, whatever their names are, and those that differ, be
// it by an hour of one year, do not.
func TestDigestOfZones(t *testing.T) {
	names, locations := zones(t)
	digests := map[string]string{} // by how the clocks go
	for _, name := range some(names) {
		in := locations[name]
		var clocks strings.Builder
		before := 1
		for at := time.Date(2020, 1, 1, 0, 0, 0, 0, in); at.Year() < 2060; {
			if _, offset := at.Zone(); offset != before {
				fmt.Fprintln(&clocks, at.Unix(), offset)
				before = offset
			}
			// No clock is set forward and back within a day. So only days in which it is set are looked at by the hour.
			next := at.Add(24 * time.Hour)
			if _, offset := next.Zone(); offset != before {
				next = at.Add(time.Hour)
			}
			at = next
		}
		is, again := calendar.Digest(in), digests[clocks.String()]
		if again != "" && is != again || again == "" && slices.Contains(slices.Collect(maps.Values(digests)), is) {
			t.Errorf("%s has the digest %s, want %q", name, is, again)
		}
		digests[clocks.String()] = is
	}
	berlin := calendar.Period{Unit: calendar.Month, Zone: "Europe/Berlin"}.Data()
	if want := calendar.Digest(fatal.Get(time.LoadLocation("Europe/Berlin"))(t)); berlin != want { // by this machine's data
		t.Errorf("Berlin has the digest %s, want %s", berlin, want)
	}
	if utc := (calendar.Period{Unit: calendar.Month}).Data(); utc != "" {
		t.Errorf("UTC has the digest %q", utc)
	}
}
