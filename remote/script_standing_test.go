package remote_test

import (
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/tiered-limiter/tiered-limiter/lua"
	"github.com/tiered-limiter/tiered-limiter/remote"
)

// poll executes a poll of the table of standing shares; on Redis under the key.
func (e *engine) poll(t tester, key string, p lua.Poll) (r lua.PollReply, refusal string) {
	t.Helper()
	if e.memory != nil {
		r, err := e.memory.PollAt(p)
		return r, answerOf(t, lua.Reply{}, err).err
	}
	val, err := e.client.EvalSha(t.Context(), lua.Standing.SHA, []string{key}, p.Arguments(nil)...).Result()
	if err != nil {
		return r, answerOf(t, lua.Reply{}, err).err
	}
	r, ok := lua.DecodePoll(val)
	if !ok || !r.Answers(&p) {
		t.Fatalf("%s answers %+v by %v", e.name, p, val)
	}
	return r, ""
}

// TestStandingRules is a table of polls with their replies, on all engines. Rights last 10 s, and
// records 15 s.
func TestStandingRules(t *testing.T) {
	const ttl, all = int64(10e6), int64(lua.Pool)
	const known, older = 1, 2 // the epoch that the member knows: that of the table, the one before
	const fresh, lost, quiet = lua.TableCreated, lua.WritesLost, lua.Quarantine
	steps := []struct {
		at        float64 // s of the server's clock after the start
		id        string
		seq, hold int64 // ack is seq - 1
		idle      bool  // want 0
		epoch     int
		code      lua.PollCode
		grant     int64
		members   int64
		flags     lua.PollFlags
	}{
		// Of a new table nobody knows what is in use. So for the life of a record nothing is
		// granted.
		{at: 0, id: "a", seq: 1, members: 1, flags: fresh + quiet},
		{at: 5, id: "a", seq: 2, epoch: known, members: 1, flags: quiet},
		{at: 10, id: "a", seq: 3, epoch: known, members: 1, flags: quiet},
		{at: 14.999999, id: "a", seq: 4, epoch: known, members: 1, flags: quiet},
		{at: 15, id: "a", seq: 5, epoch: known, grant: all, members: 1},
		// What a holds is not granted to b before a has confirmed that it uses less.
		{at: 16, id: "b", seq: 1, members: 2},
		{at: 17, id: "a", seq: 6, hold: all, epoch: known, grant: all / 2, members: 2},
		{at: 18, id: "b", seq: 2, epoch: known, members: 2},
		{at: 19, id: "a", seq: 7, hold: all / 2, epoch: known, grant: all / 2, members: 2},
		{at: 20, id: "b", seq: 3, epoch: known, grant: all / 2, members: 2},
		// A call that was repeated or overtaken changes nothing.
		{at: 20, id: "a", seq: 7, hold: all / 2, epoch: known, code: lua.PollStale},
		{at: 20, id: "a", seq: 6, hold: all, epoch: known, code: lua.PollStale},
		// Who has no record has no right, whatever it says that it holds.
		{at: 20, id: "x", seq: 2, hold: 5, epoch: known, code: lua.PollOver},
		{at: 20, id: "x", seq: 2, hold: 5, epoch: older, code: lua.PollOver},
		// The record of a ends 15 s after its last call.
		{at: 25, id: "b", seq: 4, hold: all / 2, epoch: known, grant: all / 2, members: 2},
		{at: 30, id: "b", seq: 5, hold: all / 2, epoch: known, grant: all / 2, members: 2},
		{at: 33.999999, id: "b", seq: 6, hold: all / 2, epoch: known, grant: all / 2, members: 2},
		{at: 34, id: "b", seq: 7, hold: all / 2, epoch: known, grant: all, members: 1},
		{at: 34, id: "a", seq: 8, hold: all / 2, epoch: known, code: lua.PollOver},
		// The clock jumps by an hour, and back by two. Neither ends the record of b, nor does
		// silence of a minute.
		{at: 35, id: "c", seq: 1, members: 2},
		{at: 3635, id: "c", seq: 2, epoch: known, members: 2},
		{at: -3600, id: "c", seq: 3, epoch: known, members: 2},
		{at: -3540, id: "c", seq: 4, epoch: known, members: 2},
		// Who leaves frees all at once. Who only wants nothing more still uses what it has.
		{at: -3540, id: "b", seq: 8, idle: true, epoch: known, members: 2},
		{at: -3540, id: "c", seq: 5, epoch: known, grant: all, members: 1},
		{at: -3540, id: "c", seq: 6, hold: all, idle: true, epoch: known, members: 1},
		{at: -3540, id: "d", seq: 1, members: 2},
		{at: -3540, id: "b", seq: 9, idle: true, epoch: known, code: lua.PollOver},
		// Three calls of c are missing. So all are forgotten, and nobody is granted more than it
		// holds.
		{at: -3540, id: "c", seq: 10, hold: all / 4, epoch: known, grant: all / 4, members: 1, flags: lost + quiet},
		{at: -3540, id: "d", seq: 2, hold: 5, epoch: older, grant: 5, members: 2, flags: quiet},
		{at: -3540, id: "e", seq: 1, members: 3, flags: quiet},
		{at: -3540, id: "f", seq: 2, hold: all, epoch: older, grant: all / 4, members: 4, flags: quiet},
		{at: -3540, id: "g", seq: 2, hold: 7, epoch: known, code: lua.PollOver, flags: quiet},
		// Late calls of before the loss took more than there is: nothing is left for who holds the
		// rest.
		{at: -3540, id: "h", seq: 2, hold: all, epoch: older, members: 5, flags: quiet},
	}
	const key = "{" + secret + "}table"
	for _, e := range engines(t) {
		epochs := []int64{0, scriptStart, scriptStart - 1}
		begun := time.Now()
		for i, s := range steps {
			now := scriptStart + int64(s.at*1e6)
			if s.flags&lost != 0 { // the clock is behind the old epoch
				epochs[older] = epochs[known]
			}
			want := lua.PollReply{
				Code: s.code, Grant: s.grant, Epoch: epochs[known], Members: s.members, Flags: s.flags, Now: now,
			}
			got, refusal := e.poll(t, key, lua.Poll{
				Member: s.id, Seq: s.seq, Ack: s.seq - 1, Hold: s.hold, Want: !s.idle, TTL: ttl, Epoch: epochs[s.epoch],
				Now: now,
			})
			if s.flags&lost != 0 {
				epochs[known]++
				want.Epoch = epochs[known]
			}
			if refusal != "" || got != want {
				t.Errorf("%s, step %d: %+v, %q, want %+v", e.name, i, got, refusal, want)
			}
		}
		ms := int64(0)
		if e.memory != nil {
			ms = e.memory.TablePTTL()
		} else if pttl := e.client.PTTL(t.Context(), key).Val(); pttl > 0 {
			ms = pttl.Milliseconds()
		}
		if most := int64(100_000); ms > most || ms < most-2-time.Since(begun).Milliseconds() {
			t.Errorf("%s: the table lives for %d ms, want %d", e.name, ms, most)
		}
	}
}

