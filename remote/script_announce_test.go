package remote_test

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/tiered-limiter/tiered-limiter/lua"
	"github.com/tiered-limiter/tiered-limiter/remote"
)

// says is an announcement of a service and of policies, each as "name:limits", and if shares are
// wanted or used as "name:limits:wanted:used".
func says(service string, policies ...string) remote.Announcement {
	all := make([]remote.AnnouncedPolicy, len(policies))
	for i, p := range policies {
		said := append(strings.Split(p, ":"), "0", "0")
		all[i] = remote.AnnouncedPolicy{Name: said[0], Limits: said[1], Shared: int(said[2][0] - '0'), Used: int(said[3][0] - '0')}
	}
	return remote.Announce(service, all)
}

// TestAnnouncements is a table of calls with their counts, on all engines.
func TestAnnouncements(t *testing.T) {
	const ttl = 10 * time.Second
	type counts = []remote.PolicyCensus
	steps := []struct {
		at   int64 // ms after the start
		id   string
		ttl  time.Duration
		says remote.Announcement
		all  int64  // processes
		mute int64  // those that announce nothing
		want counts // of each policy that it announces
	}{
		{at: 0, id: "a", ttl: ttl, says: says("shop", "api:10", "login:5"), all: 1, want: counts{{1, 0, 0, 0, 0}, {1, 0, 0, 0, 0}}},
		{at: 1000, id: "b", ttl: ttl, says: says("shop", "login:5", "api:10"), all: 2, want: counts{{2, 0, 0, 0, 0}, {2, 0, 0, 0, 0}}},
		// A process without policies counts nowhere, and one that announces nothing everywhere.
		{at: 1000, id: "c", ttl: ttl, says: says("shop"), all: 3},
		{at: 2000, id: "a", ttl: ttl, says: says("shop", "api:10"), all: 3, want: counts{{2, 0, 0, 0, 0}}},
		{at: 2000, id: "c", ttl: ttl, all: 3, mute: 1},
		{at: 3000, id: "b", ttl: ttl, says: says("shop", "login:5", "api:10"), all: 3, mute: 1, want: counts{
			{2, 0, 0, 0, 0},
			{3, 0, 0, 0, 0},
		}},
		// Another service: with the same limits, and with others.
		{at: 4000, id: "d", ttl: ttl, says: says("billing", "api:10"), all: 4, mute: 1, want: counts{{4, 0, 0, 0, 0}}},
		{at: 5000, id: "d", ttl: ttl, says: says("billing", "api:3"), all: 4, mute: 1, want: counts{{4, 2, 0, 0, 0}}},
		{at: 6000, id: "a", ttl: ttl, says: says("shop", "api:10"), all: 4, mute: 1, want: counts{{4, 1, 0, 0, 0}}},
		// A deploy changes the limits of its own service.
		{at: 7000, id: "b", ttl: ttl, says: says("shop", "api:3"), all: 4, mute: 1, want: counts{{4, 0, 1, 0, 0}}},
		{at: 8000, id: "a", ttl: ttl, says: says("shop", "api:10"), all: 4, mute: 1, want: counts{{4, 1, 1, 0, 0}}},
		// Who leaves is gone at once, and who is silent after ttl. A process may leave that nobody
		// knows.
		{at: 8000, id: "d", all: 3, mute: 1},
		{at: 8000, id: "d", says: says("shop", "api:10"), all: 3, mute: 1, want: counts{{3, 0, 1, 0, 0}}},
		{at: 11999, id: "a", ttl: ttl, says: says("shop", "api:10"), all: 3, mute: 1, want: counts{{3, 0, 1, 0, 0}}},
		{at: 12000, id: "a", ttl: ttl, says: says("shop", "api:10"), all: 2, want: counts{{2, 0, 1, 0, 0}}},
		{at: 17000, id: "a", ttl: ttl, says: says("shop", "api:10"), all: 1, want: counts{{1, 0, 0, 0, 0}}},
		// Who returns after it was forgotten.
		{at: 18000, id: "b", ttl: ttl, says: says("shop", "api:10"), all: 2, want: counts{{2, 0, 0, 0, 0}}},
		{at: 40000, id: "b", ttl: ttl, says: says("shop", "api:9"), all: 1, want: counts{{1, 0, 0, 0, 0}}},
		// Some want to share a part of the limits, and some do.
		{at: 41000, id: "b", ttl: ttl, says: says("shop", "api:9:1:0"), all: 1, want: counts{{1, 0, 0, 1, 0}}},
		{at: 42000, id: "c", ttl: ttl, says: says("shop", "api:9:4:4"), all: 2, want: counts{{2, 0, 0, 1, 4}}},
		{at: 42000, id: "d", ttl: ttl, says: says("shop", "login:9:4:4"), all: 3, want: counts{{1, 0, 0, 1, 4}}},
		{at: 43000, id: "b", ttl: ttl, says: says("shop", "api:9:4:2"), all: 3, want: counts{{2, 0, 0, 2, 4}}},
		{at: 43000, id: "e", ttl: ttl, says: says("shop", "api:9"), all: 4, want: counts{{3, 0, 0, 0, 4}}},
		{at: 44000, id: "c", says: says("shop", "api:9:4:4"), all: 3, want: counts{{2, 0, 0, 1, 2}}},
		// The clock was set back by more than a ttl.
		{at: 20000, id: "a", ttl: ttl, says: says("shop", "api:10"), all: 1, want: counts{{1, 0, 0, 0, 0}}},
	}
	const key = "{" + secret + "}announced"
	for _, e := range engines(t) {
		for i, s := range steps {
			now := scriptStart + s.at*1000
			got, refusal := e.seenAt(t, key, now, remote.Process{ID: s.id, TTL: s.ttl, Announced: s.says})
			want := remote.Census{Processes: s.all, Now: now, Silent: s.mute, Policies: s.want}
			if refusal != "" || !reflect.DeepEqual(got, want) {
				t.Errorf("%s, step %d: %+v, %q, want %+v", e.name, i, got, refusal, want)
			}
			e.sameCounts(t, key)
		}
	}
}

