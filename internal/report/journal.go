package report

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"
)

const (
	// journalRoom bounds the lines that wait for a slow Logger, and the tallies. What is beyond is
	// dropped; Stats has the figures.
	journalRoom = 256

	// tallyTime is how long frequent events are counted before they make their first line. While
	// there are more, they make one each tallyPeriod.
	tallyTime   = time.Second
	tallyPeriod = time.Minute

	// maxLogged bounds the things that are logged once each. If there are more, the first ones show
	// the cause.
	maxLogged = 128
)

// Journal writes lines to a Logger. It has a goroutine of its own, so that a slow Logger delays
// neither a decision nor a hook, and a blocked hook delays no line. A nil Journal writes nothing.
// All methods may be called concurrently.
type Journal struct {
	logger *slog.Logger
	wake   chan struct{} // capacity 1: there is something to do, or to do earlier

	mu      sync.Mutex
	entries []entry             // in the order of their arrival, at most journalRoom and one for each tally
	tallies map[string]*tally   // by name, at most journalRoom
	logged  map[string]struct{} // at most maxLogged
}

// entry is a function to call at a time.
type entry struct {
	at time.Time
	do func(ended bool) // it is called before that time if the Journal ends
}

// tally counts events that make one line.
type tally struct {
	count int64                  // since the last line
	tell  func(count int64) bool // see count
}

// NewJournal returns a Journal that Run works for, or nil if the Logger discards everything.
func NewJournal(l *slog.Logger) *Journal {
	if l.Handler() == slog.DiscardHandler {
		return nil
	}
	return &Journal{
		logger: l, wake: make(chan struct{}, 1),
		tallies: make(map[string]*tally), logged: make(map[string]struct{}),
	}
}

// Line writes a line soon.
func (j *Journal) Line(level slog.Level, text string, args ...any) {
	j.after(0, true, func() { j.write(level, text, args) })
}

// LineOf writes a line soon. The Journal's goroutine finds out the arguments, which may take time.
func (j *Journal) LineOf(level slog.Level, text string, args func() []any) {
	j.LineIn(0, level, text, args)
}

// LineIn is LineOf after d, or when the Journal ends.
func (j *Journal) LineIn(d time.Duration, level slog.Level, text string, args func() []any) {
	j.after(d, true, func() { j.write(level, text, args()) })
}

// Tally writes a line after a second, with the sum of n over all calls under the same name until
// then. If there are more, it writes one a minute. The arguments are those of the first call since
// the last line.
func (j *Journal) Tally(name string, n int64, level slog.Level, text string, args ...any) {
	j.TallyOf(name, n, level, text, func() []any { return args })
}

// TallyOf is Tally where the Journal's goroutine finds out the arguments, which may take time.
func (j *Journal) TallyOf(name string, n int64, level slog.Level, text string, args func() []any) {
	j.count(name, tallyTime, n, func(count int64) bool {
		if count > 0 {
			j.write(level, text, append(slices.Clip(args()), "count", count))
		}
		return true
	})
}

// count calls tell on the Journal's goroutine first after a while, and then once a minute, with the
// sum of n over all calls under the same name since the last time. That ends when tell has written
// nothing, as it reports, or when there was no call for a minute: it is called with 0 then. It is
// that of the first call since the last time.
func (j *Journal) count(name string, first time.Duration, n int64, tell func(count int64) bool) {
	if j == nil {
		return
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	t := j.tallies[name]
	switch {
	case t == nil && len(j.tallies) < journalRoom:
		j.tallies[name] = &tally{n, tell}
		j.addEntry(first, func(ended bool) { j.tellOf(name, ended) })
	case t != nil && t.count == 0:
		t.count, t.tell = n, tell
	case t != nil:
		t.count += n
	}
}

// tellOf tells what a tally has counted. The Journal may have ended: then there is no next time.
func (j *Journal) tellOf(name string, ended bool) {
	j.mu.Lock()
	t := j.tallies[name]
	count, tell := t.count, t.tell
	t.count = 0
	last := ended || count == 0
	if last {
		delete(j.tallies, name)
	}
	j.mu.Unlock()
	if ended && count == 0 {
		return
	}
	told := false
	defer func() { // a Logger may panic
		if last {
			return
		}
		j.mu.Lock()
		defer j.mu.Unlock()
		if told || t.count > 0 {
			j.addEntry(tallyPeriod, func(ended bool) { j.tellOf(name, ended) })
		} else {
			delete(j.tallies, name)
		}
	}()
	told = tell(count)
}

// FirstTime reports whether something has not been logged yet, and records it. It reports false
// once there is too much.
func (j *Journal) FirstTime(name string) bool {
	if j == nil {
		return false
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	if _, ok := j.logged[name]; ok || len(j.logged) == maxLogged {
		return false
	}
	j.logged[name] = struct{}{}
	return true
}

// after calls do on the Journal's goroutine after d. If the Journal ends before, do is called then
// if last is true, and otherwise never.
func (j *Journal) after(d time.Duration, last bool, do func()) {
	if j == nil {
		return
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	if len(j.entries)-len(j.tallies) < journalRoom { // each tally has an entry, but for one that is being told
		j.addEntry(d, func(ended bool) {
			if last || !ended {
				do()
			}
		})
	}
}

// addEntry calls do on the Journal's goroutine after d, or when the Journal has ended. The lock is
// held.
func (j *Journal) addEntry(d time.Duration, do func(ended bool)) {
	j.entries = append(j.entries, entry{time.Now().Add(d), do})
	select {
	case j.wake <- struct{}{}:
	default:
	}
}

// Run works until ctx ends, and then writes what is left.
func (j *Journal) Run(ctx context.Context) {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		due, pause := j.take(false)
		for _, e := range due {
			j.do(e, false)
		}
		if len(due) > 0 {
			continue // that took time
		}
		timer.Reset(pause)
		select {
		case <-j.wake:
		case <-timer.C:
		case <-ctx.Done():
			due, _ = j.take(true)
			for _, e := range due {
				j.do(e, true)
			}
			return
		}
	}
}

// do survives a Logger that panics: there is nowhere to report it.
func (j *Journal) do(e entry, ended bool) {
	defer func() { _ = recover() }()
	e.do(ended)
}

// write writes a line now. Only the Journal's goroutine does.
func (j *Journal) write(level slog.Level, text string, args []any) {
	j.logger.Log(context.Background(), level, text, args...)
}

// take removes and returns the entries that are due, or all, in the order of their arrival. It also
// returns the time until the earliest of the rest.
func (j *Journal) take(all bool) (due []entry, pause time.Duration) {
	j.mu.Lock()
	defer j.mu.Unlock()
	now, rest := time.Now(), j.entries[:0]
	pause = time.Hour
	for _, e := range j.entries {
		if left := e.at.Sub(now); all || left <= 0 {
			due = append(due, e)
		} else {
			rest = append(rest, e)
			pause = min(pause, left)
		}
	}
	clear(j.entries[len(rest):])
	j.entries = rest
	return due, pause
}
