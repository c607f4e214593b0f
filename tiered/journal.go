package tiered

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

	// maxLogged bounds the rejected buckets that are logged. If there are more, the first ones show the cause.
	maxLogged = 128
)

// journal writes lines to the Logger. It has a goroutine of its own, so that a slow Logger delays neither a
// decision nor a hook, and a blocked hook delays no line. A nil journal writes nothing. All methods may be called
// concurrently.
type journal struct {
	logger *slog.Logger
	group  *Group
	wake   chan struct{} // capacity 1: there is something to do, or to do earlier

	mu      sync.Mutex
	entries []entry
	tallies map[string]*tally
	logged  map[string]struct{}
}

// entry is a function to call at a time.
type entry struct {
	at   time.Duration
	last bool // call it even if the Group ends before that time
	do   func()
}

// tally counts events that make one line.
type tally struct {
	level slog.Level
	text  string
	args  []any
	count int64
}

func newJournal(g *Group) *journal {
	if g.options.Logger.Handler() == slog.DiscardHandler {
		return nil
	}
	return &journal{
		logger: g.options.Logger, group: g, wake: make(chan struct{}, 1),
		tallies: make(map[string]*tally), logged: make(map[string]struct{}),
	}
}

// line writes a line soon.
func (j *journal) line(level slog.Level, text string, args ...any) {
	j.after(0, true, func() { j.logger.Log(context.Background(), level, text, args...) })
}

// tally writes a line after a second, with the sum of n over all calls under the same name until then. The
// arguments are those of the first call.
func (j *journal) tally(name string, n int64, level slog.Level, text string, args ...any) {
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
		j.logger.Log(context.Background(), t.level, t.text, append(t.args, "count", count)...)
	})
	if planned {
		j.tallies[name] = t
	}
}

// firstTime reports whether a bucket has not been logged yet, and records it. It reports false once there are too many.
func (j *journal) firstTime(bucket string) bool {
	if j == nil {
		return false
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	if _, ok := j.logged[bucket]; ok || len(j.logged) == maxLogged {
		return false
	}
	j.logged[bucket] = struct{}{}
	return true
}

// after calls do on the journal's goroutine after d. If the Group ends before, do is called then if last is true, and
// otherwise never.
func (j *journal) after(d time.Duration, last bool, do func()) {
	if j == nil {
		return
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	j.addEntry(d, last, do)
}

// addEntry is after with the lock held. It reports false if too many entries are waiting.
func (j *journal) addEntry(d time.Duration, last bool, do func()) bool {
	if len(j.entries) >= journalRoom {
		return false
	}
	j.entries = append(j.entries, entry{j.group.now() + d, last, do})
	select {
	case j.wake <- struct{}{}:
	default:
	}
	return true
}

// run works until ctx ends, and then writes what is left.
func (j *journal) run(ctx context.Context) {
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
func (j *journal) do(e entry) {
	defer func() { _ = recover() }()
	e.do()
}

// take removes and returns the entries that are due, or all, in the order of their arrival. It also returns the
// time until the earliest of the rest.
func (j *journal) take(all bool) (due []entry, pause time.Duration) {
	j.mu.Lock()
	defer j.mu.Unlock()
	now, rest := j.group.now(), j.entries[:0]
	pause = time.Hour
	for _, e := range j.entries {
		if all || e.at <= now {
			due = append(due, e)
		} else {
			rest = append(rest, e)
			pause = min(pause, e.at-now)
		}
	}
	clear(j.entries[len(rest):])
	j.entries = rest
	return due, pause
}