// sameCounts counts the announcements of a presence set, and compares with the counts that it has.
func (e *engine) sameCounts(t tester, key string) {
	t.Helper()
	if e.memory != nil {
		return
	}
	members, err := e.client.ZRangeWithScores(t.Context(), key, 0, -1).Result()
	if err != nil {
		t.Fatalf("%v", err)
	}
	processes, has, want := map[string]bool{}, map[string]float64{}, map[string]float64{}
	for _, m := range members {
		name := m.Member.(string)
		switch {
		case m.Score >= 0 && name[0] == 'p':
			processes[name[1:]] = true
		case m.Score > -1<<40:
			has[name] = -m.Score
		}
	}
	for _, m := range members {
		name := m.Member.(string)
		if m.Score > -1<<48 {
			continue
		}
		length, rest, _ := strings.Cut(name[1:], ":")
		n, _ := strconv.Atoi(length)
		if !processes[rest[:n]] {
			t.Fatalf("%s: %q announces something, and is no process", e.name, rest[:n])
		}
		service, said := rest[n:n+16], rest[n+16:]
		for ; said != ""; said = said[34:] {
			counts := []string{"n" + said[:16], "l" + said[:32], "s" + said[:16] + service, "b" + said[:32] + service}
			if said[32] != '0' {
				counts = append(counts, "w"+said[32:33]+said[:16])
			}
			if said[33] != '0' {
				counts = append(counts, "u"+said[:16], "u"+said[33:34]+said[:16])
			}
			for _, count := range counts {
				want[count]++
			}
		}
	}
	if !maps.Equal(has, want) {
		t.Fatalf("%s: the set counts\n\t%v, want\n\t%v", e.name, has, want)
	}
}

