package tiered_test

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"

	"github.com/tiered-limiter/tiered-limiter/internal/redistest"
	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

const (
	// outageProcesses share each limit of the outage tests.
	outageProcesses = 4

	// tripTime is how long after a fault all breakers are open: three failures in a row, of a key that asks again after a
	// pause that doubles.
	tripTime = time.Second

	// backTime is how long after the end of a fault everything is as before: one open time of a breaker is 1 s at most,
	// and a client of go-redis that could not dial tries again only each second.
	backTime = 3 * time.Second
)

// outageLimit is the limit of the outage tests: high enough that a second is many decisions, low enough for two cores.
var outageLimit = tiered.PerSecond(1000).WithBurst(200)

// outageLoad is a load on a fail mode that offers demand times the limit, over all processes together.
func outageLoad(mode tiered.FailMode, demand float64) load {
	return load{
		Policy:   fmt.Sprintf("%v-%.1f", mode, demand),
		FailMode: mode,
		Limit:    outageLimit,
		Offer:    demand * float64(outageLimit.Tokens) / outageProcesses,
	}
}

// TestOutageOnRedis is what the fail modes promise, of real processes whose clients are at go-redis' defaults: Redis freezes,
// dies and comes back empty, or was never there. Each process has all modes and demands in one Group.
func TestOutageOnRedis(t *testing.T) {
	if testing.Short() {
		t.Skip("45 s of real time")
	}
	for _, c := range []struct {
		name       string
		begin, end func(*redistest.Server) // nil: there never was a server
		length     time.Duration
		lost       bool // Redis comes back without its data
	}{
		{"frozen for 4 s", (*redistest.Server).Pause, (*redistest.Server).Resume, 4 * time.Second, false},
		{"killed, back empty after 4 s", (*redistest.Server).Kill, (*redistest.Server).Restart, 4 * time.Second, true},
		{"never there", nil, nil, 3 * time.Second, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			job := childJob{Defaults: true, Processes: outageProcesses}
			for mode := tiered.FailLocal; mode <= tiered.FailClosed; mode++ {
				for _, demand := range []float64{1.5, 3} {
					job.Loads = append(job.Loads, outageLoad(mode, demand))
				}
			}
			var server *redistest.Server
			if c.begin != nil {
				server = redistest.Start(t)
				job.URL = server.URL()
			} else {
				job.URL = "redis://" + net.JoinHostPort("127.0.0.1", strconv.Itoa(redistest.FreePort(t)))
			}
			children := startFleet(t, job, outageProcesses)
			o := outage{returns: c.begin != nil, lost: c.lost}
			if c.begin == nil {
				o.down = time.Now().UnixNano()
				time.Sleep(c.length)
				o.up = time.Now().UnixNano()
				o.back, o.end = o.up, o.up
			} else {
				time.Sleep(3 * time.Second) // every process has seen the others
				c.begin(server)
				o.down = time.Now().UnixNano()
				time.Sleep(c.length)
				o.up = time.Now().UnixNano()
				c.end(server)
				o.back = time.Now().UnixNano()
				time.Sleep(10 * time.Second)
				o.end = time.Now().UnixNano()
			}
			reports := stopFleet(children)
			o.measureLags(reports)
			t.Logf("the runner's lag: longest %v, p99 while the breakers are open %v", o.longestLag, o.openLag)

			for _, load := range job.Loads {
				all := recordsOf(children, load.Policy)
				var stats tiered.PolicyStats
				for _, r := range reports {
					stats.Open += r.Stats.Policies[load.Policy].Open
					stats.Shared += r.Stats.Policies[load.Policy].Shared
				}
				figures, complaints := o.judge(load.FailMode, all, stats)
				t.Logf("%s: %s", load.Policy, figures)
				for _, complaint := range complaints {
					t.Errorf("%s: %s", load.Policy, complaint)
				}
				// The judge can find fault: no mode passes for another one.
				for mode := tiered.FailLocal; mode <= tiered.FailClosed; mode++ {
					if _, complaints := o.judge(mode, all, stats); mode != load.FailMode && len(complaints) == 0 {
						t.Errorf("%s passes for %v: this test shows nothing", load.Policy, mode)
					}
				}
			}
		})
	}
}

// outage is when an outage was, and what the machine added to it. Times are ns of the wall clock.
type outage struct {
	down, up   int64 // from when on Redis was surely gone, and until when
	back, end  int64 // from when on it was surely there again, and the end of all that is judged
	returns    bool  // it was there before, and comes back
	lost       bool  // without its data
	longestLag time.Duration
	openLag    time.Duration // 99th percentile while the breakers are open
}

