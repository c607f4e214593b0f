package remote_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tiered-limiter/tiered-limiter/lua"
	"github.com/tiered-limiter/tiered-limiter/remote"
)

// seenAt says that a process is here at an injected time; on Redis under the key.
func (e *engine) seenAt(t tester, key string, now int64, p remote.Process) (c remote.Census, refusal string) {
	t.Helper()
	if e.memory != nil {
		c, err := e.memory.PresenceAt(now, p)
		if err != nil {
			return remote.Census{}, answerOf(t, lua.Reply{}, err).err
		}
		return c, ""
	}
	args := []any{p.ID, p.TTL.Microseconds(), now, string(p.Announced), int64(p.Keep / time.Second)}
	if p.Announced == "" && p.Keep == 0 && now%2 == 0 {
		args = args[:3] // as by a version that knows no announcements
	}
	n, err := e.client.EvalSha(t.Context(), lua.Presence.SHA, []string{key}, args...).Int64Slice()
	if err != nil {
		return remote.Census{}, answerOf(t, lua.Reply{}, err).err
	}
	c = remote.Census{Processes: n[0], Now: n[1], Silent: n[2]}
	parts := n[3+5*(len(p.Announced)/lua.AnnouncedDigits):]
	for p := range slices.Chunk(n[3:len(n)-len(parts)], 5) {
		c.Policies = append(c.Policies, remote.PolicyCensus{
			Processes: p[0], OtherServices: p[1], OtherLimits: p[2], SharedAlike: p[3], Used: int(p[4]),
		})
	}
	for u := range slices.Chunk(parts, 4) {
		c.WasUsed = append(c.WasUsed, lua.Used{Policy: u[0] - 1, Eighths: u[1], From: u[2], To: u[3]})
	}
	return c, ""
}

// TestPresence is a table of calls with their answers, on all engines.
func TestPresence(t *testing.T) {
	const ttl, never = int64(10e6), int64(-1)
	steps := []struct {
		at      int64 // µs after the start
		id      string
		ttl     int64
		want    int64 // processes
		refusal string
		pttl    int64 // ms afterwards; 0 not looked at, never: no key
		members string
	}{
		{at: 0, id: "a", ttl: 0, want: 0, pttl: never}, // leaving where nobody is
		{at: 0, id: "a", ttl: ttl, want: 1, pttl: 20_000, members: "a"},
		{at: 1e6, id: "b", ttl: ttl, want: 2, pttl: 20_000, members: "a b"},
		{at: 2e6, id: "a", ttl: ttl, want: 2, members: "b a"},
		{at: 3e6, id: "c", ttl: ttl, want: 3, members: "b a c"},
		{at: 11e6 - 1, id: "c", ttl: ttl, want: 3, members: "b a c"}, // b is here for less than ttl
		{at: 11e6, id: "c", ttl: ttl, want: 2, members: "a c"},       // and now it is not
		{at: 12e6, id: "b", ttl: ttl, want: 2, members: "c b"},
		{at: 12e6, id: "c", ttl: 0, want: 1, members: "b"},
		{at: 12e6, id: "c", ttl: 0, want: 1, members: "b"},
		{at: 12e6, id: "", ttl: ttl, refusal: "RLARG argument 1", members: "b"},
		{at: 12e6, id: "d", ttl: -1, refusal: "RLARG argument 2", members: "b"},
		{at: 12e6, id: "d", ttl: 1 << 53, refusal: "RLARG argument 2", members: "b"},
		{at: 1e6, id: "d", ttl: ttl, want: 1, members: "d"},      // 11 s back: b is from the future
		{at: 0, id: "e", ttl: ttl, want: 2, members: "e d"},      // 1 s back: d may stay
		{at: -9e6, id: "f", ttl: ttl, want: 3, members: "f e d"}, // exactly one ttl ahead: d may stay
		{at: -9e6 - 1, id: "f", ttl: ttl, want: 2, members: "f e"},
		{at: 100, id: "a\x00{b}\xff", ttl: 1, want: 1, pttl: 1, members: "a\x00{b}\xff"}, // 2 µs are 1 ms
	}
	const key = "{" + secret + "}presence"
	for _, e := range engines(t) {
		for i, s := range steps {
			p := remote.Process{ID: s.id, TTL: time.Duration(s.ttl) * time.Microsecond}
			begun := time.Now()
			c, refusal := e.seenAt(t, key, scriptStart+s.at, p)
			n, now := c.Processes, c.Now
			name := fmt.Sprintf("%s, step %d (%+v)", e.name, i, s)
			if s.pttl == 1 && n == 0 && e.server != nil {
				n = s.want // the machine stood still for that millisecond: PEXPIRE compares with the clock twice
			}
			if refusal != s.refusal || n != s.want || refusal == "" && now != scriptStart+s.at {
				t.Errorf("%s: %d processes at %+d, %q", name, n, now-scriptStart, refusal)
			}
			if e.memory != nil {
				continue
			}
			pipe := e.client.Pipeline()
			pttl, members := pipe.Do(t.Context(), "PTTL", key), pipe.ZRange(t.Context(), key, 0, -1)
			if _, err := pipe.Exec(t.Context()); err != nil {
				t.Fatal(err)
			}
			ms, _ := pttl.Int64()
			passed := time.Since(begun).Milliseconds() + 2 // Redis reads its clock in whole ms
			switch {
			case s.pttl == never && ms != -2, s.pttl == 1 && ms > 1, s.pttl > 1 && (ms > s.pttl || ms < s.pttl-passed):
				t.Errorf("%s: PTTL %d ms", name, ms)
			}
			got := members.Val() // who announces nothing has no other members than this one
			for i := range got {
				got[i] = strings.TrimPrefix(got[i], "p")
			}
			if got := strings.Join(got, " "); s.pttl != 1 && got != s.members {
				t.Errorf("%s: members %q", name, got)
			}
		}
	}
}

