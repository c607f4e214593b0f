package tiered_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// diary writes down what the hooks are told. They come one after the other: it needs no lock, and
// the race detector would tell.
type diary struct {
	lines  []string
	states []tiered.Event
	leases []tiered.Event
	errors []tiered.Event
}

func (d *diary) trace() *tiered.Trace {
	return &tiered.Trace{
		Decision: func(x tiered.Decision) { d.lines = append(d.lines, x.Reason.String()) },
		Lease: func(x tiered.Event) {
			d.lines = append(d.lines, "lease")
			d.leases = append(d.leases, x)
		},
		State: func(x tiered.Event) {
			d.lines = append(d.lines, x.From+"→"+x.What)
			d.states = append(d.states, x)
		},
		Error: func(x tiered.Event) {
			d.lines = append(d.lines, "error")
			d.errors = append(d.errors, x)
		},
	}
}

func TestTraceTellsWhatHappensInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var d diary
		store := newDistant(ms)
		l := limiter(t, store, tiered.Policy{Limit: tiered.PerDay(3), FailMode: tiered.FailClosed},
			&tiered.Options{Trace: d.trace()})
		time.Sleep(10 * ms)
		for range 4 {
			l.Allow(ctx, "k")
		}
		l.AllowN(ctx, "k", 9)
		l.Allow(ctx, "")
		store.Fail(io.EOF)
		l.Allow(ctx, "other")
		time.Sleep(100 * ms)
		synctest.Wait()
		got := strings.Join(d.lines, ", ")
		if want := "lease, granted, lease, granted, lease, granted, lease, limited, exceeds burst, invalid key, error, unavailable, error"; got != want {
			t.Errorf("have %s\nwant %s", got, want)
		}
		first, last := d.leases[0], d.leases[3]
		if first != (tiered.Event{
			Node: "memory", Policy: "api", Key: "k", Direct: true, Asked: 1, Granted: 1,
			Time: ms, What: "lease", At: first.At,
		}) {
			t.Errorf("%+v", first)
		}
		if last.Granted != 0 || last.Asked != 1 {
			t.Errorf("%+v", last)
		}
		if e := d.errors[0]; e.Node != "memory" || e.Policy != "api" || e.Key != "other" || !errors.Is(e.Err, io.EOF) {
			t.Errorf("%+v", e)
		}
		store.Fail(nil)
	})
}

// A hook that blocks does not delay decisions. Events that it does not keep up with are dropped and
// counted.
func TestSlowHookHoldsNobodyUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		told := 0
		store := newDistant(ms)
		var log logged
		l := limiter(t, store, tiered.Policy{Limit: tiered.PerHour(1_000_000)}, &tiered.Options{
			Logger: log.logger(), Trace: &tiered.Trace{Decision: func(tiered.Decision) { <-release; told++ }},
		})
		leased(t, l)
		synctest.Wait()
		start := time.Now()
		const many = 5000
		for range many {
			l.Allow(ctx, "k")
			l.AllowN(ctx, "k", 0)
		}
		if d := time.Since(start); d > 100*ms { // some of them asked Redis
			t.Errorf("%v for decisions of a lease", d)
		}
		start = time.Now()
		for range 100 {
			l.AllowN(ctx, "k", 0)
		}
		if d := time.Since(start); d != 0 {
			t.Errorf("waited %v for a hook", d)
		}
		// The breaker's changes and the log have the same queue: they hold nobody up either.
		store.loseRequests.Store(true)
		for range 10 {
			start = time.Now()
			l.Allow(ctx, "other")
			if d := time.Since(start); d > tiered.DefaultBudget {
				t.Errorf("waited %v", d)
			}
			time.Sleep(100 * ms)
		}
		store.loseRequests.Store(false)
		before := l.Group().Stats()
		dropped, asked := before.TraceDropped, before.Policies["api"].Requests
		if dropped < many {
			t.Errorf("%d dropped", dropped)
		}
		close(release)
		synctest.Wait()
		if all := asked.Allowed + asked.Refused; int64(told)+dropped != all {
			t.Errorf("%d told and %d dropped of %d", told, dropped, all)
		}
		first := told
		l.AllowN(ctx, "k", 0)
		synctest.Wait()
		if told != first+1 || l.Group().Stats().TraceDropped != dropped {
			t.Errorf("%d told, %d dropped", told-first, l.Group().Stats().TraceDropped-dropped)
		}
	})
}

