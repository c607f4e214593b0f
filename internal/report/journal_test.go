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

// Lines come in order, a tally comes a second after its first event, and the end brings what is left, but for checks.
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
		j.after(time.Minute, false, func() { t.Error("a check after the end") })
		if time.Since(l.begun) > 0 {
			t.Error("a line was waited for")
		}
		time.Sleep(2 * time.Second)
		j.Tally("a", 4, slog.LevelInfo, "many", "of", "a")
		j.Line(slog.LevelInfo, "last")
		end()
		want := []string{"0s first", "1ms second cause=7", "1s many of=a count=5", "2s last", "2s many of=a count=4"}
		slices.Sort(l.all[3:])
		if slices.Sort(want[3:]); !slices.Equal(l.all, want) {
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
				if waiting > journalRoom || tallies > journalRoom || time.Since(l.begun) > 0 {
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

// After an outage a line says what was reported within 5 s of its end. Outages that follow each other share it.
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
