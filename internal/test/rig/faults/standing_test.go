package faults_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/fleet"
	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/redistest"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// standingFleet is processes with standing shares while something happens to them.
type standingFleet struct {
	*testing.T
	job fleet.Job
	all fleet.Fleet // of which some may have left
}

// start starts n processes, has each begin, and returns the last one.
func (f *standingFleet) start(n int) (m *fleet.Process) {
	f.Helper()
	for range n {
		f.job.Seed = uint64(len(f.all))
		m = fleet.Start(f, f.job)
		f.all = append(f.all, m)
		m.Begin()
	}
	return m
}

// look returns how each of some processes is now, and the tokens that their shares have admitted of
// "over".
func (f *standingFleet) look(some fleet.Fleet) (reports []fleet.Report, taken int64) {
	f.Helper()
	for _, m := range some {
		r := m.Report()
		reports = append(reports, r)
		taken += r.Stats.Policies["over"].Standing.Spent
	}
	return reports, taken
}

// until waits until all of some processes are as ready says, and returns the time.
func (f *standingFleet) until(what string, some fleet.Fleet, ready func(fleet.Report) bool) time.Time {
	f.Helper()
	for deadline := time.Now().Add(2 * time.Minute); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		reports, _ := f.look(some)
		n := 0
		for _, r := range reports {
			if ready(r) {
				n++
			}
		}
		if n == len(some) {
			return time.Now()
		}
	}
	reports, _ := f.look(some)
	for _, r := range reports {
		f.Logf("%+v, %+v: %s", r.Stats.Standing, r.Stats.Policies["over"].Standing, r.Log)
	}
	f.Fatalf("%s: not within two minutes", what)
	return time.Time{}
}

// over returns by how many tokens the worst interval between two times exceeds the limit of a load.
// It is negative if none does.
func (f *standingFleet) over(l fleet.Load, from, to time.Time) float64 {
	some := fleet.Within(f.all.Records(l.Name), from.UnixNano(), to.UnixNano())
	return fleet.Judge(some, l.Limit).Over()
}

