package model

import (
	"maps"
	"strings"
	"time"

	"github.com/tiered-limiter/tiered-limiter/lua"
)

// Presence is lua/presence.lua in Go: the processes that share the buckets. It counts them anew in
// each call. The zero value has none.
type Presence struct {
	seen    map[string]process // by id
	used    map[part]inUse     // the parts of policies that were in use
	expires int64              // ms of the server's clock after which all are forgotten; see key
}

// part names a number of eighths of a policy, by the fingerprint of the policy's name.
type part struct {
	name    string
	eighths int64
}

// inUse says since when and until when a part was in use, in s.
type inUse struct{ from, to int64 }

// process is a process that is present.
type process struct {
	at        int64 // µs at which it last reported
	announced announcement
}

// Run executes one call at the time now, or of the server's clock if that is 0, and returns the
// reply. The other arguments are the script's, and so is the reply. The error is an [Error].
func (p *Presence) Run(clock, now int64, id string, ttl int64, announced string, keep int64) (reply []int64, err error) {
	a := announcement(announced)
	switch {
	case id == "":
		return nil, argumentError(1)
	case ttl < 0 || ttl >= lua.Whole:
		return nil, argumentError(2)
	case !a.valid():
		return nil, argumentError(4)
	case keep < 0 || keep > lua.LongestKept:
		return nil, argumentError(5)
	}
	if now == 0 {
		now = clock
	}
	if clock/1000 > p.expires {
		clear(p.seen)
		clear(p.used)
	}
	if ttl == 0 {
		delete(p.seen, id)
		return p.census(now, a), nil
	}
	for other, o := range p.seen {
		// An entry more than one ttl in the future was written before the clock was set back. Its
		// process renews it if it is alive.
		if o.at <= now-ttl || o.at > now+ttl {
			delete(p.seen, other)
		}
	}
	if p.seen == nil {
		p.seen = make(map[string]process)
	}
	p.seen[id] = process{now, a}
	parts := p.parts(now, a, keep)
	life := (ttl + 499) / 500 // two ttl, in ms
	if len(p.used) > 0 {      // another process may keep more, or for longer
		if len(parts) > 0 {
			life = max(life, keep*1000)
		}
		life = max(life, p.expires-clock/1000)
	}
	p.expires = clock/1000 + life
	return append(p.census(now, a), parts...), nil
}

// parts notes which parts of the policies of a are in use, and returns the numbers of those that
// were in the last keep seconds.
func (p *Presence) parts(now int64, a announcement, keep int64) (all []int64) {
	if keep == 0 {
		return nil
	}
	const second = int64(time.Second / time.Microsecond)
	from, to := now/second, (now+second-1)/second
	for i := range a.policies() {
		name, _ := a.policy(i)
		_, use := a.shares(i)
		for eighths := int64(1); eighths <= lua.MostShared; eighths++ {
			key := part{name, eighths}
			it, known := p.used[key]
			if known && it.to < from-keep {
				delete(p.used, key)
				known = false
			}
			switch {
			case use == eighths && !known:
				it = inUse{from, to}
			case use == eighths:
				it = inUse{min(it.from, from), max(it.to, to)}
			case !known:
				continue
			}
			if p.used == nil {
				p.used = make(map[part]inUse)
			}
			p.used[key] = it
			all = append(all, int64(i+1), eighths, it.from*second, it.to*second)
		}
	}
	return all
}

// census counts the processes, those that announce nothing, and those of each policy of a.
func (p *Presence) census(now int64, a announcement) []int64 {
	const first, each = 3, 5 // numbers before those of the policies, and for each
	silent := int64(0)
	for _, o := range p.seen {
		if o.announced == "" {
			silent++
		}
	}
	reply := make([]int64, first+each*a.policies())
	reply[0], reply[1], reply[2] = int64(len(p.seen)), now, silent
	places := make(map[string]int, a.policies())
	for i := range a.policies() {
		reply[first+each*i] = silent
		name, _ := a.policy(i)
		places[name] = i
	}
	for _, o := range p.seen {
		for i := range o.announced.policies() {
			name, limits := o.announced.policy(i)
			place, ok := places[name]
			if !ok {
				continue
			}
			mine := reply[first+each*place:]
			mine[0]++
			want, use := o.announced.shares(i)
			if its, _ := a.shares(place); its > 0 && want == its {
				mine[3]++
			}
			mine[4] = max(mine[4], use)
			_, same := a.policy(place)
			switch {
			case limits == same:
			case o.announced.service() == a.service():
				mine[2]++
			default:
				mine[1]++
			}
		}
	}
	return reply
}

// Clone returns a copy that shares nothing with p.
func (p *Presence) Clone() Presence {
	return Presence{seen: maps.Clone(p.seen), used: maps.Clone(p.used), expires: p.expires}
}

// announcement is what a process says of itself: a fingerprint of its service, and for each policy
// one of its name and one of its limits.
type announcement string

const digits = lua.FingerprintDigits

// valid reports whether the script accepts a.
func (a announcement) valid() bool {
	if a == "" {
		return true
	}
	if (len(a)-digits)%lua.AnnouncedDigits != 0 || strings.Trim(string(a), "0123456789abcdef") != "" ||
		a.policies() > lua.MostPolicies {
		return false
	}
	names := make(map[string]bool, a.policies())
	for i := range a.policies() {
		name, _ := a.policy(i)
		names[name] = true
		if want, use := a.shares(i); max(want, use) > lua.MostShared {
			return false
		}
	}
	return len(names) == a.policies()
}

// policies returns the number of policies in a.
func (a announcement) policies() int { return len(a) / lua.AnnouncedDigits }

// service returns the fingerprint of the service.
func (a announcement) service() string { return string(a[:min(digits, len(a))]) }

// policy returns the fingerprints of the i-th policy.
func (a announcement) policy(i int) (name, limits string) {
	at := digits + i*lua.AnnouncedDigits
	return string(a[at : at+digits]), string(a[at+digits : at+2*digits])
}

// shares returns how many eighths of the i-th policy's limits the process wants to be shared, and
// by how many it uses shares.
func (a announcement) shares(i int) (want, use int64) {
	at := digits + i*lua.AnnouncedDigits + 2*digits
	return int64(a[at] - '0'), int64(a[at+1] - '0')
}