// measureLags notes by how much the processes overslept.
func (o *outage) measureLags(reports []report) {
	var open []int64
	for _, r := range reports {
		for _, l := range r.Lags {
			o.longestLag = max(o.longestLag, time.Duration(l.Over))
			if l.At >= o.down+int64(tripTime) && l.At < o.up {
				open = append(open, l.Over)
			}
		}
	}
	o.openLag = quantile(open, 0.99)
}

// together are the reasons of a process that Redis answers, allowing those of a decision that allows.
var (
	together = []tiered.Reason{tiered.Granted, tiered.Limited}
	allowing = []tiered.Reason{tiered.Granted, tiered.Shared, tiered.Open}
)

// alone are the reasons that a fail mode may give while it decides alone. Granted is of a lease.
var alone = map[tiered.FailMode][]tiered.Reason{
	tiered.FailLocal:  {tiered.Granted, tiered.Shared, tiered.ShareSpent},
	tiered.FailOpen:   {tiered.Granted, tiered.Open},
	tiered.FailClosed: {tiered.Granted, tiered.Unavailable},
}

// strange counts the requests whose reason is none of the usual ones, and reports the first of them.
func strange(all []record, usual []tiered.Reason) (n int, first record) {
	for _, r := range all {
		if slices.Contains(usual, r.reason) {
			continue
		}
		if n == 0 {
			first = r
		}
		n++
	}
	return n, first
}

// judge holds the records of a load against what its mode promises, and says what it saw and what is wrong.
func (o *outage) judge(mode tiered.FailMode, all []record, stats tiered.PolicyStats) (figures string, complaints []string) {
	complain := func(format string, args ...any) { complaints = append(complaints, fmt.Sprintf(format, args...)) }
	perSecond := float64(outageLimit.Tokens) / outageLimit.Per.Seconds()
	burst := float64(outageLimit.Burst)

	// No decision is long, whatever happens.
	var longest time.Duration
	reasons := map[tiered.Reason]int64{}
	wrong := 0
	for _, r := range all {
		longest = max(longest, time.Duration(r.after-r.before))
		reasons[r.reason]++
		if r.allowed != slices.Contains(allowing, r.reason) {
			wrong++
		}
	}
	if wrong > 0 {
		complain("%d decisions do not agree with their reasons", wrong)
	}
	if most := tiered.DefaultBudget + 50*time.Millisecond + o.longestLag; longest > most {
		complain("a decision took %v, want %v at most", longest, most)
	}

	// With open breakers every decision is the mode's, and takes no time.
	open := within(all, o.down+int64(tripTime), o.up)
	var took []int64
	var refused, admitted int
	for _, r := range open {
		took = append(took, r.after-r.before)
		if r.allowed {
			admitted++
		} else {
			refused++
		}
	}
	if n, first := strange(open, alone[mode]); n > 0 {
		complain("%d decisions are not the mode's while the breakers are open, as %v after %v", n, first.reason, time.Duration(first.before-o.down))
	}
	p99 := quantile(took, 0.99)
	if p99 >= time.Millisecond {
		complain("1 %% of decisions take %v or longer while the breakers are open; 1 %% of sleeps are %v too long", p99, o.openLag)
	}
	openTime := time.Duration(o.up-o.down) - tripTime
	if least := perSecond * openTime.Seconds(); float64(len(open)) < 1.2*least {
		complain("only %d requests while the breakers are open: this shows little", len(open))
	}

	figures = fmt.Sprintf("longest decision %v, p99 with open breakers %v; %d of %d refused then", longest, p99, refused, len(open))
	over := func(from, to int64) float64 {
		v := judge(within(all, from, to), outageLimit)
		return v.worst.Over - v.tolerance
	}
	switch mode {
	case tiered.FailLocal:
		most := 1.5 * burst
		switch {
		case !o.returns:
			most = 0 // the shares add up to the limit
		case o.lost:
			most += burst // its full bucket
		}
		excess := over(o.down, o.end)
		figures += fmt.Sprintf("; over-admission %.0f from the fault on, %.0f in all", max(0, excess), max(0, over(all[0].before, o.end)))
		if excess > most {
			complain("over-admission %.1f from the fault on, want %.0f at most", excess, most)
		}
		if least := 0.9 * perSecond * openTime.Seconds(); float64(admitted) < least {
			complain("only %d admitted with open breakers, want %.0f at least", admitted, least)
		}
		if reasons[tiered.Shared] != stats.Shared {
			complain("%d admitted by the shares, but Stats count %d", reasons[tiered.Shared], stats.Shared)
		}
	case tiered.FailOpen:
		figures += fmt.Sprintf("; %d admitted openly, %d by Stats", reasons[tiered.Open], stats.Open)
		if refused > 0 {
			complain("%d refused", refused)
		}
		if reasons[tiered.Open] != stats.Open || stats.Open == 0 {
			complain("%d admitted openly, but Stats count %d", reasons[tiered.Open], stats.Open)
		}
	case tiered.FailClosed:
		// Each process holds a lease of a quarter of the burst at most, and its end is nearer than that of the outage.
		spent := 0
		for _, r := range within(all, o.down, o.up) {
			if r.allowed {
				spent++
			}
		}
		most := outageProcesses * int(outageLimit.Burst) / 4
		if !o.returns {
			most = 0
		}
		excess := over(all[0].before, o.end)
		figures += fmt.Sprintf("; %d admitted in the outage, of leases; over-admission %.0f", spent, max(0, excess))
		if spent > most {
			complain("%d admitted in the outage, want %d at most", spent, most)
		}
		if excess > 0 {
			complain("over-admission %.1f", excess)
		}
	}
	if !o.returns {
		return figures, complaints
	}

	// Back: nobody decides alone any more, and the limit is used.
	var used int
	again := within(all, o.back+int64(backTime), o.end)
	for _, r := range again {
		if r.allowed {
			used++
		}
	}
	// A busy machine may hold a call up for longer than Budget, or even than Timeout, after which its key pauses. A breaker
	// that is open for half a second is 2 % of one load's decisions.
	most := 0.001
	if o.longestLag > tiered.DefaultBudget {
		most = 0.015
	}
	strays, first := strange(again, together)
	if float64(strays) > most*float64(len(again)) {
		complain("%d of %d decisions are made alone again, as %v %v after the end of the fault",
			strays, len(again), first.reason, time.Duration(first.before-o.back))
	}
	part := float64(used) / (perSecond * (time.Duration(o.end-o.back) - backTime).Seconds())
	last := int64(0) // that was decided alone
	for _, r := range all {
		if r.before < o.back+int64(backTime) && !slices.Contains(together, r.reason) {
			last = max(last, r.before)
		}
	}
	figures += fmt.Sprintf("; back %v after the end; then %.1f %% of the limit used, %d of %d decided alone",
		time.Duration(max(last-o.back, 0)).Round(time.Millisecond), 100*part, strays, len(again))
	if part < 0.95 {
		complain("%.1f %% of the limit used from %v after the end of the fault on", 100*part, backTime)
	}
	return figures, complaints
}