// TestStandingSharesWithAnOldProcessAndAFailover runs four real processes with standing shares
// under Sentinel. First a process without the option joins them for ten seconds. While it is there,
// no share is used. Then one process leaves, the others take over its part, the primary dies, and
// the replica does not know the last 3.6 seconds.
func TestStandingSharesWithAnOldProcessAndAFailover(t *testing.T) {
	if testing.Short() {
		t.Skip("two minutes of real time")
	}
	t.Parallel()
	const few = 4
	sentinel := redistest.StartSentinel(t)
	f := &standingFleet{T: t, job: fleet.Job{
		Client: &fleet.Client{Addrs: []string{sentinel.Sentinel.Addr}, Primary: sentinel.Name},
		Loads:  standingLoads(few),
	}}
	began := time.Now()
	f.start(few)
	used := func(r fleet.Report) bool {
		return r.Stats.Standing.Fraction > 0.2 && r.Stats.Policies["over"].Standing.Outside == 0
	}
	members := f.all
	f.until("the shares begin", members, used)
	time.Sleep(10 * time.Second) // the shares fill
	_, taken := f.look(members)

	// A process without the option.
	loads := f.job.Loads
	f.job.Loads = slices.Clone(loads)
	for i := range loads {
		l := &f.job.Loads[i]
		l.Standing = 0
		if l.Name == "over" {
			l.Offer *= few // most of the refill then comes by its calls, at the whole rate
		}
	}
	joined := time.Now()
	stranger := f.start(1)
	f.job.Loads = loads
	noticed := f.until("the old process is noticed", members, func(r fleet.Report) bool {
		return r.Stats.Policies["over"].Standing.Outside == 1
	})
	_, before := f.look(members)
	time.Sleep(10*time.Second - time.Since(joined))
	if _, after := f.look(members); after != before {
		t.Errorf("standing shares admitted %d tokens while an old process was there", after-before)
	}
	if before == taken {
		t.Error("the shares were not in use when the old process came: this shows nothing")
	}
	leaving := time.Now()
	reports := f.all[few:].Stop() // stranger
	again := f.until("the shares are used again", members, used)
	time.Sleep(22 * time.Second) // while Redis keeps the old process' limit, no share is used
	_, before = f.look(members)
	usedFrom := time.Now()
	if before == taken {
		t.Error("no share was used after the old process had left")
	}

	// A failover that loses the last writes.
	left := members[few-1]
	primary, replica := sentinel.Primary.Client(), sentinel.Replica.Client()
	table := func(c *redis.Client) (fields map[string]string) {
		names, err := c.Keys(t.Context(), "*st1").Result()
		if err == nil && len(names) == 1 {
			fields, err = c.HGetAll(t.Context(), names[0]).Result()
		}
		if err != nil || len(fields) == 0 {
			t.Fatalf("tables %v, %v", names, err)
		}
		return fields
	}
	for _, parameter := range []string{"masteruser", "masterauth"} { // the replica does not come back
		if err := replica.ConfigSet(t.Context(), parameter, "nobody").Err(); err != nil {
			t.Fatal(err)
		}
	}
	final := fleet.Fleet{left}.Stop()
	leftTaken := final[left].Stats.Policies["over"].Standing.Spent
	members = members[:few-1]
	cut := time.Now()
	if err := primary.ClientKillByFilter(t.Context(), "TYPE", "replica").Err(); err != nil {
		t.Fatal(err)
	}
	time.Sleep(3600 * time.Millisecond) // at least a poll of each process; a sentinel trusts a replica for 5 s
	here, there := table(primary), table(replica)
	sentinel.Primary.Kill()
	s := &faultRun{T: t, sentinel: sentinel}
	promoted(s)
	up := time.Now()
	joiner := f.start(1) // maybe the first to ask the new primary, which knows more free parts than there are
	time.Sleep(14 * time.Second)
	ended := time.Now()
	live, after := f.look(append(members[:few-1:few-1], joiner))
	if now := table(replica); here["u"] == there["u"] || now["c"] == there["c"] {
		t.Errorf("no poll was lost: this shows nothing. Primary %v, replica %v, later %v", here, there, now)
	}
	sum := 0.0
	for _, r := range live {
		sum += r.Stats.Standing.Fraction
		t.Logf("after the failover: %+v", r.Stats.Standing)
	}
	if sum > 1 {
		t.Errorf("after the failover the processes have %v of the shares", sum)
	}
	lag := time.Duration(0)
	for m, r := range f.all.Stop() {
		reports[m] = r
	}
	for m, r := range final {
		reports[m] = r
	}
	for m, r := range reports {
		lag = max(lag, r.Lag)
		if lines := strings.Count(r.Log, "some processes do not split"); m != stranger && m != joiner &&
			lines < len(f.job.Loads) {
			t.Errorf("%d log lines for %d policies: %q", lines, len(f.job.Loads), r.Log)
		}
	}
	if wait := noticed.Sub(joined); wait > 6*time.Second+lag {
		t.Errorf("the old process was noticed after %v", wait)
	}

	// What each may cost is as docs/standing.md says.
	for _, l := range f.job.Loads {
		shareBurst, shareRate := float64(l.Limit.Burst)/8, float64(l.Limit.Tokens)/8 // tokens, tokens/s
		share := shareBurst/(few-1) + 1                                              // of one process
		if l.Name == "over" {
			most := shareBurst + shareRate*ended.Sub(usedFrom).Seconds() + share
			if n := float64(after - before + leftTaken); n > most {
				t.Errorf("the shares admitted %v tokens around the failover, want %v at most", n, most)
			}
		}
		strange := shareBurst + shareRate*noticed.Sub(joined).Seconds()
		for _, phase := range []struct {
			name     string
			from, to time.Time
			most     float64 // tokens
		}{
			{"before", began, joined, 0},
			{"old process", began, leaving, strange},
			{"after the old process", noticed, cut, 0},
			{"failover", noticed, ended, float64(l.Limit.Burst) + share},
			{"after the failover", up.Add(7 * time.Second), ended, 0},
		} {
			over := f.over(l, phase.from, phase.to)
			t.Logf("%s: %s: over-admission %.1f, at most %.0f", l.Name, phase.name, over, phase.most)
			if over > phase.most {
				t.Errorf("%s: %s: over-admission %.1f, want %.1f at most", l.Name, phase.name, over, phase.most)
			}
		}
	}
	t.Logf("shares in use after %v, old process noticed after %v, shares used again after %v, promoted after %v; lag %v",
		joined.Sub(began), noticed.Sub(joined), again.Sub(leaving), up.Sub(cut), lag)
}