// Random processes come, change, go and die by a clock that jumps. The script answers as Memory
// does, in miniredis and on Redis, and its counts are those of the announcements.
func TestAnnouncementsAtRandom(t *testing.T) {
	all, run := engines(t), 0
	seen := map[string]int{}
	rapid.Check(t, func(t *rapid.T) {
		run++
		key := fmt.Sprintf("{random %d}announced", run)
		model := remote.NewMemory()
		now := scriptStart
		for range rapid.IntRange(1, 40).Draw(t, "calls") {
			now += rapid.SampledFrom([]int64{0, 1, 1e6, 3e6, 3e6, 5e6, 11e6, -1e6, -12e6}).Draw(t, "passes")
			p := remote.Process{
				ID:  rapid.SampledFrom([]string{"a", "b", "ab", "1:a", "c", "a\x00{b}\xff", "p", "n"}).Draw(t, "id"),
				TTL: 10 * time.Second,
			}
			if rapid.IntRange(0, 3).Draw(t, "leaves") == 3 {
				p.TTL = 0
			}
			p.Keep = rapid.SampledFrom([]time.Duration{0, time.Minute, time.Minute, 3 * time.Second}).Draw(t, "keep")
			if rapid.IntRange(0, 5).Draw(t, "what") > 0 {
				var policies []string
				for _, name := range rapid.Permutation([]string{"api", "login", "pay"}).Draw(t, "policies") {
					if limits := rapid.IntRange(0, 2).Draw(t, name); limits > 0 {
						shares := rapid.SampledFrom([]string{"", "", ":1:0", ":1:1", ":4:1", ":4:4", ":0:6"}).Draw(t, "shares")
						policies = append(policies, fmt.Sprint(name, ":", limits, shares))
					}
				}
				p.Announced = says(rapid.SampledFrom([]string{"shop", "billing"}).Draw(t, "service"), policies...)
			}
			want, err := model.PresenceAt(now, p)
			if err != nil {
				t.Fatal(err)
			}
			for _, e := range all[1:] {
				got, refusal := e.seenAt(t, key, now, p)
				if refusal != "" || !reflect.DeepEqual(got, want) {
					t.Fatalf("%s: %+v, %q, want %+v", e.name, got, refusal, want)
				}
				e.sameCounts(t, key)
			}
			seen["was used"] += min(len(want.WasUsed), 1)
			for _, c := range want.Policies {
				for what, n := range map[string]int64{
					"several": max(c.Processes-1, 0), "services": c.OtherServices, "limits": c.OtherLimits,
					"alike": max(c.SharedAlike-1, 0), "used": int64(c.Used),
				} {
					seen[what] += int(min(n, 1))
				}
			}
		}
	})
	for _, what := range []string{"several", "services", "limits", "alike", "used", "was used"} {
		if seen[what] < few {
			t.Errorf("%s: %d times", what, seen[what])
		}
	}
}

// A node keeps which parts of a policy were in use for as long as a process asks for, though nobody
// is there any more, and tells it to who announces the policy.
func TestPartsThatWereUsed(t *testing.T) {
	const key, second = "{parts}announced", int64(1e6)
	steps := []struct {
		at, life int64 // s after the start; s that the key lives afterwards, 0 not looked at
		id, says string
		keep     time.Duration
		want     []lua.Used // in s after the start
	}{
		{at: 0, id: "a", says: "api:1:4:4", keep: time.Minute, want: []lua.Used{{Eighths: 4, From: 0, To: 1}}, life: 60},
		{at: 3, id: "a", says: "api:1:4:4", keep: time.Minute, want: []lua.Used{{Eighths: 4, From: 0, To: 4}}},
		{at: 5, id: "b", says: "api:1:0:0", keep: time.Minute, want: []lua.Used{{Eighths: 4, From: 0, To: 4}}},
		{at: 6, id: "c", says: "api:1:4:4", life: 60},          // it does not ask, and the key lives as long
		{at: 7, id: "c", says: "pay:1:4:0", keep: time.Minute}, // nor is it told of others
		{at: 8, id: "b", says: "api:1:1:1", keep: time.Minute, want: []lua.Used{{Eighths: 1, From: 8, To: 9}, {Eighths: 4, From: 0, To: 4}}},
		{
			at: 40, id: "d", says: "pay:1:0:0,api:1:0:0", keep: time.Minute,
			want: []lua.Used{{Policy: 1, Eighths: 1, From: 8, To: 9}, {Policy: 1, Eighths: 4, From: 0, To: 4}},
		},
		{at: 63, id: "d", says: "api:1:0:0", keep: time.Minute, want: []lua.Used{{Eighths: 1, From: 8, To: 9}, {Eighths: 4, From: 0, To: 4}}},
		{at: 65, id: "d", says: "api:1:0:0", keep: time.Minute, want: []lua.Used{{Eighths: 1, From: 8, To: 9}}},
		{at: 60, id: "d", says: "api:1:1:1", keep: time.Minute, want: []lua.Used{{Eighths: 1, From: 8, To: 61}}}, // a clock that was set back
		{at: 122, id: "d", says: "api:1:1:1", keep: time.Minute, want: []lua.Used{{Eighths: 1, From: 122, To: 123}}},
		{at: 300, id: "d", says: "api:1:0:0", keep: time.Minute, life: 20},
	}
	for _, e := range engines(t) {
		for i, s := range steps {
			p := remote.Process{ID: s.id, TTL: 10 * time.Second, Announced: says("shop", strings.Split(s.says, ",")...), Keep: s.keep}
			c, refusal := e.seenAt(t, key, scriptStart+s.at*second, p)
			for i := range c.WasUsed {
				u := &c.WasUsed[i]
				u.From, u.To = u.From/second-scriptStart/second, u.To/second-scriptStart/second
			}
			if refusal != "" || !slices.Equal(c.WasUsed, s.want) {
				t.Errorf("%s, step %d: %+v, %q, want %+v", e.name, i, c.WasUsed, refusal, s.want)
			}
			if e.client != nil && s.life > 0 {
				if left := e.client.PTTL(t.Context(), key).Val(); left > time.Duration(s.life)*time.Second || left < time.Duration(s.life-9)*time.Second {
					t.Errorf("%s, step %d: the key lives for %v", e.name, i, left)
				}
			}
		}
	}
}

