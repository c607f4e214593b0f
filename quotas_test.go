package tiered_test

import (
	"bytes"
	"encoding/binary"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/fatal"
	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/fleet"
	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/redistest"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// zoneData makes a directory with the data of time zones, each of which has midnight at a time.
func zoneData(t *testing.T, midnights map[string]time.Time) (dir string) {
	dir = t.TempDir()
	for name, at := range midnights {
		var b bytes.Buffer // as of RFC 9636, version 1: one type of local time, and no transition
		b.WriteString("TZif" + strings.Repeat("\x00", 16))
		for _, x := range []any{[6]int32{0, 0, 0, 0, 1, 4}, offsetOf(at), [2]byte{}, []byte("TST\x00")} {
			fatal.If(t, binary.Write(&b, binary.BigEndian, x))
		}
		path := filepath.Join(dir, name)
		fatal.If(t, os.MkdirAll(filepath.Dir(path), 0o700))
		fatal.If(t, os.WriteFile(path, b.Bytes(), 0o600))
	}
	return dir
}

// offsetOf returns by how many seconds a zone is ahead of UTC that has midnight at a time.
func offsetOf(at time.Time) int32 {
	const day = 24 * 60 * 60
	offset := int32(-at.Unix() % day)
	if offset < -day/2 {
		offset += day
	}
	return offset
}

// weekdayAt returns the day of the week that begins at a time, from 1 for Monday.
func weekdayAt(at time.Time) int {
	return (int(at.In(time.FixedZone("", int(offsetOf(at)))).Weekday())+6)%7 + 1
}

// Real processes share quotas on a Redis whose clock is a second ahead, while windows end: with
// other data of the zone in some of them, with a zone that a deploy changes in one, and with billing
// days that requests bring along. Each end that some process knows begins a count, by Redis' clock.
// Between two of them never more than the quota is admitted, and nearly all of it is. A process
// without data of the zone does not start, and says why.
func TestQuotasAcrossProcesses(t *testing.T) {
	if testing.Short() {
		t.Skip("half a minute of real time")
	}
	t.Parallel() // they sleep most of the time
	const ahead, quota = time.Second, 300
	server := redistest.StartWithClock(t)
	server.SetClock(ahead)

	first := time.Now().Add(ahead + 15*time.Second).Truncate(time.Second) // by the clock of Redis
	second, third := first.Add(4*time.Second), first.Add(8*time.Second)
	zones := func(city time.Time) string {
		return zoneData(t, map[string]time.Time{"Test/City": city, "Test/Town": first, "Test/Village": third})
	}
	before, after := zones(first), zones(second)

	of := func(name string, limit tiered.Limit) fleet.Load {
		return fleet.Load{Policy: tiered.Policy{Name: name, Algorithm: tiered.FixedWindow, FailMode: tiered.FailClosed, Limit: limit}, Offer: 100}
	}
	direct := of("direct", tiered.PerDay(quota).In("Test/City"))
	direct.Lease.Size = tiered.NoLease
	leased := of("leased", tiered.PerDay(quota).In("Test/City"))
	leased.Lease.Size = 10
	town, day := tiered.PerWeek(quota).In("Test/Town"), weekdayAt(first)
	billed := of("billed", town.From(day))
	billed.Plans, billed.Asks = map[string]tiered.Limit{"moved": town.From(day%7 + 1)}, []string{"", "moved"}
	old, moved := of("deployed", tiered.PerDay(quota).In("Test/Town")), of("deployed", tiered.PerDay(quota).In("Test/Village"))
	old.Lease.Size, moved.Lease.Size = 10, 10
	ends := map[string][]time.Time{
		"direct": {first, second}, "leased": {first, second}, "billed": {first}, "deployed": {first, third},
	}

	var all fleet.Fleet
	for i, c := range []struct {
		zones    string
		deployed fleet.Load
	}{{before, old}, {before, old}, {after, old}, {after, moved}} {
		all = append(all, fleet.Start(t, fleet.Job{
			URL: server.URL(), Seed: uint64(i), Zones: c.zones, Loads: []fleet.Load{direct, leased, billed, c.deployed},
		}))
	}
	for _, p := range all {
		p.Begin()
	}
	refusal := fleet.Refusal(t, fleet.Job{URL: server.URL(), Zones: t.TempDir(), Loads: []fleet.Load{direct}})
	if want := `Policy.Limit.Calendar.Zone is "Test/City": must be a time zone that this process has data of`; !strings.Contains(refusal, want) ||
		strings.Count(refusal, "\n") != 1 {
		t.Errorf("without data of the zone: %s, want %s", refusal, want)
	}
	time.Sleep(time.Until(third.Add(4*time.Second - ahead))) // real processes and real time
	for i, p := range all {
		here := p.Report().Stats.Policies["direct"].Processes // two have each data of the zone
		if here.Sharing != 4 || here.OtherLimits != 2 || here.OtherServices != 0 {
			t.Errorf("process %d knows %+v of 4 processes, of which 2 have other data of the zone", i, here)
		}
	}

	late := time.Duration(0)
	for _, r := range all.Stop() {
		late = max(late, r.Lag)
	}
	slack := late + 20*time.Millisecond // what is decided about an end belongs to either side
	for name, ends := range ends {
		requests := all.Records(name)
		from := time.Unix(0, 0)
		for _, end := range append(ends, time.Now().Add(time.Hour)) {
			to := end.Add(-ahead)
			surely, asked := admitted(requests, from.Add(slack), to.Add(-slack))
			perhaps, _ := admitted(requests, from.Add(-slack), to.Add(slack))
			t.Logf("%s: %d of %d requests were admitted up to %v after the first end", name, surely, asked, end.Sub(first))
			if surely > quota || perhaps < quota*9/10 && asked > 2*quota && late < time.Second {
				t.Errorf("%s: %d were admitted in one window, %d about it, of %d", name, surely, perhaps, quota)
			}
			from = to
		}
	}
}

// admitted counts what was asked and decided between two times, and how much of it was admitted.
func admitted(requests []fleet.Record, from, to time.Time) (admitted, asked int) {
	all := fleet.Within(requests, from.UnixNano(), to.UnixNano())
	for _, r := range all {
		if r.Allowed {
			admitted++
		}
	}
	return admitted, len(all)
}