// TestStandingSharesOfAFleetThatGrows runs a fleet of real processes whose requests have plans that
// take turns: 4, 12 and 30 of them, and 4 again. Meanwhile two are killed, one is frozen for longer
// than a right, the table is lost, one deploy makes the part larger, one lowers a limit, and one
// turns the shares off. No key and no window has more than the largest limit that it had, at any
// time.
func TestStandingSharesOfAFleetThatGrows(t *testing.T) {
	if *which == "quick" {
		t.Skip("five minutes of real time: make faults")
	}
	t.Parallel()
	server := redistest.Start(t)
	loads := func(parts, tokens int64) []fleet.Load {
		policy := tiered.Policy{
			FailMode: tiered.FailClosed, Standing: float64(parts) / 8, Limit: tiered.PerSecond(tokens).WithBurst(200),
			Plans: map[string]tiered.Limit{"small": tiered.PerSecond(50).WithBurst(100)},
		}
		load := func(name string, offer float64, asks ...string) fleet.Load {
			p := policy
			p.Name = name
			return fleet.Load{Policy: p, Offer: offer, Asks: asks, Workers: 2}
		}
		windows := fleet.Load{Offer: 25, Workers: 2, Policy: tiered.Policy{
			Name: "windows", Algorithm: tiered.FixedWindow, FailMode: tiered.FailClosed, Standing: policy.Standing,
			Limit: tiered.Limit{Tokens: 400, Per: 10 * time.Second}, Calendar: true,
		}}
		return []fleet.Load{load("rare", 1), load("over", 25), load("turns", 20, "", "small"), load("near", 4, "small"), windows}
	}
	f := &standingFleet{T: t, job: fleet.Job{URL: server.URL(), Loads: loads(1, 100)}}
	used := func(part float64) func(fleet.Report) bool {
		return func(r fleet.Report) bool {
			return r.Stats.Standing.Fraction > part && r.Stats.Policies["over"].Standing.Outside == 0
		}
	}
	began := time.Now()
	spent := func(what string, some fleet.Fleet) {
		t.Helper()
		windows := func(reports []fleet.Report) (n int64) {
			for _, r := range reports {
				n += r.Stats.Policies["windows"].Standing.Spent
			}
			return n
		}
		was, before := f.look(some)
		time.Sleep(11 * time.Second) // a window begins
		is, after := f.look(some)
		t.Logf("%v: %s: %d tokens of shares, and %d of windows, in 11 s", time.Since(began).Round(time.Second), what, after-before,
			windows(is)-windows(was))
		if after == before || windows(is) == windows(was) {
			t.Errorf("%s: no share was used", what)
		}
	}
	f.start(4)
	f.until("the shares begin", f.all, used(0.2))
	time.Sleep(10 * time.Second)
	spent("4 processes", f.all[:4])
	f.start(8)
	time.Sleep(20 * time.Second)
	spent("12 processes", f.all[:12])
	for _, m := range f.all[2:4] {
		m.Kill()
	}
	f.start(20)
	frozen := f.all[4]
	frozen.Pause()
	froze := time.Now()
	time.Sleep(45 * time.Second) // one in eight of 200 tokens is for 24 processes, so 30 give their shares up
	_, before := f.look(f.all[5:32])
	time.Sleep(3 * time.Second)
	if _, after := f.look(f.all[5:32]); after != before {
		t.Errorf("the shares of 30 processes admitted %d tokens", after-before)
	}
	names, err := server.Client().Keys(t.Context(), "*st1").Result()
	if err != nil || len(names) != 1 || server.Client().Del(t.Context(), names...).Err() != nil {
		t.Fatalf("tables %v, %v", names, err)
	}
	time.Sleep(5 * time.Second)

	// A deploy that makes the part larger, and the fleet small again.
	f.job.Loads = loads(4, 100)
	f.start(4)
	time.Sleep(5 * time.Second)
	old := append(f.all[:2:2], f.all[5:32]...)
	for _, r := range old.Stop() {
		if !strings.Contains(r.Log, "too many processes") {
			t.Errorf("a process of 30 says nothing of it: %s", r.Log)
		}
	}
	time.Sleep(max(0, 70*time.Second-time.Since(froze))) // longer than a right
	frozen.Resume()
	time.Sleep(5 * time.Second)
	frozen.Stop()
	members := f.all[len(f.all)-4:]
	f.until("the larger part", members, used(0.1))
	time.Sleep(20 * time.Second)
	spent("half of the limit", members)

	// One that lowers a limit, and one that turns the shares off.
	f.job.Loads = loads(4, 80)
	f.start(2)
	members[:2].Stop()
	time.Sleep(5 * time.Second)
	f.job.Loads = loads(0, 80)
	f.start(4)
	time.Sleep(5 * time.Second)
	rest := append(members[2:4:4], f.all[len(f.all)-6:len(f.all)-4]...)
	rest.Stop()
	time.Sleep(20 * time.Second)
	last := f.all[len(f.all)-4:]
	if _, taken := f.look(last); taken > 0 {
		t.Errorf("shares that nobody wants admitted %d tokens", taken)
	}
	f.all.Stop()
	for _, l := range loads(1, 100) {
		if l.Algorithm == tiered.FixedWindow {
			if n := fleet.FullestWindow(f.all.Records(l.Name), l.Limit.Per); n > int(l.Limit.Tokens) || n < int(l.Limit.Tokens)/2 {
				t.Errorf("%s: %d of %d tokens in the fullest window", l.Name, n, l.Limit.Tokens)
			} else {
				t.Logf("%s: %d of %d tokens in the fullest window", l.Name, n, l.Limit.Tokens)
			}
			continue
		}
		if l.Name == "near" { // its plan is the small one
			l.Limit = l.Plans["small"]
		}
		over := f.over(l, began, time.Now())
		t.Logf("%s: over-admission %.1f", l.Name, over)
		if over > 0 {
			t.Errorf("%s: %.1f tokens over the limit", l.Name, over)
		}
	}
}

// standingLoads are what each of n processes offers: keys far below their limit, near it and at
// three times it, and one whose bucket is full every 2 s and is then emptied within 0.8 s. Only
// that one shows a token too many in short time.
func standingLoads(n int) []fleet.Load {
	load := func(name string, limit tiered.Limit, offer float64) fleet.Load {
		return fleet.Load{
			Policy: tiered.Policy{Name: name, Limit: limit, FailMode: tiered.FailClosed, Standing: 1.0 / 8},
			Offer:  offer / float64(n),
		}
	}
	limit := tiered.PerSecond(100).WithBurst(200)
	surges := load("surges", tiered.PerSecond(100).WithBurst(96), 130)
	surges.Surges = true
	return []fleet.Load{load("rare", limit, 2), load("near", limit, 80), load("over", limit, 300), surges}
}
