package remote_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/redistest"
	"github.com/tiered-limiter/tiered-limiter/lua"
	"github.com/tiered-limiter/tiered-limiter/remote"
)

// The tests of the scripts run every call on three engines: Memory, the Lua in miniredis
// (gopher-lua), the Lua in a real redis-server. Memory is the model; the real server is the
// reference where the two Luas differ (printing of numbers).

// scriptStart is the time 0 of all tests that inject the time, µs since 1970. 16 digits, as in
// production: a script that prints such a number with Lua's default of 14 loses hours.
const scriptStart = int64(1_763_640_000_123_456)

// engine executes calls on one of the three.
type engine struct {
	name   string
	memory *remote.Memory // or
	client *redis.Client
	server *redistest.Server    // the real one
	mini   *miniredis.Miniredis // the other
	lives  map[string]int64     // ms that the real one gave a key to live: see call
	kept   int64                // times that call had a key live for ever
	extra  int64                // that Redis 6.2 counts as written for a transaction that writes
	long   bool                 // direct takes go in the long form too
}

// engines starts all three; the first is Memory.
func engines(t testing.TB) []*engine {
	t.Helper()
	return []*engine{{name: "memory", memory: remote.NewMemory()}, miniEngine(t), realEngine(t)}
}

func miniEngine(t testing.TB) *engine {
	t.Helper()
	m := miniredis.NewMiniRedis()
	if err := m.StartAddr("127.0.0.1:0"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.Close)
	e := redisEngine(t, "miniredis", &redis.Options{Addr: m.Addr()})
	e.mini = m
	return e
}

func realEngine(t testing.TB) *engine {
	t.Helper()
	s := redistest.StartOpen(t) // a walk runs scripts and looks at what they left in one transaction
	e := redisEngine(t, "redis", &redis.Options{Network: "unix", Addr: s.Socket})
	e.server, e.lives = s, make(map[string]int64)
	if strings.HasPrefix(redistest.Version(t), "6.") {
		e.extra = 1
	}
	return e
}

func redisEngine(t testing.TB, name string, o *redis.Options) *engine {
	t.Helper()
	o.MaxRetries, o.ReadTimeout = -1, time.Minute // nothing is sent twice, and a slow machine is no reason to fail
	c := redis.NewClient(o)
	t.Cleanup(func() { _ = c.Close() })
	scripts := []*lua.Script{lua.Presence, lua.Standing}
	for a := range lua.Algorithm(lua.Algorithms) {
		scripts = append(scripts, a.Script())
	}
	for _, s := range scripts {
		sha, err := c.ScriptLoad(context.Background(), s.Source).Result()
		if err != nil {
			t.Fatalf("%s does not load the script: %v", name, err)
		}
		if sha != s.SHA {
			t.Fatalf("%s calls the script %s, we call it %s", name, sha, s.SHA)
		}
	}
	return &engine{name: name, client: c}
}

// answer is what a call came to, comparable.
type answer struct {
	reply lua.Reply
	err   string // the script's error, "" none
}

func (a answer) String() string {
	if a.err != "" {
		return a.err
	}
	return fmt.Sprintf("%+v", a.reply)
}

// stored is what a key holds after a call.
type stored struct {
	fields map[string]string // nil: there is no key
	pttl   int64             // ms, -2 no key
}

// args are the arguments of a call as this engine is sent them.
func (e *engine) args(c lua.Call) []any {
	if e.long {
		return longArgs(c)
	}
	return c.Arguments(nil, nil)
}

// shortArgs are ARGV of a call as Redis gets them.
func shortArgs(c lua.Call) []any { return c.Arguments(nil, nil) }

// longArgs are ARGV of a call in the form that says all.
func longArgs(c lua.Call) []any { return c.LongArguments() }

// call executes a call. Where a call says what time it is, time passes only by what calls say: then
// no key of the real server may expire because the machine was slow, so it lives for ever, and how
// long it was given is noted.
func (e *engine) call(t tester, c lua.Call) answer {
	t.Helper()
	if e.memory != nil {
		var r [1]remote.Result
		e.memory.Run(t.Context(), time.Second, []lua.Call{c}, r[:])
		return answerOf(t, r[0].Reply, r[0].Err)
	}
	sha, args := c.Algorithm.Script().SHA, e.args(c)
	if e.server != nil && c.Now != 0 {
		p := e.client.TxPipeline()
		reply := p.EvalSha(t.Context(), sha, []string{c.Bucket}, args...)
		pttl, kept := p.Do(t.Context(), "PTTL", c.Bucket), p.Persist(t.Context(), c.Bucket)
		_, _ = p.Exec(t.Context()) // each command's own error is looked at
		if ms, err := pttl.Int64(); err == nil {
			if ms != -1 { // -2: there is no key
				e.lives[c.Bucket] = ms
			}
			if kept.Val() {
				e.kept += 1 + e.extra
			}
			return answerOfCmd(t, c.Algorithm, reply)
		} // else the transaction was refused as a whole: what does the script say?
	}
	return answerOfCmd(t, c.Algorithm, e.client.EvalSha(t.Context(), sha, []string{c.Bucket}, args...))
}

