package tiered_test

import (
	"context"
	"fmt"
	"log/slog"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/watch"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// unremarkable are the figures that change without a fault.
var unremarkable = []string{
	"Standing", "policy.Standing.Spent", // normal where a policy has standing shares
	"Keys", "Leaving", "Evictions", "Format", "Script",
	"policy.Leases.Granted", "policy.Leases.Spent", "policy.Leases.Returned", "policy.Leases.Burnt", "policy.Leases.Held",
	"policy.Tokens.Limited",
	"policy.Requests", "policy.Tokens.Granted", "policy.RedisTime", "policy.Tokens.NearLimit", "node.Calls.RoundTrips",
	"policy.Top", "Recent", // which repeat others: see stats_test.go
	"node.Outages.Probed", "node.Outages.Reopened", "node.Outages.Ended", // which go with node.Outages
	"node.Calls.Sent", "node.Calls.RoundTrip", "node.Processes", "policy.Processes.Sharing", "node.Outages.Breaker",
}

// remarkable reports the figures of a Group that are not zero.
func remarkable(s tiered.Stats) map[string]bool {
	all := map[string]bool{}
	var add func(prefix string, of any)
	add = func(prefix string, of any) {
		v := reflect.ValueOf(of)
		for i := range v.NumField() {
			name, f := prefix+v.Type().Field(i).Name, v.Field(i)
			switch {
			case f.Kind() == reflect.Map || f.IsZero() || slices.Contains(unremarkable, name):
			case f.Kind() == reflect.Struct && f.Type().Name() == "": // a group
				add(name+".", f.Interface())
			default:
				all[name] = true
			}
		}
	}
	add("", s)
	add("policy.", s.Policies["api"])
	add("node.", s.Nodes["memory"])
	return all
}

// words are the events that the hooks were told of, each once.
type words []string

func (w *words) add(format string, args ...any) {
	text := strings.TrimSpace(fmt.Sprintf(format, args...))
	if !slices.Contains(*w, text) {
		*w = append(*w, text)
	}
}

func (w *words) trace() *tiered.Trace {
	return &tiered.Trace{
		Decision: func(d tiered.Decision) {
			if d.Key == "panic" {
				panic("hook")
			}
		},
		State: func(e tiered.Event) {
			if e.What == "closed" && e.Time <= 0 || e.What != "closed" && e.Time != 0 {
				w.add("closed after %v", e.Time)
			}
			w.add("%s→%s %s", e.From, e.What, e.Class)
		},
		Error: func(e tiered.Event) {
			if e.Err == nil || e.Policy != "api" || e.Key == "" {
				w.add("incomplete: %+v", e)
			}
			w.add("error %s", e.Class)
		},
		Fault: func(e tiered.Event) {
			switch e.What {
			case "presence again":
				w.add("presence again")
			case "presence":
				w.add("presence %v", e.Err)
			case "state loss":
				if e.Policy != "api" || e.Key == "" {
					w.add("incomplete: %+v", e)
				}
				w.add("state loss")
			default:
				w.add("%s %v", e.What, e.Time.Round(ms))
			}
		},
	}
}

func TestWhatOperatorsAreTold(t *testing.T) {
	for _, c := range faultsTold {
		bubble(t, c.name, func(t *testing.T) {
			var heard words
			var log logged
			o := c.options
			o.Logger, o.Trace = log.logger(), heard.trace()
			p := patientOf{t: t, store: &afflicted{distant: newDistant(ms)}}
			o.Random = func() float64 { return 0.503 } // no probe is due at the instant of a request
			limit := c.limit
			if limit == (tiered.Limit{}) {
				limit = tiered.PerSecond(100)
			}
			p.l = limiter(t, watch.Damaged{Store: p.store}, tiered.Policy{
				Limit: limit, FailMode: c.mode, Standing: c.standing,
			}, &o)
			time.Sleep(10 * ms)
			p.ask(4 * time.Second)
			synctest.Wait()
			before := remarkable(p.l.Group().Stats())
			if len(before)+len(heard) > 0 || log.lines()[0] != "" {
				t.Fatalf("before the fault: %v, %v, %q", before, heard, log.lines())
			}

			c.fault(p)
			p.ask(12 * time.Second)
			synctest.Wait()

			lines := log.lines()
			var short []string
			for _, line := range lines {
				_, level, _ := strings.Cut(line, "level=")
				level, text, _ := strings.Cut(level, " msg=")
				if text, _, _ = strings.Cut(strings.Replace(text, `"`, "", 1), `"`); text != "" {
					short = append(short, level+" "+text)
				}
				if strings.Contains(line, "hot") || strings.Contains(line, "cold") {
					t.Errorf("a line with a key: %s", line)
				}
			}
			if !slices.Equal(short, c.lines) {
				t.Errorf("lines:\n%s\nwant:\n%s", strings.Join(lines, "\n"), strings.Join(c.lines, "\n"))
			}
			if !strings.Contains(strings.Join(lines, "\n"), c.attrs) {
				t.Errorf("no %s in\n%s", c.attrs, strings.Join(lines, "\n"))
			}
			after := remarkable(p.l.Group().Stats())
			for _, name := range strings.Fields(strings.ReplaceAll(c.figures, "node.Outages.Count",
				"node.Outages.Count node.Outages.Time node.Outages.Cause")) {
				if !after[name] {
					t.Errorf("%s is zero", name)
				}
				delete(after, name)
			}
			if len(after) > 0 {
				t.Errorf("these are not zero either: %v", after)
			}
			slices.Sort(heard)
			want := strings.Split(c.events, ", ")
			slices.Sort(want)
			if got := strings.Join(heard, ", "); got != strings.Join(want, ", ") {
				t.Errorf("events: %s\nwant:   %s", got, strings.Join(want, ", "))
			}
		})
	}
}

// A process that never heard from Redis does not know how many share the limit, unless it is told.
func TestUnknownNumberOfProcessesIsTold(t *testing.T) {
	for _, processes := range []int{0, 3} {
		synctest.Test(t, func(t *testing.T) {
			var log logged
			store := newDistant(ms)
			store.loseRequests.Store(true)
			l := limiter(t, store, tiered.Policy{Limit: tiered.PerSecond(100)},
				&tiered.Options{Processes: processes, Logger: log.logger()})
			time.Sleep(10 * time.Second)
			const text = "the number of processes is not known"
			if lines := strings.Join(log.lines(), "\n"); strings.Contains(lines, text) {
				t.Errorf("before a share decided: %s", lines)
			}
			patientOf{t: t, store: &afflicted{distant: store}, l: l}.ask(10 * time.Second)
			lines := strings.Join(log.lines(), "\n")
			if n := strings.Count(lines, text); n != 1 && processes == 0 || n > 0 && processes > 0 {
				t.Errorf("%d lines say so with Options.Processes %d:\n%s", n, processes, lines)
			}
			store.loseRequests.Store(false)
		})
	}
}

// A Logger that blocks, or panics, costs no decision anything.
func TestLoggerThatBlocksOrPanics(t *testing.T) {
	for _, write := range []func(){func() { time.Sleep(time.Hour) }, func() { panic("logger") }} {
		synctest.Test(t, func(t *testing.T) {
			l := must(tiered.New(&afflicted{distant: newDistant(ms)}, tiered.Policy{
				Name: "api", Limit: tiered.PerSecond(100),
			},
				&tiered.Options{Logger: slog.New(slog.NewTextHandler(writer(write), nil))}))
			time.Sleep(10 * ms)
			for i := range 1000 {
				tiered.Journal(l.Group()).Line(slog.LevelInfo, "line")
				tiered.Journal(l.Group()).Tally(strconv.Itoa(i), 1, slog.LevelInfo, "tally")
			}
			start := time.Now()
			want(t, l.Allow(t.Context(), "k"), tiered.Granted)
			if d := time.Since(start); d > 2*ms {
				t.Errorf("a decision took %v", d)
			}
			ctx, cancel := context.WithTimeout(context.Background(), time.Second)
			defer cancel()
			_ = l.Close(ctx) // which a Logger that blocks holds up until ctx ends
			time.Sleep(3000 * time.Hour)
		})
	}
}

type writer func()

func (w writer) Write(p []byte) (int, error) { w(); return len(p), nil }
