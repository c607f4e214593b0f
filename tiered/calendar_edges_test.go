package tiered_test

import (
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// between are what was admitted between the edges of windows, by Redis' clock.
type between struct {
	edges []time.Time
	n     []int64
}

func (b *between) add(at time.Time, n int64) {
	if b.n == nil {
		slices.SortFunc(b.edges, time.Time.Compare)
		b.n = make([]int64, len(b.edges)+1)
	}
	i, found := slices.BinarySearchFunc(b.edges, at, time.Time.Compare)
	if found {
		i++
	}
	b.n[i] += n
}

// Redis' clock says when a month is over, also if it is a second or half a day off, and however far
// away Redis is: before that the quota, and after it the quota. Nobody is sent away for too short a
// time.
func TestMonthEndsByTheClockOfRedis(t *testing.T) {
	for _, off := range []time.Duration{0, second, -second, 11 * time.Hour, -11 * time.Hour} {
		for _, trip := range []time.Duration{ms, 15 * ms} {
			for _, size := range []int64{0, tiered.NoLease} {
				bubble(t, fmt.Sprint(off, trip, size), func(t *testing.T) {
					redis := untilDate("Asia/Tokyo", 2000, time.February, 25, 0).AddDate(0, 0, 5)
					time.Sleep(time.Until(redis.Add(-off - 10*second)))
					store := newDistant(trip)
					store.Step(off)
					p := tiered.Policy{
						Limit: tiered.PerMonth(300).In("Asia/Tokyo"), Algorithm: tiered.FixedWindow, FailMode: tiered.FailClosed,
						Lease: tiered.Lease{Size: size},
					}
					all := []*tiered.Limiter{limiter(t, store, p, nil), limiter(t, store, p, nil)}
					in, opens := between{edges: []time.Time{redis}}, time.Time{}
					for now := time.Now().Add(off); now.Before(redis.Add(10 * second)); now = time.Now().Add(off) {
						for _, l := range all {
							d := l.Allow(ctx, "k")
							if now := time.Now().Add(off); d.Allowed {
								in.add(now, 1)
								if !now.Before(redis) && opens.IsZero() {
									opens = now
								}
							} else if d.Reason == tiered.Limited && now.Add(d.ResetAfter).Before(redis) && now.Before(redis) {
								t.Fatalf("at %v: the month ends in %v", redis.Sub(now), d.ResetAfter)
							}
						}
						time.Sleep(10 * ms)
					}
					if in.n[0] != 300 || in.n[1] != 300 || opens.Sub(redis) > 100*ms {
						t.Errorf("%v were admitted by the clock of Redis, the first after %v", in.n, opens.Sub(redis))
					}
				})
			}
		}
	}
}

// Two processes have another end of the month, because their data of the zone differ, or because a
// deploy moves it. Each end begins a count: between two of them it is never more than the quota.
func TestProcessesThatDifferInTheEndOfAMonth(t *testing.T) {
	for _, size := range []int64{0, 20, tiered.NoLease} {
		for first, n := range map[string]int{"UTC": 0, "Etc/GMT+1": 1} {
			bubble(t, fmt.Sprint(size, first), func(t *testing.T) {
				edge := untilDate("UTC", 2000, time.January, 31, 23).Add(30 * time.Minute)
				in := between{edges: []time.Time{edge.Add(30 * time.Minute), edge.Add(90 * time.Minute)}}
				time.Sleep(time.Until(in.edges[0]) - 10*second) // without heartbeats
				store := newDistant(ms)
				var all []*tiered.Limiter
				for _, zone := range []string{"UTC", "Etc/GMT+1"} {
					all = append(all, limiter(t, store, tiered.Policy{
						Limit: tiered.PerMonth(200).In(zone), Algorithm: tiered.FixedWindow, FailMode: tiered.FailClosed,
						Lease: tiered.Lease{Size: size},
					}, nil))
				}
				for _, edge := range in.edges {
					time.Sleep(time.Until(edge.Add(-2 * second)))
					for time.Until(edge) > -3*second {
						for i := range all {
							if all[(i+n)%2].Allow(ctx, "k").Allowed {
								in.add(time.Now(), 1)
							}
						}
						time.Sleep(10 * ms)
					}
				}
				if slices.Max(in.n) > 200 || slices.Min(in.n) < 190 {
					t.Errorf("%v were admitted between the ends, of 200", in.n)
				}
			})
		}
	}
}

// A billing day moves while tokens are out. Nothing is admitted for that: the count goes on until
// the next end by the new day, whichever is earlier in the month.
func TestBillingDayThatMoves(t *testing.T) {
	for _, size := range []int64{0, tiered.NoLease} {
		for from, to := range map[int]int{17: 20, 20: 17, 1: 17, 31: 17} {
			bubble(t, fmt.Sprint(size, from, to), func(t *testing.T) {
				untilDate("UTC", 2000, time.January, 16, 23)
				time.Sleep(59*time.Minute + 30*second)
				var day atomic.Int64
				day.Store(int64(from))
				store := newDistant(ms)
				l := limiter(t, store, tiered.Policy{
					Limit: tiered.PerMonth(200), Algorithm: tiered.FixedWindow, Lease: tiered.Lease{Size: size},
					PerKey: func(string) tiered.Limit { return tiered.PerMonth(200).From(int(day.Load())) },
				}, nil)
				use := func(n int) (admitted int64) {
					for range n {
						if l.Allow(ctx, "k").Allowed {
							admitted++
						}
						time.Sleep(10 * ms)
					}
					return admitted
				}
				used := use(150)
				day.Store(int64(to))
				l.Refresh("k")
				if used += use(150); used != 200 {
					t.Fatalf("%d were admitted before an end of a month by either day", used)
				}
				next := time.Date(2000, time.January, to, 0, 0, 0, 0, time.UTC)
				if d := l.Allow(ctx, "k"); to == 17 && time.Now().Add(d.RetryAfter).Before(next) {
					t.Fatalf("%v: want until %v", d, next)
				}
				if to == 17 {
					time.Sleep(time.Until(next.Add(second)))
					if n := use(300); n != 200 {
						t.Fatalf("%d were admitted after the new day", n)
					}
				}
			})
		}
	}
}

// The next refusal after a billing day has moved tells the new end, also if the process knows by
// itself that the month is used up, or asks by the old one when the day moves.
func TestRefusalAfterTheBillingDayMoved(t *testing.T) {
	for _, way := range []string{"SetPolicy", "PerKey", "WithLimit"} {
		for _, asks := range []bool{false, true} {
			bubble(t, fmt.Sprint(way, asks), func(t *testing.T) {
				const trip = 100 * ms
				untilDate("UTC", 2000, time.January, 20, 0)
				limit := tiered.PerMonth(10).From(17)
				p := tiered.Policy{Limit: limit, Algorithm: tiered.FixedWindow}
				if way == "PerKey" {
					p.PerKey = func(string) tiered.Limit { return limit }
				}
				l := limiter(t, newDistant(trip), p, patientOptions(nil))
				key := l.For("k")
				for key.Allow(ctx).Allowed {
				}
				for day, ends := range map[int]time.Time{
					25: time.Date(2000, time.January, 25, 0, 0, 0, 0, time.UTC), 1: time.Date(2000, time.February, 1, 0, 0, 0, 0, time.UTC),
				} {
					if asks {
						time.Sleep(10 * second) // no refusal is believed for so long
						go l.For("k").WithLimit(limit).Allow(t.Context())
						time.Sleep(trip * 3 / 4)
					}
					limit = limit.From(day)
					key = relimited(t, l, key, way, limit)
					if asks {
						time.Sleep(trip / 2)
					}
					if d := key.Allow(ctx); d.Allowed || (time.Until(ends)-d.RetryAfter).Abs() > second {
						t.Errorf("from day %d: %v, want %v", day, d, time.Until(ends))
					}
				}
			})
		}
	}
}

// Redis' clock is set back by less than a second, over the end of a month. The key of somebody who
// has asked since the end waits in the new month until the clock is there, and no process takes
// that for an outage: neither one that has asked before, nor one that asks for the first time, nor
// one that only looks. Keys that nobody has asked for since are in the old month.
func TestClockSetBackOverTheEndOfAMonth(t *testing.T) {
	for _, size := range []int64{0, 20, tiered.NoLease} {
		for mode, step := range []time.Duration{500 * ms, 900 * ms, 400 * ms} {
			bubble(t, fmt.Sprint(size, step), func(t *testing.T) {
				edge := untilDate("UTC", 2000, time.January, 31, 23).Add(time.Hour)
				time.Sleep(time.Until(edge) - 10*second) // without heartbeats
				store := newDistant(ms)
				var all []*tiered.Limiter
				for range 3 {
					all = append(all, limiter(t, store, tiered.Policy{
						Limit: tiered.PerMonth(200), Algorithm: tiered.FixedWindow, FailMode: failModes[mode], Lease: tiered.Lease{Size: size},
					}, nil))
				}
				admitted := int64(0)
				use := func(l *tiered.Limiter, key string) {
					switch d := l.Allow(ctx, key); {
					case d.Tier == tiered.Failover:
						t.Fatalf("%v after the end of the month: %s: %v", time.Since(edge), key, d)
					case d.Allowed && key == "k":
						admitted++
					}
				}
				time.Sleep(time.Until(edge.Add(-second)))
				for range 10 {
					use(all[0], "of January")
					time.Sleep(10 * ms)
				}
				time.Sleep(time.Until(edge.Add(300 * ms)))
				for range 10 {
					use(all[0], "k")
				}
				store.Step(-step)
				use(all[2], "of January") // it has heard of the clock
				if d := all[2].Peek(ctx, "k"); !d.Allowed || d.Remaining > 200-admitted {
					t.Errorf("who looks sees %v: want %d of 200 or fewer", d, 200-admitted)
				}
				for time.Since(edge) < 3*second {
					for _, l := range all {
						use(l, "k")
						use(l, "of January")
					}
					time.Sleep(10 * ms)
				}
				if admitted != 200 {
					t.Errorf("%d of 200 were admitted after the end of the month", admitted)
				}
				if n := node(all[0]).Calls.Late; size == tiered.NoLease && n > 2 { // a key's time is known once it has answered
					t.Errorf("%d calls were late", n)
				}
			})
		}
	}
}

// A machine without data of a zone is told so, and how it gets some.
func TestZoneWithoutData(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := tiered.Policy{Name: "p", Limit: tiered.PerMonth(5).In("Mars/Olympus"), Algorithm: tiered.FixedWindow}
		_, err := tiered.New(remote.NewMemory(), p, nil)
		if want := `tiered: Policy.Limit.Calendar.Zone is "Mars/Olympus": must be a time zone that this process has data of, such as ` +
			"Europe/Berlin or UTC, and not Local (import time/tzdata if the machine has none)"; err == nil || err.Error() != want {
			t.Errorf("%v, want %s", err, want)
		}
	})
}
