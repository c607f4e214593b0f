package debugpage

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// view is what the page shows.
type view struct {
	tiered.Stats
	Now      time.Time
	Every    int
	Hashed   bool
	Trouble  int // nodes whose breaker is not closed
	Nodes    []node
	Policies []row
	Events   []tiered.Event // the newest first
}

type node struct {
	Name string
	tiered.NodeStats
}

type row struct {
	Name, Limit, FailMode, Lease string
	tiered.PolicyStats
	Keys []key
}

// Admitted is all that was admitted, by Redis' tokens or without it.
func (r row) Admitted() int64 { return r.Spent + r.Shared + r.Open }

// Refused is all that was refused.
func (r row) Refused() int64 { return r.Limited + r.ShareSpent + r.Unavailable }

type key struct {
	Name string
	tiered.RefusedKey
}

// Alone is what was refused without Redis: by the share or by fail-closed, for a policy has one fail mode.
func (k key) Alone() int64 { return k.ShareSpent + k.Unavailable }

// longestName is the most bytes of a key that are shown.
const longestName = 80

// look reads the figures.
func (p *page) look(every int) view {
	v := view{Stats: p.group.Stats(), Now: time.Now(), Every: every, Hashed: !p.ShowKeys}
	for _, name := range slices.Sorted(maps.Keys(v.Stats.Nodes)) {
		n := v.Stats.Nodes[name]
		if n.Breaker != "closed" {
			v.Trouble++
		}
		v.Nodes = append(v.Nodes, node{name, n})
	}
	for _, policy := range p.group.Policies() {
		r := row{
			Name: policy.Name, Limit: limitOf(policy.Limit) + shardsOf(policy), FailMode: policy.FailMode.String(), Lease: leaseOf(policy.Lease),
			PolicyStats: v.Stats.Policies[policy.Name],
		}
		for _, k := range r.Top {
			r.Keys = append(r.Keys, key{p.name(k.Key), k})
		}
		v.Policies = append(v.Policies, r)
	}
	v.Events = v.Recent
	slices.Reverse(v.Events)
	return v
}

// name is how a key is shown: hashed, or in quotes if it has anything but plain letters, and cut.
func (p *page) name(key string) string {
	if !p.ShowKeys {
		return hashed(key)
	}
	cut := ""
	if len(key) > longestName {
		key, cut = key[:longestName], "…"
	}
	if quoted := strconv.Quote(key); quoted != `"`+key+`"` {
		return quoted + cut
	}
	return key + cut
}

// limitOf says a limit in words: 100 per 1s, bursts of 200.
func limitOf(l tiered.Limit) string {
	burst := l.Burst
	if burst == 0 {
		burst = l.Tokens
	}
	return fmt.Sprintf("%s per %s, bursts of %s", count(l.Tokens), period(l.Per), count(burst))
}

// shardsOf says into how many shards each key is split, if it is.
func shardsOf(p tiered.Policy) string {
	if p.Shards < 2 {
		return ""
	}
	return fmt.Sprintf(", in %d shards", p.Shards)
}

func period(d time.Duration) string {
	switch d {
	case time.Second:
		return "second"
	case time.Minute:
		return "minute"
	case time.Hour:
		return "hour"
	case 24 * time.Hour:
		return "day"
	}
	return d.String()
}

func leaseOf(l tiered.Lease) string {
	switch {
	case l.Size == tiered.NoLease:
		return "none: each token from Redis"
	case l.Size > 0:
		return "of " + count(l.Size)
	}
	return "by demand"
}