// digits returns so many hex digits, in which no policy is there twice.
func digits(n int) string {
	var b strings.Builder
	for i := 0; b.Len() < n; i++ {
		fmt.Fprintf(&b, "%016x", i)
	}
	return b.String()[:n]
}

// policiesText returns what a process with so many policies announces.
func policiesText(n int) string {
	b := digits(16)
	for i := range n {
		b += fmt.Sprintf("%016x%016x%d%d", i, i, i%7, i%7)
	}
	return b
}

// badAnnouncements are no announcements.
var badAnnouncements = []string{
	"x", "0", digits(15), digits(17), digits(32), digits(49), policiesText(1)[:49], policiesText(1) + "0", policiesText(513),
	strings.Repeat("g", 50), strings.Repeat("A", 50), digits(49) + " ", digits(49) + "\x00", digits(49) + "\n",
	policiesText(1) + policiesText(1)[16:],         // a policy twice
	policiesText(1)[:48] + "70", digits(48) + "0a", // more than six eighths
}

// TestPresenceBadText is about arguments that only a client of Redis can send, and keys that are
// something else.
func TestPresenceBadText(t *testing.T) {
	const key = "{" + secret + "}presence"
	for _, e := range []*engine{miniEngine(t), realEngine(t)} {
		eval := func(args ...any) string {
			err := e.client.EvalSha(t.Context(), lua.Presence.SHA, []string{key}, args...).Err()
			if err == nil {
				return ""
			}
			return answerOf(t, lua.Reply{}, err).err
		}
		for _, text := range []string{
			"", "x", "nan", "inf", "-inf", "-1", "0.5", "9007199254740992",
			strings.Repeat("9", 400),
		} {
			if got := eval("a", text, 0); got != "RLARG argument 2" {
				t.Errorf("%s, ttl %.20q: %q", e.name, text, got)
			}
			if got := eval("a", 1, text); got != "RLARG argument 3" {
				t.Errorf("%s, now %.20q: %q", e.name, text, got)
			}
		}
		for _, text := range []string{"x", "nan", "-1", "0.5", "4294967297"} {
			if got := eval("a", 1, 0, "", text); got != "RLARG argument 5" {
				t.Errorf("%s, keep %.20q: %q", e.name, text, got)
			}
		}
		for _, text := range badAnnouncements {
			if got := eval("a", 1, 0, text); got != "RLARG argument 4" {
				t.Errorf("%s, announcement %.80q: %q", e.name, text, got)
			}
			p := remote.Process{ID: "a", TTL: time.Second, Announced: remote.Announcement(text)}
			_, err := remote.NewMemory().PresenceAt(0, p)
			if err == nil || !strings.Contains(err.Error(), "RLARG argument 4") {
				t.Errorf("memory, announcement %.80q: %v", text, err)
			}
		}
		if got := eval("a", 1); got != "RLARG argument 3" {
			t.Errorf("%s, two arguments: %q", e.name, got)
		}
		if n := e.client.Exists(t.Context(), key).Val(); n != 0 {
			t.Errorf("%s wrote", e.name)
		}
		if got := eval("a", 1, 0, policiesText(512)); got != "" {
			t.Errorf("%s, 512 policies: %q", e.name, got)
		}
		e.client.Set(t.Context(), key, "x", 0)
		for _, ttl := range []int{0, 1000} {
			if got := eval("a", ttl, 0, policiesText(1)); !e.refuses(got, "WRONGTYPE ") || strings.Contains(got, secret) {
				t.Errorf("%s, another type: %q", e.name, got)
			}
		}
	}
}

// TestPresenceServerTime reads the engine's own clock.
func TestPresenceServerTime(t *testing.T) {
	for _, e := range engines(t) {
		before := time.Now().UnixMicro()
		c, refusal := e.seenAt(t, "{p}presence", 0, remote.Process{ID: "a", TTL: 10 * time.Second})
		now := c.Now
		if after := time.Now().UnixMicro(); refusal != "" || now < before-1000 || now > after+1000 {
			t.Errorf("%s: %d, %s; it is %d", e.name, now, refusal, after)
		}
	}
}
