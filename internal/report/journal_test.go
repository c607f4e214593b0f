package report

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tiered-limiter/tiered-limiter/failover"
)

// lines is a Logger's handler that keeps the lines, with the time since begun.
type lines struct {
	begun time.Time
	all   []string
	write func() // for each line
}

func (*lines) Enabled(context.Context, slog.Level) bool { return true }
func (l *lines) WithAttrs([]slog.Attr) slog.Handler     { return l }
func (l *lines) WithGroup(string) slog.Handler          { return l }

func (l *lines) Handle(_ context.Context, r slog.Record) error {
	if l.write != nil {
		l.write()
	}
	text := fmt.Sprint(time.Since(l.begun), " ", r.Message)
	r.Attrs(func(a slog.Attr) bool {
		text += fmt.Sprint(" ", a)
		return true
	})
	l.all = append(l.all, text)
	return nil
}

// start runs a Journal for l until the function that it returns is called, which waits for the end.
func (l *lines) start(t *testing.T) (j *Journal, end func()) {
	j = NewJournal(slog.New(l))
	l.begun = time.Now()
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		j.Run(ctx)
		close(ended)
	}()
	return j, func() {
		stop()
		<-ended
	}
}

// Lines come in order, a tally comes a second after its first event and once a minute after that,
// and the end brings what is left, but for checks.
func TestJournal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l lines
		j, end := l.start(t)
		j.Line(slog.LevelInfo, "first")
		j.Tally("a", 2, slog.LevelInfo, "many", "of", "a")
		j.LineOf(slog.LevelInfo, "second", func() []any {
			time.Sleep(time.Millisecond) // which holds up only the Journal
			return []any{"cause", 7}
		})
		j.Tally("a", 3, slog.LevelInfo, "many", "of", "not the first")
		j.after(time.Hour, false, func() { t.Error("a check after the end") })
		if time.Since(l.begun) > 0 {
			t.Error("a line was waited for")
		}
		time.Sleep(2 * time.Second)
		j.Tally("a", 4, slog.LevelInfo, "many", "of", "b")
		time.Sleep(time.Minute)
		j.Tally("a", 5, slog.LevelInfo, "many", "of", "c")
		j.Tally("b", 6, slog.LevelInfo, "others")
		time.Sleep(3 * time.Minute) // without any: the next one is the first again
		j.Tally("a", 7, slog.LevelInfo, "many", "of", "d")
		time.Sleep(2 * time.Second)
		j.Tally("a", 8, slog.LevelInfo, "many", "of", "e")
		j.Line(slog.LevelInfo, "last")
		end()
		want := []string{
			"0s first", "1ms second cause=7", "1s many of=a count=5", "1m1s many of=b count=4", "1m3s others count=6",
			"2m1s many of=c count=5", "4m3s many of=d count=7", "4m4s last", "4m4s many of=e count=8",
		}
		slices.Sort(l.all[7:])
		if slices.Sort(want[7:]); !slices.Equal(l.all, want) {
			t.Errorf("%q, want %q", l.all, want)
		}
	})
}

// What waits for a Logger that blocks or panics is bounded, and so is what is logged once.
func TestJournalIsBounded(t *testing.T) {
	for name, write := range map[string]func(){
		"blocks": func() { time.Sleep(time.Hour) }, "panics": func() { panic("logger") },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := lines{write: write}
				j, end := l.start(t)
				for i := range 3 * journalRoom {
					j.Line(slog.LevelInfo, "line")
					j.Tally(fmt.Sprint(i), 1, slog.LevelInfo, "tally")
				}
				j.mu.Lock()
				waiting, tallies := len(j.entries), len(j.tallies)
				j.mu.Unlock()
				if waiting > 2*journalRoom || tallies > journalRoom || time.Since(l.begun) > 0 {
					t.Errorf("%d lines wait, %d tallies are kept, after %v", waiting, tallies, time.Since(l.begun))
				}
				end()
				if len(j.entries) > 0 {
					t.Errorf("%d lines are left", len(j.entries))
				}
			})
		})
	}
	var l lines
	j, first := NewJournal(slog.New(&l)), 0
	for range 2 {
		for i := range 2 * maxLogged {
			if j.FirstTime(fmt.Sprint(i)) {
				first++
			}
		}
	}
	if first != maxLogged {
		t.Errorf("%d things are logged once", first)
	}
}

// Without a Logger there is no Journal, and nothing is done for it.
func TestNoJournal(t *testing.T) {
	j := NewJournal(slog.New(slog.DiscardHandler))
	if j != nil {
		t.Fatal("a Journal for nobody")
	}
	j.Line(slog.LevelInfo, "line")
	j.LineOf(slog.LevelInfo, "line", func() []any { t.Error("called"); return nil })
	j.Tally("a", 1, slog.LevelInfo, "tally")
	if j.FirstTime("a") {
		t.Error("to be logged")
	}
	NewDebts(j, "node").PlanLine()
}

// A line is written at the beginning of an outage, and when two failures in a row have another
// cause than the last line.
func TestCausesThatAreNews(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o, about := NewOutages(nil, "a"), func() []any { return nil }
		u, m := failover.Unreachable, failover.Misconfigured
		var news []int
		for i, f := range []struct {
			class  failover.Class
			begins bool
		}{{u, true}, {u, false}, {m, false}, {u, false}, {m, false}, {m, false}, {m, false}, {u, false}, {u, false}, {u, true}} {
			if time.Sleep(10 * time.Second); f.begins {
				time.Sleep(time.Minute) // or it would be one of many
			}
			if o.Failed(f.class, f.begins, about) {
				news = append(news, i)
			}
		}
		if want := []int{0, 5, 8, 9}; !slices.Equal(news, want) {
			t.Error(fmt.Sprint(news, ", want ", want))
		}
	})
}