func TestHookThatPanics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log logged
		var told []int64
		l := limiter(t, newDistant(ms), tiered.Policy{Limit: tiered.PerDay(10)}, &tiered.Options{
			Logger: log.logger(),
			Trace: &tiered.Trace{
				Decision: func(d tiered.Decision) {
					if d.Remaining == 8 {
						panic(fmt.Sprint("at ", d.Remaining))
					}
					told = append(told, d.Remaining)
				},
				Lease: func(tiered.Event) { panic(io.EOF) },
			},
		})
		for range 4 {
			l.Allow(ctx, "k")
			synctest.Wait()
		}
		if !slices.Equal(told, []int64{9, 7, 6}) {
			t.Errorf("%v", told)
		}
		time.Sleep(2 * time.Second)
		lines := log.lines()
		if len(lines) != 1 || !strings.Contains(lines[0], "level=ERROR") ||
			!strings.Contains(lines[0], `panic="*errors.errorString in `) || !strings.Contains(lines[0], " count=5") {
			t.Errorf("want one line, of one decision and four calls: %q", lines)
		}
		if n := l.Group().Stats().TracePanics; n != 5 {
			t.Errorf("%d panics counted", n)
		}
	})
}

// Events before Close are delivered. After Close decisions continue, without hooks.
func TestTraceEndsWithClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		told := 0
		l := must(tiered.New(newDistant(ms), tiered.Policy{Name: "api", Limit: tiered.PerHour(1_000_000)}, &tiered.Options{
			Trace: &tiered.Trace{Decision: func(tiered.Decision) { time.Sleep(ms); told++ }},
		}))
		time.Sleep(10 * ms)
		for range 500 {
			l.AllowN(context.Background(), "k", 0)
		}
		closeIn(t, l, time.Second)
		if told != 500 {
			t.Errorf("%d told, want 500", told)
		}
		for range 3000 {
			l.Allow(context.Background(), "k")
		}
		time.Sleep(time.Second)
		if told != 500 {
			t.Errorf("%d told after Close", told-500)
		}
	})
	synctest.Test(t, func(t *testing.T) { // a hook that does not come back: Close says so, and goes on
		release := make(chan struct{})
		l := must(tiered.New(newDistant(ms), tiered.Policy{Name: "api", Limit: tiered.PerSecond(10)}, &tiered.Options{
			Trace: &tiered.Trace{Decision: func(tiered.Decision) { <-release }},
		}))
		l.Allow(context.Background(), "k")
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		start := time.Now()
		if err := l.Close(ctx); !errors.Is(err, context.DeadlineExceeded) || time.Since(start) != time.Second {
			t.Errorf("%v after %v", err, time.Since(start))
		}
		close(release)
	})
}

// The probes of an outage are no recent events, and a series of faults is one.
func TestRecentEventsAreFew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := tiered.NewTracer(nil)
		r.State(tiered.Event{Node: "a", From: "closed", What: "open", Class: "unreachable"})
		for range 200 {
			r.State(tiered.Event{Node: "a", From: "open", What: "probing"})
			r.State(tiered.Event{Node: "a", From: "probing", What: "open", Class: "unreachable"})
		}
		time.Sleep(time.Minute)
		r.State(tiered.Event{Node: "a", From: "probing", What: "closed", Time: time.Minute})
		for range 1000 {
			r.Fault(tiered.Event{What: "state loss", Node: "a", Key: "ann"})
			time.Sleep(ms)
		}
		want := []string{"open a unreachable 1", "closed a  1", "state loss a  1000"}
		var got []string
		for _, e := range r.RecentEvents() {
			got = append(got, fmt.Sprint(e.What, " ", e.Node, " ", e.Class, " ", e.Count))
		}
		if !slices.Equal(got, want) {
			t.Errorf("%q, want %q", got, want)
		}
		if e := r.RecentEvents()[1]; e.Time != time.Minute || !e.At.Equal(time.Now().Add(-time.Second)) {
			t.Errorf("%+v", e)
		}
	})
}

