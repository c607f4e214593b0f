package debugpage

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/tiered-limiter/tiered-limiter/lua"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// view is the data of the page.
type view struct {
	tiered.Stats
	Now       time.Time
	Every     int
	Hashed    bool
	Unhealthy int // nodes whose breaker is not closed
	Nodes     []node
	Policies  []row
	Events    []event // newest first
	Found     *found  // the key that somebody looks for, or nil
}

type node struct {
	Name string
	tiered.NodeStats
}

type row struct {
	Name, Limit, FailMode, Lease string
	Shadow                       bool
	tiered.PolicyStats
	Keys []key
}

// Settled says what was corrected after the decision, "" if nothing was.
func (r row) Settled() string {
	var all []string
	if n := r.Costs.Charged; n > 0 {
		all = append(all, count(n)+" charged")
	}
	if n := r.Costs.Refunded; n > 0 {
		all = append(all, count(n)+" given back")
	}
	if n := r.Costs.Forgiven; n > 0 {
		all = append(all, count(n)+" forgiven")
	}
	return strings.Join(all, ", ")
}

// Share is the part of the requests that were refused.
func (r row) Share() string {
	percent := 100 * float64(r.Requests.Refused) / float64(max(r.Requests.Refused+r.Requests.Allowed, 1))
	switch {
	case percent > 0 && percent < 0.1:
		return "under 0.1 % of requests"
	case percent > 99.9 && percent < 100:
		return "over 99.9 % of requests"
	}
	return strconv.FormatFloat(math.Round(percent*10)/10, 'f', -1, 64) + " % of requests"
}

// Admitted returns all admitted tokens, with Redis or without it.
func (r row) Admitted() int64 {
	return r.Leases.Spent + r.Tokens.Fallback + r.Tokens.Open + r.Standing.Spent
}

// Refused returns all refused tokens, or in shadow mode those that would have been refused.
func (r row) Refused() int64 {
	return r.Tokens.Limited + r.Tokens.FallbackSpent + r.Tokens.Unavailable + r.Tokens.Blocked
}

type key struct {
	Name string
	By   string // the limit, of several, that refused it last
	tiered.RefusedKey
}

// Fallback returns what was refused without Redis: by the fallback or by fail-closed, because a
// policy has one fail mode.
func (k key) Fallback() int64 { return k.FallbackSpent + k.Unavailable }

// maxName is the longest part of a key that is shown, in bytes.
const maxName = 80

// view reads the figures.
func (p *page) view(every int) view {
	v := view{Stats: p.group.Stats(), Now: time.Now(), Every: every, Hashed: !p.ShowKeys}
	for _, name := range slices.Sorted(maps.Keys(v.Stats.Nodes)) {
		n := v.Stats.Nodes[name]
		if n.Outages.Breaker != "closed" {
			v.Unhealthy++
		}
		v.Nodes = append(v.Nodes, node{name, n})
	}
	for _, name := range slices.Sorted(maps.Keys(v.Stats.Policies)) {
		l, ok := p.group.Limiter(name)
		if !ok { // removed meanwhile
			continue
		}
		policy, s := l.Policy(), v.Stats.Policies[name]
		limit := limitOf(policy)
		if len(policy.Plans) == 0 && s.Requests.OwnLimits {
			limit += ", or what the request carries"
		}
		r := row{
			Name: policy.Name, Limit: limit + standingOf(policy, s, v.Standing.Fraction, v.Standing.Members), Shadow: policy.Shadow,
			FailMode: policy.FailMode.String(),
			Lease:    leaseOf(policy.Lease, s.Leases.Direct), PolicyStats: s,
		}
		for _, k := range r.Top {
			by := ""
			if each := policy.Limit.Each(); k.LimitNumber > 0 && int(k.LimitNumber) <= len(each) {
				by = tokensPer(each[k.LimitNumber-1])
			}
			r.Keys = append(r.Keys, key{p.name(k.Key), by, k})
		}
		v.Policies = append(v.Policies, r)
	}
	v.Events = eventsOf(v.Recent)
	return v
}

