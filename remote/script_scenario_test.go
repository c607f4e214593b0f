package remote_test

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/tiered-limiter/tiered-limiter/lua"
)

// TestScenarios plays testdata/script/*.txt on the three engines. Every file is a list of
// scenarios:
//
//	== name
//	with cap=2 tokens=1 period=1s ttl=2s      arguments of all calls that follow
//	0s    A1 want=2  -> granted grant=2 level=0 | o=2 pA=1|2|2|2|2s|0
//	1s    take 1     -> denied retry=1s | same
//
// A call is a time after the start, then a lease id and its seq, or take n (want and min n), or
// peek, then arguments by their names in the contract. Without saying so, ack is seq − 1, min 0 and
// fleet 1. After the arrow stands what must be in the reply (code first, or the whole error) and
// after the bar what must be stored; what is not named is not looked at there, but all of reply,
// state and time to live must be the same on all engines. Instants (deadline, epoch, t, c, g, e,
// end of a record) count from the start, overflow, seen and s from 2⁴⁰. In the state -f means no
// field f, none no key, same nothing written since the call before, pttl is in ms. Other lines:
// "del" drops the key, "hdel pA" a record. With span=4 it is a sliding window of so many blocks of
// period: 1000000x4 is what it counted, 1000000x4@2s the block that has that instant, u the
// versions and until when they are in use, and h until when what governs does. With also=5/1/10s
// the key has one more bucket: its cap, tokens and period; of a sliding window also=5/1s/11 is a
// limit of 5 in 11 blocks of 1 s. With fixed=60s it is a fixed window of that length, which begins
// at the start, and with log=60s a log. written=2 is how many fields the real server has written,
// one more for the time to live.
func TestScenarios(t *testing.T) {
	all := engines(t)
	files, err := filepath.Glob("testdata/script/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no scenarios: %v", err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			scenarios(t, all, file, string(text))
		})
	}
}

// scenarios plays the text of one file.
func scenarios(t *testing.T, all []*engine, file, text string) {
	var play *scenario
	var name string
	var body []func(*testing.T)
	flush := func() {
		if play != nil {
			t.Run(name, func(t *testing.T) {
				play.begun = time.Now()
				for _, step := range body {
					step(t)
				}
			})
		}
		body = nil
	}
	number := 0
	for line := range strings.SplitSeq(text, "\n") {
		number++
		line, _, _ = strings.Cut(line, "#")
		if line = strings.TrimSpace(line); line == "" {
			continue
		}
		if title, ok := strings.CutPrefix(line, "== "); ok {
			flush()
			name = title
			play = &scenario{
				all: all, bucket: "{" + file + "/" + title + "}tb2",
				defaults: lua.Call{Cap: 10, Tokens: 1, Period: 1e6, TTL: 1e6, Fleet: 1},
			}
			continue
		}
		p, where := play, fmt.Sprintf("%s:%d: %s", file, number, line)
		body = append(body, func(t *testing.T) { p.step(t, where, line) })
	}
	flush()
}

// scenario is one bucket on all engines.
type scenario struct {
	all      []*engine
	bucket   string
	defaults lua.Call
	begun    time.Time
}

func (s *scenario) step(t *testing.T, where, line string) {
	words := strings.Fields(line)
	switch words[0] {
	case "with":
		for _, w := range words[1:] {
			setArgument(t, &s.defaults, w)
		}
		return
	case "del":
		for _, e := range s.all {
			e.del(t, s.bucket)
		}
		return
	case "hdel":
		for _, e := range s.all {
			e.hdel(t, s.bucket, words[1])
		}
		return
	}
	ask, rest, ok := strings.Cut(line, " -> ")
	if !ok {
		t.Fatalf("%s: no arrow", where)
	}
	want, state, _ := strings.Cut(rest, " | ")
	c := s.parse(t, ask)

	var model answer
	var after stored
	for i, e := range s.all {
		before, writes := e.lookAt(t, c.Algorithm, s.bucket), e.writes(t)
		got := e.call(t, c)
		now, written := e.lookAt(t, c.Algorithm, s.bucket), e.writes(t)-writes
		// A time to live has run since it was set, perhaps by an earlier call. Redis reads its
		// clock in whole ms.
		slack := 2 + time.Since(s.begun).Milliseconds()
		if i == 0 {
			model, after = got, now
		} else if got != model {
			t.Errorf("%s\n%s answers\n\t%v, memory\n\t%v", where, e.name, got, model)
		}
		if d := differs(after, now, slack); d != "" {
			t.Errorf("%s\n%s holds %s", where, e.name, d)
		}
		if d := damaged(now); d != "" {
			t.Errorf("%s\n%s: %s", where, e.name, d)
		}
		for _, d := range checkAnswer(t, strings.Fields(want), got) {
			t.Errorf("%s\n%s: %s in %v", where, e.name, d, got)
		}
		if slices.Contains(strings.Fields(state), "same") {
			if d := differs(before, now, slack); d != "" || written != 0 {
				t.Errorf("%s\n%s wrote (%d): %s", where, e.name, written, d)
			}
		}
		for _, d := range checkState(t, strings.Fields(state), now, slack) {
			if n, ok := strings.CutPrefix(d, "want written="); ok && (e.server == nil || written == number(t, n)) {
				continue
			}
			t.Errorf("%s\n%s: %s in %v, %d written", where, e.name, d, now, written)
		}
	}
	if t.Failed() {
		t.FailNow()
	}
}