// TestStandingBadText is about arguments that only a client of Redis can send.
func TestStandingBadText(t *testing.T) {
	const key = "{" + secret + "}table"
	good := []any{"a", 2, 1, 3, 1, 4, 5, 6}
	for _, e := range []*engine{miniEngine(t), realEngine(t)} {
		eval := func(args ...any) string {
			return answerOfPoll(t, e.client.EvalSha(t.Context(), lua.Standing.SHA, []string{key}, args...).Err())
		}
		for n := 2; n <= len(good); n++ {
			for _, text := range []string{
				"", "x", "nan", "inf", "-inf", "-1", "0.5", "9007199254740992", strings.Repeat("9", 400), "\x00",
			} {
				args := append([]any(nil), good...)
				args[n-1] = text
				if got, want := eval(args...), fmt.Sprintf("RLARG argument %d", n); got != want {
					t.Errorf("%s, %.20q: %q, want %s", e.name, text, got, want)
				}
			}
			if got, want := eval(good[:n-1]...), fmt.Sprintf("RLARG argument %d", n); got != want {
				t.Errorf("%s, %d arguments: %q, want %s", e.name, n-1, got, want)
			}
		}
		if got := eval(); got != "RLARG argument 1" {
			t.Errorf("%s, no argument: %q", e.name, got)
		}
		if got := eval("a", 1, 0, 0, 2, 1, 0, 0); got != "RLARG argument 5" {
			t.Errorf("%s, want 2: %q", e.name, got)
		}
		if n := e.client.Exists(t.Context(), key).Val(); n != 0 {
			t.Errorf("%s wrote", e.name)
		}
	}
}

