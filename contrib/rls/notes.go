package rls

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
)

// kind is what a note tells.
type kind int

const (
	tooMany kind = iota
	tooManyEntries
	badLimit
	notGivenBack
	noDomain
	noDescriptors
	refusedByGRPC
	kinds
)

// How often a note is said, and how much of descriptors without a rule is known.
const (
	noteEvery = time.Minute
	lookEvery = 100 * time.Millisecond
	mostTold  = 100 // lists of keys
	mostKeys  = 5   // in a line
)

// notes are what was said, and when. But for the request log no line has a value of a descriptor:
// those are of clients, and may be secrets.
type notes struct {
	said [kinds]atomic.Int64 // Unix nanoseconds
	look atomic.Int64        // when a descriptor without a rule was last looked at

	mu   sync.Mutex
	told map[string]time.Time // by domain and keys
}

// since reports whether so much time has passed since a note, and takes the time.
func since(at *atomic.Int64, now time.Time, every time.Duration) bool {
	last := at.Load()
	return (last == 0 || now.UnixNano()-last >= int64(every)) && at.CompareAndSwap(last, now.UnixNano())
}

// warn logs what an operator should mend, at most once a minute for each kind.
func (s *Service) warn(k kind, r *pb.RateLimitRequest, text string, args ...any) {
	if !since(&s.notes.said[k], s.now(), noteEvery) {
		return
	}
	if r != nil {
		args = append(args, "domain", printable(r.GetDomain()))
	}
	s.log.Warn(text, args...)
}

func (st *state) countUnmatched(domain string) {
	if st.domains[domain] == nil {
		domain = ""
	}
	st.unmatched[domain].Add(1)
}

// unmatched counts a descriptor that meets no rule. Now and then it tells which keys it has and
// which ones rules have: that a limit has no effect is nearly always a mistake there. in is nil if
// the domain is not configured.
func (s *Service) unmatched(st *state, in *domain, name string, entries []*entry) {
	st.countUnmatched(name)
	now := s.now()
	if !since(&s.notes.look, now, lookEvery) || !s.log.Enabled(context.Background(), slog.LevelWarn) {
		return
	}
	keys := keysOf(entries)
	if in == nil {
		keys = ""
	}
	s.notes.mu.Lock()
	at, told := s.notes.told[name+" "+keys]
	tell := told && now.Sub(at) >= noteEvery || !told && len(s.notes.told) < mostTold
	if tell {
		if s.notes.told == nil {
			s.notes.told = map[string]time.Time{}
		}
		s.notes.told[name+" "+keys] = now
	}
	s.notes.mu.Unlock()
	if !tell {
		return
	}
	if in == nil {
		s.log.Warn("no limit counts: the domain is not configured", "domain", printable(name), "configured", few(st.Domains()))
		return
	}
	level, why := in.nearest(entries)
	s.log.Log(context.Background(), level, "no limit counts: a descriptor meets no rule", "domain", printable(name), "keys", keys, "because", why)
}

// keysOf lists the keys of entries.
func keysOf(entries []*entry) string {
	var all []string
	for _, e := range entries {
		all = append(all, printable(e.GetKey()))
	}
	return "(" + strings.Join(all, ", ") + ")"
}

// few lists some names, each quoted.
func few(names []string) string {
	more := ""
	if len(names) > mostKeys {
		names, more = names[:mostKeys], fmt.Sprintf(" and %d more", len(names)-mostKeys)
	}
	var all []string
	for _, name := range names {
		all = append(all, fmt.Sprintf("%.64q", name))
	}
	return strings.Join(all, ", ") + more
}

// nearest tells why no rule is for a descriptor, and how bad that is: other values than those of
// rules are usual, and keys that no rule has are a mistake.
func (d *domain) nearest(entries []*entry) (slog.Level, string) {
	at := []*node{&d.node}
	for i, e := range entries {
		var next []*node
		for _, n := range at {
			for _, child := range n.children {
				if child.key == e.GetKey() {
					next = append(next, child)
				}
			}
		}
		if next == nil {
			where := "the rules begin with "
			if i > 0 {
				where = "after " + keysOf(entries[:i]) + " the rules go on with "
			}
			keys := keysOfChildren(at)
			if keys == nil {
				return slog.LevelWarn, fmt.Sprintf("the rules end after %s", keysOf(entries[:i]))
			}
			return slog.LevelWarn, where + few(keys) + ", not with " + fmt.Sprintf("%.64q", e.GetKey())
		}
		at = next
	}
	for _, n := range at {
		if n.rule != nil {
			return slog.LevelInfo, "the rules with these keys have other values"
		}
	}
	return slog.LevelWarn, "after these keys the rules go on with " + few(keysOfChildren(at))
}

func keysOfChildren(nodes []*node) (keys []string) {
	seen := map[string]bool{}
	for _, n := range nodes {
		for _, child := range n.children {
			if !seen[child.key] {
				seen[child.key], keys = true, append(keys, child.key)
			}
		}
	}
	slices.Sort(keys)
	return keys
}

// longestShown is the most that is shown of a value, in bytes.
const longestShown = 128

// shown lists the entries of a descriptor with their values or, with Options.HashKey, their hashes.
// Nothing but the request log at LevelDebug has values.
func (s *Service) shown(entries []*entry) string {
	var all []string
	for _, e := range entries {
		value := s.Key(e.GetValue())
		if len(value) > longestShown {
			value = strings.ToValidUTF8(value[:longestShown], "") + "…"
		}
		all = append(all, printable(e.GetKey())+"="+printable(value))
	}
	return strings.Join(all, ", ")
}

// debug logs what came, which rule each descriptor met, and what was decided and why.
func (s *Service) debug(ctx context.Context, r *pb.RateLimitRequest, checks []check) {
	for i, d := range r.GetDescriptors() {
		c := &checks[i]
		is := c.status(s.now())
		args := []any{
			"domain", printable(r.GetDomain()), "descriptor", s.shown(d.GetEntries()), "rule", "none", "hits", c.hits, "code", is.GetCode(),
		}
		const rule = 5
		switch {
		case c.limiter != nil && c.counts == nil:
			args[rule] = "the limit that came with it"
		case c.rule != nil && c.rule.unlimited:
			args[rule] = "unlimited"
		case c.rule != nil && c.limiter == nil:
			args[rule] = "replaced by another"
		case c.rule != nil:
			args[rule] = c.rule.path
		}
		if c.limiter != nil {
			args = append(args, "limit", limitText(is.GetCurrentLimit()), "left", is.GetLimitRemaining(), "because", c.decision.Reason,
				"decided", c.decision.Tier, "reset", is.GetDurationUntilReset().AsDuration())
		}
		s.log.DebugContext(ctx, "a descriptor", args...)
	}
}
