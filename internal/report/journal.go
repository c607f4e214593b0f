package report

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

const (
	// journalRoom bounds the lines that wait for a slow Logger. Further lines are dropped; Stats has the figures.
	journalRoom = 256

	// tallyTime is how long frequent events are counted before they make one line: one line per second of each
	// kind.
	tallyTime = time.Second

	// maxLogged bounds the things that are logged once each. If there are more, the first ones show the cause.
	maxLogged = 128
)

// Journal writes lines to a Logger. It has a goroutine of its own, so that a slow Logger delays neither a decision nor a
// hook, and a blocked hook delays no line. A nil Journal writes nothing. All methods may be called concurrently.
type Journal struct {
	logger *slog.Logger
	wake   chan struct{} // capacity 1: there is something to do, or to do earlier

	mu      sync.Mutex
	entries []entry             // in the order of their arrival, at most journalRoom
	tallies map[string]*tally   // by name; each has an entry
	logged  map[string]struct{} // at most maxLogged
}

// entry is a function to call at a time.
type entry struct {
	at   time.Time
	last bool // call it even if the Journal ends before that time
	do   func()
}

// tally counts events that make one line.
type tally struct {
	level slog.Level
	text  string
	args  []any
	count int64
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
	j.after(0, true, func() { j.write(level, text, args()) })
}

// Tally writes a line after a second, with the sum of n over all calls under the same name until then. The
// arguments are those of the first call.
func (j *Journal) Tally(name string, n int64, level slog.Level, text string, args ...any) {
	if j == nil {
		return
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	t := j.tallies[name]
	if t != nil {
		t.count += n
		return
	}
	t = &tally{level: level, text: text, args: args, count: n}
	planned := j.addEntry(tallyTime, true, func() {
		j.mu.Lock()
		delete(j.tallies, name)
		count := t.count
		j.mu.Unlock()
		j.write(t.level, t.text, append(t.args, "count", count))
	})
	if planned {
		j.tallies[name] = t
	}
}

// FirstTime reports whether something has not been logged yet, and records it. It reports false once there is too much.
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

// after calls do on the Journal's goroutine after d. If the Journal ends before, do is called then if last is true, and
// otherwise never.
func (j *Journal) after(d time.Duration, last bool, do func()) {
	if j == nil {
		return
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	j.addEntry(d, last, do)
}

// addEntry is after with the lock held. It reports false if too many entries are waiting.
func (j *Journal) addEntry(d time.Duration, last bool, do func()) bool {
	if len(j.entries) >= journalRoom {
		return false
	}
	j.entries = append(j.entries, entry{time.Now().Add(d), last, do})
	select {
	case j.wake <- struct{}{}:
	default:
	}
	return true
}

// Run works until ctx ends, and then writes what is left.
func (j *Journal) Run(ctx context.Context) {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		due, pause := j.take(false)
		for _, e := range due {
			j.do(e)
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
				if e.last {
					j.do(e)
				}
			}
			return
		}
	}
}

// do survives a Logger that panics: there is nowhere to report it.
func (j *Journal) do(e entry) {
	defer func() { _ = recover() }()
	e.do()
}

// write writes a line now. Only the Journal's goroutine does.
func (j *Journal) write(level slog.Level, text string, args []any) {
	j.logger.Log(context.Background(), level, text, args...)
}

// take removes and returns the entries that are due, or all, in the order of their arrival. It also returns the
// time until the earliest of the rest.
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