func answerOfCmd(t tester, a lua.Algorithm, cmd *redis.Cmd) answer {
	t.Helper()
	n, err := cmd.Int64Slice()
	if err != nil {
		return answerOf(t, lua.Reply{}, err)
	}
	var forgiven int64
	var governs lua.Limit
	if a == lua.TokenBucket && len(n) == 14 {
		n, governs = n[:11], lua.Limit{Cap: n[11], Tokens: n[12], Period: n[13]}
	}
	if len(n) == 11 || len(n) == 14 {
		n, forgiven = n[:len(n)-1], n[len(n)-1]
	}
	if len(n) != 10 && len(n) != 13 || len(n) == 10 != (a == lua.TokenBucket) {
		t.Fatalf("a reply of %d numbers: %v", len(n), n)
	}
	r := lua.Reply{
		Code: lua.Code(n[0]), Grant: n[1], Level: n[2], Retry: n[3], Active: n[4], TTLLeft: n[5], Now: n[6],
		Epoch: n[7],
		Flags: lua.Flags(n[8]), Overflow: n[9], Forgiven: forgiven, Governs: governs,
	}
	if len(n) == 13 {
		r.Which, r.Reset, r.Stamp = n[10], n[11], n[12]
	}
	return answer{reply: r}
}

func answerOf(t tester, r lua.Reply, err error) answer {
	t.Helper()
	if err == nil {
		return answer{reply: r}
	}
	var refusal *remote.ScriptError
	var reply redis.Error
	err = remote.Reportable(err) // Redis 6.2 wraps the error of a script
	switch {
	case errors.As(err, &refusal):
		return answer{err: refusal.Text}
	case errors.As(err, &reply):
		return answer{err: reply.Error()}
	}
	t.Fatalf("not an answer of the script: %v", err)
	return answer{}
}

// refuses reports whether an error that the script did not make itself begins as it should.
// miniredis wraps those.
func (e *engine) refuses(text, start string) bool {
	return strings.HasPrefix(text, start) || e.server == nil && strings.Contains(text, ": "+start)
}

// look reads a bucket.
func (e *engine) look(t tester, bucket string) stored {
	t.Helper()
	if e.memory != nil {
		return stored{e.memory.Fields(bucket), e.memory.PTTL(bucket)}
	}
	p := e.client.Pipeline()
	fields, pttl := p.HGetAll(t.Context(), bucket), p.Do(t.Context(), "PTTL", bucket)
	_, _ = p.Exec(t.Context()) // each command's own error is looked at
	return e.given(bucket, storedOf(t, fields, pttl))
}

// given has the time to live that a call gave a key which lives for ever now.
func (e *engine) given(bucket string, s stored) stored {
	if ms, ok := e.lives[bucket]; ok && s.pttl == -1 {
		s.pttl = ms
	}
	return s
}

// storedOf reads PTTL as a number: as a time.Duration it may overflow.
func storedOf(t tester, fields *redis.MapStringStringCmd, pttl *redis.Cmd) stored {
	t.Helper()
	ms, err := pttl.Int64()
	if err != nil || fields.Err() != nil {
		t.Fatalf("no look at the bucket: %v, %v", err, fields.Err())
	}
	if len(fields.Val()) == 0 {
		return stored{nil, ms}
	}
	return stored{fields.Val(), ms}
}

// tester is a *testing.T or a *rapid.T.
type tester interface {
	Helper()
	Context() context.Context
	Fatalf(format string, args ...any)
}

var noContext = context.Background()

// del removes a bucket, as an eviction or an expiry would.
func (e *engine) del(t testing.TB, bucket string) {
	t.Helper()
	if delete(e.lives, bucket); e.memory != nil {
		e.memory.Del(bucket)
	} else if err := e.client.Del(t.Context(), bucket).Err(); err != nil {
		t.Fatal(err)
	}
}

// hdel removes a record, as a run does that breaks off after its deletions.
func (e *engine) hdel(t testing.TB, bucket, field string) {
	t.Helper()
	if e.memory != nil {
		e.memory.HDel(bucket, field)
	} else if n, err := e.client.HDel(t.Context(), bucket, field).Result(); err != nil || n != 1 {
		t.Fatalf("HDEL %s: %d, %v", field, n, err)
	}
}

// writes counts what the real server has written since its start; 0 elsewhere. It rises with every
// write that would be replicated, and, unlike the replication offset, without a replica too.
func (e *engine) writes(t testing.TB) int64 {
	t.Helper()
	if e.server == nil {
		return 0
	}
	info, err := e.client.Info(t.Context(), "persistence").Result()
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.SplitSeq(info, "\r\n") {
		if n, ok := strings.CutPrefix(line, "rdb_changes_since_last_save:"); ok {
			x, err := strconv.ParseInt(n, 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			return x - e.kept
		}
	}
	t.Fatal("INFO has no rdb_changes_since_last_save")
	return 0
}

// differs tells two states apart, "" if they are one. Whole numbers and doubles must be the same
// text; slack is by how many ms the times to live may differ, being read a little after they were
// written.
func differs(want, got stored, slack int64) string {
	if !maps.Equal(want.fields, got.fields) {
		return fmt.Sprintf("fields\n\t%v, want\n\t%v", got.fields, want.fields)
	}
	if max(got.pttl-want.pttl, want.pttl-got.pttl) > slack {
		return fmt.Sprintf("PTTL %d ms, want %d (± %d)", got.pttl, want.pttl, slack)
	}
	return ""
}

// damaged reports what must never be stored, "" if all is well.
func damaged(s stored) string {
	for f, v := range s.fields {
		if f == "v" || f == "r" || f == "h" || f == "u" || f[0] == 'p' {
			continue
		}
		if x, err := strconv.ParseFloat(v, 64); err != nil || math.IsNaN(x) || math.IsInf(x, 0) {
			return "field " + f + " is " + v
		}
	}
	return ""
}