// parse reads "1s A2 want=2" and the like.
func (s *scenario) parse(t *testing.T, text string) lua.Call {
	words := strings.Fields(text)
	c := s.defaults
	c.Bucket, c.Now = s.bucket, scriptStart+micros(t, words[0])
	rest := words[2:]
	switch words[1] {
	case "take":
		c.Want = number(t, words[2])
		c.Min = c.Want
		rest = words[3:]
	case "peek":
	default:
		c.Lease, c.Seq = words[1][:1], number(t, words[1][1:])
		if c.Algorithm != lua.SlidingLog { // which has no records
			c.Ack = c.Seq - 1
		}
	}
	for _, w := range rest {
		setArgument(t, &c, w)
	}
	return c
}

func setArgument(t *testing.T, c *lua.Call, word string) {
	name, v, ok := strings.Cut(word, "=")
	if !ok {
		t.Fatalf("not an argument: %q", word)
	}
	counts := map[string]*int64{
		"cap": &c.Cap, "tokens": &c.Tokens, "want": &c.Want, "min": &c.Min, "ack": &c.Ack, "hold": &c.Hold, "ret": &c.Ret,
		"refund": &c.Refund, "debt": &c.Debt, "maxdebt": &c.MaxDebt, "owed": &c.Owed, "seen": &c.Seen, "fleet": &c.Fleet, "to": &c.To,
		"span": &c.Span,
	}
	lengths := map[string]*int64{"period": &c.Period, "ttl": &c.TTL, "fixed": &c.Period, "log": &c.Period}
	instants := map[string]*int64{"at": &c.At, "since": &c.Since, "reset": &c.Reset, "deadline": &c.Deadline, "epoch": &c.Epoch}
	switch {
	case counts[name] != nil:
		*counts[name] = number(t, v)
	case lengths[name] != nil:
		*lengths[name] = micros(t, v)
	case instants[name] != nil:
		*instants[name] = scriptStart + micros(t, v)
	case name != "also":
		t.Fatalf("no such argument: %q", word)
	}
	switch name {
	case "span":
		c.Algorithm, c.Tokens = lua.SlidingWindow, 0
	case "fixed":
		c.Algorithm, c.Tokens, c.Phase = lua.FixedWindow, 0, scriptStart%c.Period
	case "log":
		c.Algorithm, c.Tokens = lua.SlidingLog, 0
	case "debt":
		c.Since = max(c.Since, scriptStart)
	case "seen":
		c.Seen += 1 << 40
	case "also":
		numbers := strings.Split(v, "/")
		if len(numbers) != 3 {
			t.Fatalf("not cap/tokens/period: %q", v)
		}
		l := lua.Limit{Cap: number(t, numbers[0])}
		if c.Algorithm == lua.SlidingWindow {
			l.Tokens, l.Period, l.Span = l.Cap, micros(t, numbers[1]), number(t, numbers[2])
		} else {
			c.Algorithm = lua.TokenBuckets
			l.Tokens, l.Period = number(t, numbers[1]), micros(t, numbers[2])
		}
		c.Also = append(c.Also, l)
	}
}

var codes = map[string]lua.Code{
	"granted": lua.Granted, "denied": lua.Denied, "replay": lua.Replay, "stale": lua.Stale,
	"never": lua.Never, "late": lua.Late,
}

