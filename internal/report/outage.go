package report

import (
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tiered-limiter/tiered-limiter/failover"
)

// Outages says when the log needs a line about why a node does not answer, and that it answers
// again. The first outage gets its lines at once. Those that begin within a minute of the last one
// are counted, and make one line a minute. One that lasts gets its own lines all the same: an
// operator should not wait for the end of that minute. All methods may be called concurrently.
type Outages struct {
	journal *Journal
	node    string

	mu        sync.Mutex
	told, met failover.Class // the class of the last line, and of the last failure
	says      says           // what the last line says
	began     time.Time      // when the last outage did; zero for never
	lasts     bool           // it has not ended
	counted   bool           // it makes no line at once

	// Since the last line that counts outages:
	gone time.Duration // for how long those lasted that ended without a line
	own  int64         // those of them that have lines of their own
}

// lasting is how long an outage lasts that gets its own lines. There are three in a minute at most.
const lasting = 15 * time.Second

// says is what the last line says of a node.
type says uint8

const (
	answers says = iota
	doesNotAnswer
	comesAndGoes // and answers now
)

// NewOutages returns the outages of a node.
func NewOutages(j *Journal, node string) *Outages { return &Outages{journal: j, node: node} }

// Failed counts a failure that opened the breaker, if begins is true, or kept it open. It reports
// whether the log needs a line about it: at the beginning of an outage, when one lasts that has no
// line yet, and when two failures in a row are of another class than the last line. A Redis that
// died may come back with another password, so the last line is the cause, and a single probe that
// was lost does not hide it. Where outages follow each other about are the arguments of their line.
func (o *Outages) Failed(class failover.Class, begins bool, about func() []any) (line bool) {
	o.mu.Lock()
	now := time.Now()
	again := begins && !o.began.IsZero() && now.Sub(o.began) < tallyPeriod
	if begins {
		o.began, o.lasts, o.counted = now, true, again
	}
	late := o.lasts && o.says != doesNotAnswer && now.Sub(o.began) >= lasting
	line = begins && !again || late || class == o.met && class != o.told
	if o.met = class; line {
		if o.counted && o.says != doesNotAnswer {
			o.own++
		}
		o.told, o.says = class, doesNotAnswer
	}
	o.mu.Unlock()
	if again {
		o.journal.count("outages "+o.node, tallyTime, 1, func(count int64) bool { return o.tell(count, about) })
	}
	return line
}

// Ended counts the end of an outage. It reports whether the log needs a line about it, because the
// last one says that the node does not answer.
func (o *Outages) Ended() (line bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.lasts && o.says != doesNotAnswer {
		o.gone += time.Since(o.began)
	}
	o.lasts = false
	if o.says != doesNotAnswer {
		return false
	}
	o.says = answers
	return true
}

// tell writes the line of outages that follow each other, and one when none has followed for a
// minute. The last line of a node says whether it answers.
func (o *Outages) tell(count int64, about func() []any) bool {
	if count == 0 {
		if o.settled() {
			o.journal.write(slog.LevelInfo, "redis answers again, and has for a minute", []any{"node", o.node})
		}
		return false
	}
	gone, answers, own := o.sum(count)
	if count -= own; count == 0 {
		return true
	}
	o.journal.write(slog.LevelWarn, "redis comes and goes: the fail modes decide while it is gone",
		append(about(), "outages", count, "gone", gone, "answers", answers))
	return true
}

// sum returns for how long the counted outages lasted since the last line, whether the node answers
// now, and how many of the outages have lines of their own. If all do, there is no line.
func (o *Outages) sum(count int64) (gone time.Duration, answers bool, own int64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	gone, o.gone, own, o.own = o.gone, 0, o.own, 0
	switch {
	case count == own:
		return gone, !o.lasts, own
	case !o.lasts:
		o.says = comesAndGoes
		return gone, true, own
	case o.says != doesNotAnswer: // or its end gets a line with its time
		gone += time.Since(o.began)
	}
	o.says = doesNotAnswer
	return gone, false, own
}

// settled reports whether the last line says that the node comes and goes, although it answers.
func (o *Outages) settled() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.lasts || o.says != comesAndGoes {
		return false
	}
	o.says = answers
	return true
}

// debtTime is the time after an outage for which reported debts are added up into one line. Keys in
// use are asked for within their lease period.
const debtTime = 5 * time.Second

// Debts counts what calls reported to a node of what was admitted without it, and has the journal
// say after an outage how much that was. All methods may be called concurrently.
type Debts struct {
	journal *Journal
	node    string

	calls, tokens atomic.Int64
}

// NewDebts returns the debts that are reported to a node.
func NewDebts(j *Journal, node string) *Debts { return &Debts{journal: j, node: node} }

// Count counts a call that reported tokens.
func (d *Debts) Count(tokens int64) {
	if tokens > 0 {
		d.calls.Add(1)
		d.tokens.Add(tokens)
	}
}

// Tokens returns how many tokens were reported.
func (d *Debts) Tokens() int64 { return d.tokens.Load() }

// PlanLine plans a line about what is reported from now on. It is called when an outage ends.
// Outages that follow each other share it.
func (d *Debts) PlanLine() {
	calls, tokens := d.calls.Load(), d.tokens.Load()
	d.journal.count("debts "+d.node, debtTime, 1, func(outages int64) bool {
		tokens := d.tokens.Load() - tokens
		told := outages > 0 && tokens > 0
		if told {
			d.journal.write(slog.LevelInfo, "what was admitted without redis was reported to it",
				[]any{"node", d.node, "tokens", tokens, "keys", d.calls.Load() - calls})
		}
		return told
	})
}
