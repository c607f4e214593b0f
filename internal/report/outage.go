package report

import (
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tiered-limiter/tiered-limiter/failover"
)

// Causes says when the log needs a line about why a node does not answer. All methods may be called concurrently.
type Causes struct {
	mu        sync.Mutex
	told, met failover.Class // in this outage: the class of the last line, and of the last failure
}

// IsNews reports whether the log needs a line about a failure: at the beginning of an outage, and when two failures in
// a row are of another class than the last line. A Redis that died may come back with another password, so the last
// line is the cause, and a single probe that was lost does not hide it.
func (c *Causes) IsNews(class failover.Class, begins bool) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	news := begins || class == c.met && class != c.told
	if c.met = class; news {
		c.told = class
	}
	return news
}

// debtTime is the time after an outage for which reported debts are added up into one line. Keys in use are asked for
// within their lease period.
const debtTime = 5 * time.Second

// Debts counts what calls reported to a node of what was admitted without it, and has the journal say after an outage
// how much that was. All methods may be called concurrently.
type Debts struct {
	journal *Journal
	node    string

	calls, tokens atomic.Int64
	planned       atomic.Bool // a line is planned, and only one: outages that follow each other closely share it
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
func (d *Debts) PlanLine() {
	if d.planned.Swap(true) {
		return
	}
	calls, tokens := d.calls.Load(), d.tokens.Load()
	d.journal.after(debtTime, true, func() {
		d.planned.Store(false)
		if tokens := d.tokens.Load() - tokens; tokens > 0 {
			d.journal.Line(slog.LevelInfo, "what was admitted without redis was reported to it",
				"node", d.node, "tokens", tokens, "keys", d.calls.Load()-calls)
		}
	})
}