// A series of equal events is one entry with its number and its last time, and the oldest entries
// leave.
func TestRecentIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := tiered.NewTracer(nil)
		for i, e := range []tiered.Event{
			{What: "open", From: "closed", Node: "a", Class: "unreachable"},
			{What: "open", From: "closed", Node: "a", Class: "saturated"},
			{What: "loss", Node: "a"},
			{What: "loss", Node: "a", Time: 3, Key: "ann", Err: io.EOF},
			{What: "loss", Node: "b"},
			{What: "loss", Node: "a"},
		} {
			time.Sleep(time.Second)
			e.Count = int64(i) // which it knows better
			if e.From != "" {
				r.State(e)
			} else {
				r.Fault(e)
			}
		}
		var got []string
		for _, e := range r.RecentEvents() {
			got = append(got, fmt.Sprint(e.What, " ", e.Node, " ", e.Class, " ", int64(e.Time), " ", e.Count, " ", time.Since(e.At)))
			if e.Key != "" || e.Err != nil {
				t.Errorf("%+v has a key or an error", e)
			}
		}
		want := []string{
			"open a unreachable 0 1 5s", "open a saturated 0 1 4s", "loss a  3 2 2s", "loss b  0 1 1s", "loss a  0 1 0s",
		}
		if !slices.Equal(got, want) {
			t.Errorf("%q, want %q", got, want)
		}
		for i := range 1000 {
			r.Fault(tiered.Event{What: "step", Node: fmt.Sprint(i)})
		}
		all := r.RecentEvents()
		if len(all) != tiered.MaxRecent || all[len(all)-1].Node != "999" || r.RecentRoom() > 2*tiered.MaxRecent {
			t.Errorf("%d events of %d, the last of %s", len(all), r.RecentRoom(), all[len(all)-1].Node)
		}
	})
}

// teller calls a function for each line that is logged.
type teller func()

func (teller) Enabled(context.Context, slog.Level) bool { return true }
func (f teller) Handle(_ context.Context, r slog.Record) error {
	if r.Message != "redis answers" { // that of a healthy start
		f()
	}
	return nil
}
func (f teller) WithAttrs([]slog.Attr) slog.Handler { return f }
func (f teller) WithGroup(string) slog.Handler      { return f }
func loggedBy(f func()) *slog.Logger                { return slog.New(teller(f)) }

// A hook or a Logger that calls Close waits for itself, until its context ends: see Close. It does
// no other harm: leases are returned, and another Close ends.
func TestHookThatCloses(t *testing.T) {
	for name, options := range map[string]func(closing func()) *tiered.Options{
		"hook": func(closing func()) *tiered.Options {
			return &tiered.Options{Trace: &tiered.Trace{Decision: func(tiered.Decision) { closing() }}}
		},
		"logger": func(closing func()) *tiered.Options { return &tiered.Options{Logger: loggedBy(closing)} },
	} {
		bubble(t, name, func(t *testing.T) {
			var l *tiered.Limiter
			all := make(chan error, 1000)
			p := tiered.Policy{
				Name: "api", Limit: tiered.PerSecond(1000), PerKey: func(string) tiered.Limit { panic("no") },
			} // which is logged
			store := newDistant(ms)
			l = limiter(t, store, p, options(func() {
				ctx, cancel := context.WithTimeout(context.Background(), 10*second)
				defer cancel()
				all <- l.Close(ctx)
			}))
			time.Sleep(10 * ms)
			l.Allow(t.Context(), "k")
			if err := <-all; !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("Close: %v", err)
			}
			closeIn(t, l, second)
		})
	}
}
