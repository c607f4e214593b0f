package model

import (
	"fmt"
	"maps"
	"time"

	"github.com/tiered-limiter/tiered-limiter/lua"
)

// tableStep is lua.TableStep in µs.
const tableStep = int64(lua.TableStep / time.Microsecond)

// Table is lua/standing.lua in Go: which process uses which fraction of the standing shares. The
// script says why each rule is there. The zero value is no table.
type Table struct {
	exists     bool
	born       int64                  // epoch
	last, now  int64                  // server time of the last call, and table time, µs
	quarantine int64                  // table time at which it ends
	members    map[string]tableRecord // by id
	expires    int64                  // ms of the server's clock after which there is no table; see key
}

// tableRecord is what the table knows of a member.
type tableRecord struct {
	seq, out, end int64
}

// Run executes one poll. clock is the server's own time, by which the table expires. The error is
// an [Error].
func (t *Table) Run(clock int64, p *lua.Poll) (lua.PollReply, error) {
	if n := p.Broken(); n > 0 {
		return lua.PollReply{}, argumentError(n)
	}
	if t.exists && clock/1000 > t.expires {
		*t = Table{}
	}
	server := p.Now
	if server == 0 {
		server = clock
	}
	// The poll works on a copy of all but the records. Those change only when it writes.
	next, flags := *t, lua.PollFlags(0)
	if !t.exists {
		next.begin(server, p.TTL)
		next.born, flags = server, lua.TableCreated
	} else {
		next.now += max(0, min(server-t.last, tableStep))
		next.last = server
		own, ok := t.members[p.Member]
		if ok && own.seq >= p.Seq {
			return lua.PollReply{Code: lua.PollStale, Epoch: t.born, Now: server}, nil
		}
		if ok && p.Epoch == t.born && own.seq < p.Ack {
			next.begin(server, p.TTL)
			flags = lua.WritesLost
		}
	}
	others, members := int64(0), int64(1)
	for id, r := range next.members {
		if r.end > next.now && id != p.Member {
			others += r.out
			members++
		}
	}
	quiet := next.now < next.quarantine
	if quiet {
		flags |= lua.Quarantine
	}
	own, ok := next.members[p.Member]
	if (!ok || own.end <= next.now) && p.Ack > 0 && (p.Epoch == next.born || !quiet) {
		return lua.PollReply{Code: lua.PollOver, Epoch: next.born, Flags: flags, Now: server}, nil
	}
	grant := int64(0)
	if p.Want {
		grant = min(lua.Pool/members, max(0, lua.Pool-others))
		if quiet {
			grant = min(grant, p.Hold)
		}
	}
	*t = next
	t.write(p, grant)
	t.expires = clock/1000 + 4*((p.TTL+999)/1000) + 60_000
	return lua.PollReply{Grant: grant, Epoch: t.born, Members: members, Flags: flags, Now: server}, nil
}

// begin starts a new epoch, without members.
func (t *Table) begin(server, ttl int64) {
	*t = Table{
		exists: true, born: max(server, t.born+1), last: server, quarantine: ttl + tableStep,
		members: make(map[string]tableRecord),
	}
}

// write removes the records that ended, and writes or removes the caller's.
func (t *Table) write(p *lua.Poll, grant int64) {
	maps.DeleteFunc(t.members, func(_ string, r tableRecord) bool { return r.end <= t.now })
	if p.Want || p.Hold > 0 {
		t.members[p.Member] = tableRecord{p.Seq, max(p.Hold, grant), t.now + p.TTL + tableStep}
	} else {
		delete(t.members, p.Member)
	}
}

// Fields returns what HGETALL would return of the table, and nil if there is none.
func (t *Table) Fields(clock int64) map[string]string {
	if !t.exists || clock/1000 > t.expires {
		return nil
	}
	fields := map[string]string{
		"v": "st1", "c": fmt.Sprint(t.born), "n": fmt.Sprint(t.last), "u": fmt.Sprint(t.now), "h": fmt.Sprint(t.quarantine),
	}
	for id, r := range t.members {
		fields["m"+id] = fmt.Sprintf("%d|%d|%d", r.seq, r.out, r.end)
	}
	return fields
}

// PTTL returns the ms that the table has left, or -2 if there is none.
func (t *Table) PTTL(clock int64) int64 {
	if !t.exists || clock/1000 > t.expires {
		return -2
	}
	return t.expires - clock/1000
}

// Clone returns a copy that shares nothing with t.
func (t *Table) Clone() Table {
	c := *t
	c.members = maps.Clone(t.members)
	return c
}