// TestFlappingOnRedis freezes Redis every other second. An outage that ends hands nothing out, so many of them do not add
// up; and whoever keeps within the limit is not made to pay for it.
func TestFlappingOnRedis(t *testing.T) {
	if testing.Short() {
		t.Skip("25 s of real time")
	}
	server := redistest.Start(t)
	busy, calm := outageLoad(tiered.FailLocal, 1.5), outageLoad(tiered.FailLocal, 0.5)
	children := startFleet(t, childJob{
		URL: server.URL(), Defaults: true, Processes: outageProcesses, Loads: []load{busy, calm},
	}, outageProcesses)
	time.Sleep(2 * time.Second)
	for range 10 {
		server.Pause()
		time.Sleep(time.Second)
		server.Resume()
		time.Sleep(time.Second)
	}
	var o outage
	o.measureLags(stopFleet(children))

	v := judge(recordsOf(children, busy.Policy), outageLimit)
	shared, refused, all := 0, 0, recordsOf(children, calm.Policy)
	for _, r := range recordsOf(children, busy.Policy) {
		if r.reason == tiered.Shared {
			shared++
		}
	}
	for _, r := range all {
		if !r.allowed {
			refused++
		}
	}
	t.Logf("%d admitted of 1.5 times the limit, %d of them alone; over-admission %.0f; of half the limit %d of %d refused; longest lag %v",
		v.admitted, shared, v.worst.Over, refused, len(all), o.longestLag)
	if v.worst.Over >= 2*float64(outageLimit.Burst) {
		t.Errorf("over-admission %v, want less than 2 bursts", v.worst)
	}
	if float64(refused) > 0.001*float64(len(all)) {
		t.Errorf("%d of %d refused at half the limit", refused, len(all))
	}
	if v.offered < 1.3 || shared < 1000 || len(all) < 8000 {
		t.Errorf("%.2f times the limit offered, %d decided alone, %d requests of half the limit: this shows little", v.offered, shared, len(all))
	}
}