// Many processes of many policies die at once: one call counts them out.
func TestManyAnnouncementsEnd(t *testing.T) {
	const key, processes = "{many}announced", 60
	most := make([]string, lua.MostPolicies)
	for i := range most {
		most[i] = fmt.Sprint("policy", i, ":", i)
	}
	for _, e := range []*engine{miniEngine(t), realEngine(t)} {
		now := scriptStart
		for i := range processes {
			some := most[i*3 : i*3+30]
			p := remote.Process{ID: fmt.Sprint(i), TTL: 10 * time.Second, Announced: says(fmt.Sprint(i%3), some...)}
			if _, refusal := e.seenAt(t, key, now, p); refusal != "" {
				t.Fatal(refusal)
			}
		}
		me := remote.Process{ID: "me", TTL: 10 * time.Second, Announced: says("0", most...)}
		c, refusal := e.seenAt(t, key, now+1, me)
		if refusal != "" || c.Processes != processes+1 || c.Policies[64].Processes != 11 ||
			c.Policies[250].Processes != 1 {
			t.Fatalf("%s: %+v, %q", e.name, c, refusal)
		}
		e.sameCounts(t, key)
		c, refusal = e.seenAt(t, key, now+10e6, me)
		if refusal != "" || c.Processes != 1 || slices.ContainsFunc(c.Policies, func(p remote.PolicyCensus) bool {
			return p != remote.PolicyCensus{Processes: 1}
		}) {
			t.Fatalf("%s: %+v, %q", e.name, c, refusal)
		}
		e.sameCounts(t, key)
		if n := e.client.ZCard(t.Context(), key).Val(); n != 2+4*lua.MostPolicies {
			t.Errorf("%s: %d members", e.name, n)
		}
	}
}

// A full Redis refuses a process that comes, as it refuses the call of a bucket, and lets one
// leave.
func TestFullRedisAndAnnouncements(t *testing.T) {
	e := realEngine(t)
	const key = "{full}announced"
	p := remote.Process{ID: "a", TTL: time.Minute, Announced: says("shop", "api:1", "login:1")}
	q := p
	q.ID = "b"
	for _, p := range []remote.Process{p, q} {
		if _, refusal := e.seenAt(t, key, scriptStart, p); refusal != "" {
			t.Fatal(refusal)
		}
	}
	if err := e.client.ConfigSet(t.Context(), "maxmemory", "1").Err(); err != nil {
		t.Fatal(err)
	}
	p.Announced = says("shop", "api:2")
	if _, refusal := e.seenAt(t, key, scriptStart+1, p); !strings.HasPrefix(refusal, "OOM ") {
		t.Errorf("a full Redis answers %q", refusal)
	}
	e.sameCounts(t, key)
	q.TTL = 0
	c, refusal := e.seenAt(t, key, scriptStart+1, q)
	if refusal != "" || c.Processes != 1 || c.Policies[0].Processes != 1 {
		t.Errorf("%+v, %q", c, refusal)
	}
	e.sameCounts(t, key)
}

func TestAnnounce(t *testing.T) {
	policies := make([]remote.AnnouncedPolicy, lua.MostPolicies+1)
	for i := range policies {
		policies[i].Name = strconv.Itoa(i)
	}
	if a := remote.Announce("s", policies); a != "" {
		t.Errorf("too many policies: %d bytes", len(a))
	}
	if a := remote.Announce("s", policies[1:]); len(a) != 16+34*lua.MostPolicies {
		t.Errorf("%d bytes", len(a))
	}
	a, b := remote.Announce("secret", nil), remote.Announce("", nil)
	if len(a) != 16 || len(b) != 16 || a == b || strings.Contains(string(a), "secret") {
		t.Errorf("%q, %q", a, b)
	}
}