func answerOfPoll(t tester, err error) string { return answerOf(t, lua.Reply{}, err).err }

// TestStandingBadPolls breaks the rules one by one, on all engines.
func TestStandingBadPolls(t *testing.T) {
	good := lua.Poll{
		Member: "a", Seq: 2, Ack: 1, Hold: lua.Pool, TTL: lua.LongestLease, Epoch: lua.Whole - 1, Now: scriptStart,
	}
	for _, e := range engines(t) {
		for n, spoil := range []struct {
			argument int
			by       func(p *lua.Poll)
		}{
			{0, func(*lua.Poll) {}},
			{1, func(p *lua.Poll) { p.Member = "" }},
			{2, func(p *lua.Poll) { p.Seq, p.Ack = 0, 0 }},
			{2, func(p *lua.Poll) { p.Seq = lua.Whole }},
			{3, func(p *lua.Poll) { p.Ack = 2 }},
			{3, func(p *lua.Poll) { p.Ack = -1 }},
			{4, func(p *lua.Poll) { p.Hold++ }},
			{4, func(p *lua.Poll) { p.Hold = -1 }},
			{6, func(p *lua.Poll) { p.TTL = 0 }},
			{6, func(p *lua.Poll) { p.TTL++ }},
			{7, func(p *lua.Poll) { p.Epoch++ }},
			{8, func(p *lua.Poll) { p.Now = -1 }},
			{8, func(p *lua.Poll) { p.Now, p.Ack = lua.Whole, 2 }}, // ranges before rules
		} {
			p, want := good, ""
			spoil.by(&p)
			if spoil.argument > 0 {
				want = fmt.Sprintf("RLARG argument %d", spoil.argument)
			}
			if _, got := e.poll(t, fmt.Sprintf("{%d}table", n), p); got != want {
				t.Errorf("%s, %+v: %q, want %q", e.name, p, got, want)
			}
		}
	}
}

// A hash of somebody else, a damaged one, and another type are refused and left as they are.
func TestStandingDamagedTable(t *testing.T) {
	const key = "{" + secret + "}table"
	good := map[string]string{"v": "st1", "c": "5", "n": "5", "u": "0", "h": "0", "mb": "1|2|9"}
	poll := lua.Poll{Member: "a", Seq: 1, Want: true, TTL: 1, Now: scriptStart}
	for _, e := range []*engine{miniEngine(t), realEngine(t)} {
		for _, c := range []struct{ field, value, want string }{
			{"more", "x", "RLCORRUPT member"}, // the record of a member "ore"
			{"v", "", "RLFOREIGN key"},
			{"v", "tb2", "RLFOREIGN key"},
			{"v", "st2", "RLFOREIGN key"},
			{"c", "", "RLCORRUPT field"},
			{"c", "x", "RLCORRUPT field"},
			{"n", "-1", "RLCORRUPT field"},
			{"u", "nan", "RLCORRUPT field"},
			{"u", "0.5", "RLCORRUPT field"},
			{"h", "1e400", "RLCORRUPT field"},
			{"h", "9007199254740992", "RLCORRUPT field"},
			{"n", "-", "RLCORRUPT field"},
			{"ma", "", "RLCORRUPT member"},
			{"ma", "1|2", "RLCORRUPT member"},
			{"ma", "1|2|3|4", "RLCORRUPT member"},
			{"mb", "1|-2|3", "RLCORRUPT member"},
			{"mb", "1|1048577|3", "RLCORRUPT member"},
			{"mb", strings.Repeat("9", 400) + "|2|3", "RLCORRUPT member"},
			{"mb", "1|2|nan", "RLCORRUPT member"},
		} {
			fields := maps.Clone(good)
			if fields[c.field] = c.value; c.value == "-" {
				delete(fields, c.field)
			}
			e.del(t, key)
			if err := e.client.HSet(t.Context(), key, fields).Err(); err != nil {
				t.Fatal(err)
			}
			if _, got := e.poll(t, key, poll); got != c.want {
				t.Errorf("%s, %s is %.20q: %q, want %q", e.name, c.field, c.value, got, c.want)
			}
			if after := e.look(t, key); !maps.Equal(after.fields, fields) || after.pttl >= 0 {
				t.Errorf("%s, %s is %.20q: wrote %v", e.name, c.field, c.value, after)
			}
		}
		e.del(t, key)
		e.client.HSet(t.Context(), key, "x", "1")
		if _, got := e.poll(t, key, poll); got != "RLFOREIGN key" {
			t.Errorf("%s, a hash of somebody else: %q", e.name, got)
		}
		e.client.Set(t.Context(), key, "x", 0)
		if _, got := e.poll(t, key, poll); !e.refuses(got, "WRONGTYPE ") || strings.Contains(got, secret) {
			t.Errorf("%s, another type: %q", e.name, got)
		}
	}
}

