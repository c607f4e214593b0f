package remote_test

import (
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"strconv"
	"testing"

	"github.com/redis/go-redis/v9"
	"pgregory.net/rapid"

	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/redistest"
	"github.com/tiered-limiter/tiered-limiter/lua"
)

// TestRandomHistories plays random histories on the three engines and compares every reply, every
// stored field and every time to live. The histories come from rapid, so a difference is shown in
// its shortest form. That none was found says something only of what occurred: every kind of event
// must have, on the real server.
func TestRandomHistories(t *testing.T) {
	t.Run("redis", func(t *testing.T) {
		seen := make(census)
		randomHistories(t, realEngine(t), atFull(6000), seen)
		if !testing.Short() { // what happens once in 200 histories may be missing in 600
			seen.require(t)
		}
	})
	t.Run("redis, long form", func(t *testing.T) {
		e := realEngine(t)
		e.long = true
		randomHistories(t, e, atFull(1000), make(census))
	})
	if redistest.Guarded() {
		return // make test has played miniredis, whatever the Redis is
	}
	t.Run("miniredis", func(t *testing.T) { // gopher-lua takes ten times as long
		randomHistories(t, miniEngine(t), atFull(1000), make(census))
	})
}

// atFull is a number of histories, a tenth of it in a short run.
func atFull(n int) int {
	if testing.Short() {
		return n / 10
	}
	return n
}

// randomHistories plays so many histories on Memory and an engine, or more if -rapid.checks says
// so, and counts what happened in them.
func randomHistories(t *testing.T, e *engine, histories int, seen census) {
	checks := flag.Lookup("rapid.checks")
	before := checks.Value.String()
	defer func() { _ = checks.Value.Set(before) }()
	if testing.Short() {
		histories *= 5 // rapid takes a fifth
	}
	if n, err := strconv.Atoi(before); err != nil || n < histories {
		_ = checks.Value.Set(strconv.Itoa(histories))
	}
	played := 0
	rapid.Check(t, func(t *rapid.T) {
		played++
		draw := func(n int) int { return rapid.IntRange(0, n-1).Draw(t, "n") }
		w := newWalk(fmt.Sprintf("{walk/%d}tb2", played), draw)
		t.Repeat(map[string]func(*rapid.T){"step": func(*rapid.T) { w.step() }})
		w.replay(t, e, seen)
		w.count(seen)
	})
	t.Logf("%d histories, %d events, %d of %d times to live compared to the ms",
		played, seen[anything], seen[exact], seen[writes])
	if seen[exact] < seen[writes]/2 {
		t.Error("most times to live were read too late to say anything about the last ms")
	}
}

// TestManyHistories plays many more on Memory alone and checks what must hold after every call.
func TestManyHistories(t *testing.T) {
	for i := range atFull(10_000) {
		r := rand.New(rand.NewPCG(uint64(i), 1))
		w := newWalk("{walk/0}tb2", r.IntN)
		for range 30 {
			w.step()
			if d := w.broken(); d != "" {
				t.Fatalf("history %d: %s after\n%s", i, d, w)
			}
		}
	}
}

// broken reports what does not hold of the bucket after the last event, "" if all does.
func (w *walk) broken() string {
	if len(w.events) == 0 {
		return ""
	}
	e := &w.events[len(w.events)-1]
	b, fault := parse(e.state.fields)
	if fault != "" || !e.wrote() {
		return fault
	}
	if d := b.unsound(e.call, e.torn); d != "" {
		return d
	}
	return b.unkept(e.at, e.state.pttl)
}

// replay plays the history on another engine and compares.
//
// It is one transaction, because times to live run by the machine's clock, not by that of the
// calls: within EXEC no key expires, however long the machine stands still. For the same reason
// each time to live is read in the next command, and then taken away. So a call that writes nothing
// must leave none, and a key vanishes only where the history says so.
//
// Redis counts times to live in whole ms of the wall clock. So what is read must be what was set,
// less the ms that the server itself says have begun between the calls before and after: none in
// nearly all cases.
func (w *walk) replay(t *rapid.T, e *engine, seen census) {
	type look struct {
		call   *redis.Cmd
		pttl   *redis.Cmd
		fields *redis.MapStringStringCmd
		clock  *redis.TimeCmd
	}
	looks := make([]look, len(w.events))
	pipe := e.client.TxPipeline()
	began := pipe.Time(noContext)
	for i := range w.events {
		ev, l := &w.events[i], &looks[i]
		switch {
		case ev.loss == byFlush:
			pipe.FlushDB(noContext)
		case ev.loss != "":
			pipe.Del(noContext, w.bucket)
		case ev.hdel != "":
			pipe.HDel(noContext, w.bucket, ev.hdel)
		default:
			l.call = pipe.EvalSha(noContext, lua.TokenBucket.Script().SHA, []string{w.bucket}, e.args(ev.call)...)
		}
		l.pttl = pipe.Do(noContext, "PTTL", w.bucket)
		l.clock = pipe.Time(noContext)
		pipe.Persist(noContext, w.bucket)
		l.fields = pipe.HGetAll(noContext, w.bucket)
	}
	pipe.Del(noContext, w.bucket)
	_, _ = pipe.Exec(noContext) // a refusal is an error too; each command's own is looked at below
	before := began.Val()
	for i := range looks {
		ev, l := &w.events[i], &looks[i]
		if l.call != nil {
			if got := answerOfCmd(t, lua.TokenBucket, l.call); got != ev.answer {
				t.Fatalf("%s answers\n\t%v, memory\n\t%v\nto the last of\n%s", e.name, got, ev.answer, w.upToEvent(i))
			}
		}
		got, passed := storedOf(t, l.fields, l.pttl), l.clock.Val().UnixMilli()-before.UnixMilli()
		before = l.clock.Val()
		if !maps.Equal(got.fields, ev.state.fields) {
			t.Fatalf("%s holds\n\t%v, memory\n\t%v\nafter\n%s", e.name, got.fields, ev.state.fields, w.upToEvent(i))
		}
		if e.server == nil {
			passed = 0 // the times to live of miniredis do not run by themselves
		}
		if late := ev.state.pttl - got.pttl; late < 0 || late > passed || late > 0 && !ev.wrote() {
			t.Fatalf("%s lets the key live for %d ms, %d ms later, memory for %d ms after\n%s",
				e.name, got.pttl, passed, ev.state.pttl, w.upToEvent(i))
		}
		if ev.wrote() {
			seen[writes]++
			if passed == 0 {
				seen[exact]++
			}
		}
	}
}