// TestBreakerLeavesNoGoroutines: whatever an outage left under way ends, also when Close comes in the middle of it.
func TestBreakerLeavesNoGoroutines(t *testing.T) {
	for name, fault := range map[string]func(*redistest.Server){
		"killed": (*redistest.Server).Kill, "frozen": (*redistest.Server).Pause,
	} {
		t.Run(name, func(t *testing.T) {
			server := redistest.Start(t)
			before := goleak.IgnoreCurrent()
			var groups []*tiered.Group
			var clients []*redis.Client
			var loads sync.WaitGroup
			ctx, stop := context.WithCancel(t.Context())
			defer stop()
			for mode := tiered.FailLocal; mode <= tiered.FailClosed; mode++ {
				client := redis.NewClient(server.Options(redis.Options{}))
				g, err := tiered.NewGroup(remote.NewRedis(client, nil), &tiered.Options{Processes: 3})
				if err != nil {
					t.Fatal(err)
				}
				l, err := g.Limiter(tiered.Policy{Name: "api", Limit: outageLimit, FailMode: mode})
				if err != nil {
					t.Fatal(err)
				}
				groups, clients = append(groups, g), append(clients, client)
				for i := range 4 {
					loads.Go(func() {
						for n := 0; ctx.Err() == nil; n++ {
							l.Allow(context.Background(), "hot")
							l.Allow(context.Background(), strconv.Itoa(4*n+i)) // a key that nobody has seen: it holds nothing
							time.Sleep(5 * time.Millisecond)
						}
					})
				}
			}
			time.Sleep(300 * time.Millisecond)
			fault(server)
			time.Sleep(1200 * time.Millisecond) // long enough for probes, too short for the end of the leases
			for i, g := range groups {
				for node, s := range g.Stats().Nodes {
					if s.Breaker == "closed" {
						t.Errorf("%v: the breaker of %s is closed", tiered.FailMode(i), node)
					}
				}
			}
			stop()
			loads.Wait()

			const patience = 2 * time.Second
			var closing sync.WaitGroup
			for i, g := range groups {
				closing.Go(func() {
					ctx, cancel := context.WithTimeout(context.Background(), patience)
					defer cancel()
					begin := time.Now()
					err := g.Close(ctx)
					took := time.Since(begin)
					t.Logf("%v: Close took %v: %v", tiered.FailMode(i), took, err)
					if took > patience+250*time.Millisecond { // a stalled machine's share of it
						t.Errorf("%v: Close took %v", tiered.FailMode(i), took)
					}
				})
			}
			closing.Wait()
			for _, c := range clients {
				_ = c.Close()
			}
			begin := time.Now()
			for {
				err := goleak.Find(before)
				if err == nil {
					break
				}
				// A connection that go-redis was dialling when it was closed lives for its DialTimeout of 5 s.
				if time.Since(begin) > 6*time.Second {
					t.Fatal(err)
				}
			}
			t.Logf("all goroutines have ended after %v", time.Since(begin))
		})
	}
}

// startFleet starts processes of a job, each with a seed of its own, and has them begin together.
func startFleet(t *testing.T, job childJob, processes int) (children []*child) {
	for i := range processes {
		job.Seed = uint64(i)
		children = append(children, startChild(t, job))
	}
	for _, c := range children {
		c.begin()
	}
	return children
}

// stopFleet ends all processes together and returns what they report.
func stopFleet(children []*child) (all []report) {
	for _, c := range children {
		c.finish()
	}
	for _, c := range children {
		c.stop()
		all = append(all, c.report())
	}
	return all
}

// recordsOf is what all processes wrote of a load, by time.
func recordsOf(children []*child, policy string) (all []record) {
	for _, c := range children {
		all = append(all, c.records(policy)...)
	}
	slices.SortFunc(all, func(a, b record) int { return int(a.before - b.before) })
	return all
}

// within are the requests that were made from one time on and decided before another.
func within(all []record, from, to int64) (some []record) {
	for _, r := range all {
		if r.before >= from && r.after < to {
			some = append(some, r)
		}
	}
	return some
}

// quantile reports the value that a part of all does not exceed.
func quantile(all []int64, part float64) time.Duration {
	if len(all) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(all))
	return time.Duration(sorted[int(part*float64(len(sorted)-1))])
}