// A full Redis refuses every poll, and changes nothing. Otherwise it would end records, and then
// refuse the rest.
func TestFullRedisAndTheTable(t *testing.T) {
	e := realEngine(t)
	const key, ttl = "{full}table", int64(1e6)
	for i, id := range []string{"a", "b"} {
		p := lua.Poll{Member: id, Seq: 1, Want: true, TTL: ttl, Now: scriptStart + int64(i)*5e6}
		if _, refusal := e.poll(t, key, p); refusal != "" {
			t.Fatal(refusal)
		}
	}
	before := e.look(t, key).fields
	if err := e.client.ConfigSet(t.Context(), "maxmemory", "1").Err(); err != nil {
		t.Fatal(err)
	}
	for _, p := range []lua.Poll{
		{Member: "b", Seq: 2, Ack: 1, Want: true, TTL: ttl, Now: scriptStart + 10e6}, // ends the record of a
		{Member: "b", Seq: 2, Ack: 1, TTL: ttl, Now: scriptStart + 5e6},              // leaves
	} {
		if _, refusal := e.poll(t, key, p); !strings.HasPrefix(refusal, "OOM ") {
			t.Errorf("a full Redis answers %q", refusal)
		}
		if after := e.look(t, key).fields; !maps.Equal(before, after) {
			t.Errorf("%v, want %v", after, before)
		}
	}
}

// TestStandingServerTime reads the engine's own clock.
func TestStandingServerTime(t *testing.T) {
	for _, e := range engines(t) {
		before := time.Now().UnixMicro()
		r, refusal := e.poll(t, "{t}table", lua.Poll{Member: "a", Seq: 1, TTL: 1})
		if after := time.Now().UnixMicro(); refusal != "" || r.Now < before-1000 || r.Now > after+1000 || r.Epoch != r.Now {
			t.Errorf("%s: %+v, %s; it is %d", e.name, r, refusal, after)
		}
	}
}

// The table of a Memory steps with its clock, expires, is copied and ends with the rest.
func TestMemoryTable(t *testing.T) {
	m := remote.NewMemory()
	poll := func(m *remote.Memory, seq int64) lua.PollReply {
		t.Helper()
		p := remote.Process{ID: "p", TTL: time.Second}
		p.Poll = lua.Poll{Member: "a", Seq: seq, Ack: seq - 1, Want: true, TTL: 1e6}
		c, err := m.Presence(t.Context(), 0, m.TableNode(), p)
		if err != nil || c.Poll.Err != nil || !c.Poll.Sent || c.Poll.Reply.Now != c.Now {
			t.Fatalf("%+v, %v", c, err)
		}
		return c.Poll.Reply
	}
	first := poll(m, 1)
	twin := m.Clone()
	m.Step(time.Minute)
	if r := poll(m, 2); r.Flags&lua.TableCreated != 0 || r.Now-first.Now < 60e6 {
		t.Errorf("after a step %+v, first %+v", r, first)
	}
	if r := poll(twin, 2); r.Code != lua.PollDone {
		t.Errorf("the copy knows a later call: %+v", r)
	}
	m.Step(2 * time.Minute) // four ttl and a minute have passed
	if r := poll(m, 3); r.Flags != lua.TableCreated|lua.Quarantine {
		t.Errorf("after the end %+v", r)
	}
	broken := remote.Process{ID: "p", TTL: time.Second, Poll: lua.Poll{Seq: 1}}
	c, err := m.Presence(t.Context(), 0, m.TableNode(), broken)
	if err != nil || c.Processes != 1 || !c.Poll.Sent || fmt.Sprint(c.Poll.Err) != "remote: RLARG argument 1" {
		t.Errorf("a poll without an id: %+v, %v", c, err)
	}
	if c, err := m.Presence(t.Context(), 0, m.TableNode(), remote.Process{ID: "p"}); err != nil || c.Poll.Sent {
		t.Errorf("no poll: %+v, %v", c, err)
	}
}