// event is a line of the last events.
type event struct {
	tiered.Event
	Opened int64     // times that a breaker opened, in this line
	oldest time.Time // in this line
}

// For is how long the line is about.
func (e event) For() time.Duration { return e.At.Sub(e.oldest) }

// flapping is the longest pause between changes of a breaker that are one line.
const flapping = time.Minute

// eventsOf returns a line for each event, the newest first, and one for the changes of a breaker
// that follow each other: it tells of the newest state, and of how often the breaker opened.
func eventsOf(recent []tiered.Event) (all []event) {
	last := map[string]int{} // the line of a node's breaker
	for _, e := range slices.Backward(recent) {
		breaker := e.What == "open" || e.What == "closed" || e.What == "probing"
		i, ok := last[e.Node]
		if !breaker || !ok || all[i].oldest.Sub(e.At) > flapping {
			if breaker {
				last[e.Node] = len(all)
			}
			all = append(all, event{e, 1, e.At})
			continue
		}
		line := &all[i]
		if line.oldest, line.Count = e.At, 0; e.What == "closed" { // the one before is of another outage
			line.Opened++
		}
		if line.Class == "" && e.What == "open" {
			if line.Class = e.Class; line.What == "probing" {
				line.What = "open"
			}
		}
	}
	return all
}

// name returns a key as it is shown: hashed, or cut to maxName bytes and quoted if it needs quotes.
func (p *page) name(key string) string {
	if !p.ShowKeys {
		return hashed(key)
	}
	cut := ""
	if len(key) > maxName {
		key, cut = key[:maxName], "…"
	}
	if quoted := strconv.Quote(key); quoted != `"`+key+`"` {
		return quoted + cut
	}
	return key + cut
}

// limitOf returns a policy's limits in words: "100 per second, bursts of 200", or "100 per minute
// by fixed window". It adds a remark if keys may have limits of their own.
func limitOf(p tiered.Policy) string {
	window := lua.Algorithm(p.Algorithm).Has(lua.Window)
	limited := p.Limit != tiered.Unlimited() && p.Limit != tiered.Blocked()
	var all []string
	for _, l := range p.Limit.Each() {
		text := tokensPer(l)
		if limited && !window {
			text += ", bursts of " + count(cmp.Or(l.Burst, l.Tokens))
		}
		all = append(all, text)
	}
	text := strings.Join(all, " and ")
	if limited && window {
		text += " by " + p.Algorithm.String()
	}
	if p.Calendar {
		text += " of the calendar"
	}
	if p.PerKey != nil {
		text += ", or what the key has"
	}
	if len(p.Plans) > 0 {
		text += fmt.Sprintf(", or what the request's plan has (of %d)", len(p.Plans))
	}
	return text
}

// tokensPer returns a limit in words without its burst.
func tokensPer(l tiered.Limit) string {
	switch l {
	case tiered.Unlimited():
		return "unlimited"
	case tiered.Blocked():
		return "blocked"
	}
	if c := l.Calendar; !c.IsZero() {
		return strings.TrimRight(count(l.Tokens)+" per "+c.Unit.String()+" "+c.String(), " ")
	}
	return count(l.Tokens) + " per " + period(l.Per)
}

// standingOf returns which part of the standing shares this process has, or "" if the policy has
// none.
func standingOf(p tiered.Policy, s tiered.PolicyStats, fraction float64, members int64) string {
	switch {
	case p.Standing == 0:
		return ""
	case s.Standing.Outside > 0:
		return fmt.Sprintf(", without standing shares because %d processes do not split it alike", s.Standing.Outside)
	}
	return fmt.Sprintf(", with %.1f %% of the standing shares (%d processes have some)", 100*fraction, members)
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
	_, text, _ := strings.Cut(tiered.Per(1, d).String(), "/")
	return text
}

func leaseOf(l tiered.Lease, direct bool) string {
	switch {
	case direct:
		return "none: each token from Redis"
	case l.Size > 0:
		return "of " + count(l.Size)
	}
	return "by demand"
}