// A node that comes and goes gets one line a minute, with how often it went and for how long, and
// the last line says whether it answers.
func TestOutagesThatFollowEachOther(t *testing.T) {
	for name, c := range map[string]struct {
		outages []time.Duration // from, for; in turns
		want    []string
	}{
		"one": {[]time.Duration{0, 5 * time.Second}, []string{"0s gone", "5s back"}},
		"two, a minute apart": {
			[]time.Duration{0, 5 * time.Second, time.Minute, time.Second}, []string{"0s gone", "5s back", "1m0s gone", "1m1s back"},
		},
		"short ones": {
			[]time.Duration{
				0, time.Second, 2 * time.Second, 500 * time.Millisecond, 4 * time.Second, time.Second, 50 * time.Second, 2 * time.Second,
				80 * time.Second, 3 * time.Second,
			},
			[]string{
				"0s gone", "1s back", "3s of=a outages=1 gone=500ms answers=true", "1m3s of=a outages=2 gone=3s answers=true",
				"2m3s of=a outages=1 gone=3s answers=true", "3m3s steady",
			},
		},
		"a long one after a short one": {
			[]time.Duration{0, time.Second, 2 * time.Second, 300 * time.Second},
			[]string{"0s gone", "1s back", "3s of=a outages=1 gone=1s answers=false", "5m2s back"},
		},
		"a long one whose line is a minute away": {
			[]time.Duration{0, time.Second, 2 * time.Second, 500 * time.Millisecond, 5 * time.Second, 30 * time.Second},
			[]string{"0s gone", "1s back", "3s of=a outages=1 gone=500ms answers=true", "20s gone", "35s back"},
		},
		"one that lasts while its line is written": {
			[]time.Duration{
				0, time.Second, 2 * time.Second, 4 * time.Second, 62500 * time.Millisecond, time.Second,
				90 * time.Second, 500 * time.Millisecond,
			},
			[]string{
				"0s gone", "1s back", "3s of=a outages=1 gone=1s answers=false", "6s back", "1m2.5s gone", "1m3.5s back",
				"1m31s of=a outages=1 gone=500ms answers=true", "2m31s steady",
			},
		},
		"the end": {
			[]time.Duration{0, time.Second, 2 * time.Second, 1500 * time.Millisecond, 20 * time.Second, time.Second, 30 * time.Second, 0},
			[]string{"0s gone", "1s back", "3s of=a outages=1 gone=1s answers=false", "3.5s back", "30s of=a outages=2 gone=1s answers=true"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var l lines
				j, end := l.start(t)
				o := NewOutages(j, "a")
				for at := range slices.Chunk(c.outages, 2) {
					time.Sleep(time.Until(l.begun.Add(at[0])))
					if o.Failed(failover.Unreachable, true, func() []any { return []any{"of", "a"} }) {
						j.Line(slog.LevelWarn, "gone")
					}
					for end := time.Now().Add(at[1]); time.Now().Before(end); {
						time.Sleep(min(time.Until(end), time.Second))
						if time.Now().Before(end) && o.Failed(failover.Unreachable, false, nil) {
							j.Line(slog.LevelWarn, "gone")
						}
					}
					if o.Ended() {
						j.Line(slog.LevelInfo, "back")
					}
				}
				if name != "the end" {
					time.Sleep(10 * time.Minute)
				}
				end()
				for i := range l.all {
					l.all[i] = strings.NewReplacer("redis comes and goes: the fail modes decide while it is gone ", "",
						"redis answers again, and has for a minute node=a", "steady").Replace(l.all[i])
				}
				if !slices.Equal(l.all, c.want) {
					t.Errorf("%s\nwant:\n%s", strings.Join(l.all, "\n"), strings.Join(c.want, "\n"))
				}
			})
		})
	}
}

// An outage that has a line of its own is not counted in another one, a second later.
func TestOutageOfAnotherClass(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l lines
		j, end := l.start(t)
		o := NewOutages(j, "a")
		failed := func(class failover.Class, begins bool) {
			if o.Failed(class, begins, func() []any { return nil }) {
				j.Line(slog.LevelWarn, class.String())
			}
		}
		failed(failover.Unreachable, true)
		o.Ended()
		time.Sleep(2 * time.Second)
		failed(failover.CannotServe, true)
		failed(failover.CannotServe, false)
		time.Sleep(5 * time.Second)
		if !o.Ended() {
			t.Error("its end has no line")
		}
		time.Sleep(5 * time.Minute)
		end()
		if want := []string{"0s unreachable", "2s cannot serve"}; !slices.Equal(l.all, want) {
			t.Errorf("%q, want %q", l.all, want)
		}
	})
}

// After an outage a line says what was reported within 5 s of its end. Outages that follow each
// other share it.
func TestDebtsOfAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l lines
		j, end := l.start(t)
		d := NewDebts(j, "a")
		d.Count(100) // before
		d.PlanLine()
		d.Count(7)
		d.Count(0)
		time.Sleep(4 * time.Second)
		d.PlanLine()
		d.Count(5)
		time.Sleep(2 * time.Second)
		d.PlanLine() // nothing is reported then
		time.Sleep(time.Minute)
		d.PlanLine()
		d.Count(3)
		time.Sleep(time.Minute)
		end()
		want := []string{
			"5s what was admitted without redis was reported to it node=a tokens=12 keys=2",
			"1m11s what was admitted without redis was reported to it node=a tokens=3 keys=1",
		}
		if !slices.Equal(l.all, want) || d.Tokens() != 115 {
			t.Errorf("%s, want %q; %d tokens", strings.Join(l.all, "\n"), want, d.Tokens())
		}
	})
}