// checkAnswer reports what of an answer is not as the words say.
func checkAnswer(t *testing.T, words []string, got answer) (wrong []string) {
	if code, ok := codes[words[0]]; !ok {
		if text := strings.Join(words, " "); got.err != text {
			wrong = append(wrong, "want error "+text)
		}
		return wrong
	} else if got.err != "" || got.reply.Code != code {
		return []string{"want " + words[0]}
	}
	r := got.reply
	have := map[string]int64{
		"grant": r.Grant, "level": r.Level, "retry": r.Retry, "active": r.Active, "left": r.TTLLeft,
		"now": r.Now - scriptStart, "epoch": r.Epoch - scriptStart, "flags": int64(r.Flags),
		"overflow": r.Overflow - 1<<40, "forgiven": r.Forgiven,
	}
	for _, w := range words[1:] {
		name, v, _ := strings.Cut(w, "=")
		x, ok := have[name]
		switch {
		case !ok:
			t.Fatalf("no such part of a reply: %q", w)
		case w == "epoch=none":
			ok = r.Epoch == 0
		case v != "" && v[len(v)-1] > '9':
			ok = x == micros(t, v)
		default:
			ok = x == number(t, v)
		}
		if !ok {
			wrong = append(wrong, fmt.Sprintf("want %s, have %d", w, x))
		}
	}
	return wrong
}

// checkState reports what of a state is not as the words say. A time to live may be less by slack,
// in ms.
func checkState(t *testing.T, words []string, got stored, slack int64) (wrong []string) {
	instant := func(v string) string { return strconv.FormatInt(scriptStart+micros(t, v), 10) }
	for _, w := range words {
		name, v, _ := strings.Cut(w, "=")
		ok := false
		switch {
		case w == "same":
			ok = true
		case name == "written": // the caller knows
		case w == "none":
			ok = got.fields == nil
		case name[0] == '-':
			_, ok = got.fields[name[1:]]
			ok = !ok
		case name[0] <= '9': // of a sliding window: 1000000x4, or with the block of an instant 1000000x4@2s
			field, at, block := strings.Cut(name, "@")
			if period, _, _ := strings.Cut(field, "x"); block {
				field += ":" + strconv.FormatInt((scriptStart+micros(t, at))/number(t, period), 10)
			}
			ok = got.fields[field] == v
		case name == "u": // 1000000x4@5s;2000000x3@6s
			versions := strings.Split(v, ";")
			for i, version := range versions {
				if tags, until, several := strings.Cut(version, "@"); several {
					versions[i] = tags + "@" + instant(until)
				}
			}
			ok = got.fields["u"] == strings.Join(versions, ";")
		case name == "h": // 11s/70s/0s, and of several limits 1000000:11s/70s,2000000:12s/70s
			limits := strings.Split(v, ",")
			for i, limit := range limits {
				period, until, several := strings.Cut(limit, ":")
				if !several {
					until = period
				}
				instants := strings.Split(until, "/")
				for j, x := range instants {
					instants[j] = instant(x)
				}
				if limits[i] = strings.Join(instants, "/"); several {
					limits[i] = period + ":" + limits[i]
				}
			}
			ok = got.fields["h"] == strings.Join(limits, ",")
		case name == "pttl":
			x := number(t, v)
			ok = got.pttl <= x && got.pttl >= x-slack
		case name == "t", name == "c", name == "e":
			ok = got.fields[name] == instant(v)
		case name == "g":
			ok = got.fields["g"] == "0" && v == "0" || v != "0" && got.fields["g"] == instant(v)
		case name == "z" && got.fields["v"] == lua.TokenBucket.Mark() && v == "0s": // left out
			ok = got.fields["z"] == ""
		case name == "z":
			ok = got.fields["z"] == strconv.FormatInt(micros(t, v), 10)
		case name == "s" && got.fields["v"] == lua.TokenBucket.Mark(): // in 4096ths, and left out at 0
			x, err := strconv.ParseFloat(v, 64)
			ok = err == nil && (x == 0 && got.fields["s"] == "" ||
				got.fields["s"] == strconv.FormatFloat(4096*x, 'g', 17, 64))
		case name[0] == 'l' && name != "l": // of several limits, by their periods: l1000000
			ok = got.fields[name] == v
		case name == "l", name == "s":
			x, err := strconv.ParseFloat(v, 64)
			if err != nil {
				t.Fatal(err)
			}
			if name == "s" {
				x += 1 << 40
			}
			ok = got.fields[name] == strconv.FormatFloat(x, 'g', 17, 64)
		case name[0] == 'p':
			parts := strings.Split(v, "|")
			parts[4] = instant(parts[4])
			ok = got.fields[name] == strings.Join(parts, "|")
		case name == "o", name == "w", name == "a", name == "r":
			ok = got.fields[name] == v
		case name == "fields":
			names := slices.Sorted(maps.Keys(got.fields))
			ok = strings.Join(names, ",") == v
		default:
			t.Fatalf("no such field: %q", w)
		}
		if !ok {
			wrong = append(wrong, "want "+w)
		}
	}
	return wrong
}

func number(t *testing.T, s string) int64 {
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func micros(t *testing.T, s string) int64 {
	d, err := time.ParseDuration(s)
	if err != nil {
		t.Fatal(err)
	}
	return d.Microseconds()
}
