package main

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/tiered-limiter/tiered-limiter/lua"
)

// scriptCall is a call of the script in a bucket of 10, one token per second, leases of 2 s.
type scriptCall struct {
	name                       string
	after                      int64 // µs since the start
	lease                      string
	seq, want, hold, ret, debt int64
}

func (c scriptCall) args() []any {
	now := 1_763_640_000_123_456 + c.after
	return []any{
		10, 1, 1_000_000, c.want, 0, 2_000_000, c.lease, c.seq, max(c.seq-1, 0), c.hold, c.ret, 0, c.debt, now + 1_000_000,
		0, now, 1_000_000, 0, 0, 1,
	}
}

const scriptKey = "{k}tb1"

// server runs a miniredis.
func server(t *testing.T) *redis.Client {
	t.Helper()
	client := redis.NewClient(&redis.Options{Addr: miniredis.RunT(t).Addr()})
	t.Cleanup(func() { _ = client.Close() })
	return client
}

// TestScriptAnswers makes a few ordinary calls and wants ten numbers each time, whatever they are. The runner gives it the
// copies of the script that have a mistake: one that does not compile, or stumbles over itself, shows nothing.
func TestScriptAnswers(t *testing.T) {
	source := lua.TokenBucket.Script().Source
	if file := os.Getenv(scriptVariable); file != "" {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		source = string(text)
	}
	client := server(t)
	for _, c := range []scriptCall{
		{name: "a direct take", want: 3},
		{name: "a direct take that is denied", want: 9},
		{name: "a look", after: 1000},
		{name: "a lease", after: 2000, lease: "A", seq: 1, want: 2},
		{name: "the same again", after: 3000, lease: "A", seq: 1, want: 2},
		{name: "another's lease", after: 4000, lease: "B", seq: 2, want: 2},
		{name: "a renewal", after: 5000, lease: "A", seq: 3, want: 2, hold: 1},
		{name: "an older call", after: 6000, lease: "A", seq: 1, want: 2},
		{name: "a return", after: 7000, lease: "B", seq: 4, ret: 2},
		{name: "what was admitted alone", after: 8000, lease: "B", seq: 5, want: 1, debt: 2},
		{name: "a sweep", after: 3_000_000, lease: "B", seq: 6, want: 1},
		{name: "a small step back", after: 2_500_000, lease: "B", seq: 7},
		{name: "a large step back", lease: "B", seq: 8, want: 1, hold: 1},
		{name: "a direct take after all", after: 9_000_000, want: 1},
	} {
		reply, err := client.Eval(context.Background(), source, []string{scriptKey}, c.args()...).Int64Slice()
		if err != nil || len(reply) != 10 {
			t.Fatalf("%s: %v, %v", c.name, reply, err)
		}
	}
}

// breaker, put before the script, lets a run break off after so many writes, as it does when memory or the server ends.
const breaker = `
local server, writes = redis, 0
local redis = {error_reply = server.error_reply, call = function(name, ...)
  if name == 'HSET' or name == 'HDEL' or name == 'PEXPIRE' then
    if writes == %d then error('broken off') end
    writes = writes + 1
  end
  return server.call(name, ...)
end}
`

// TestScriptThatBreaksOff lets the run that sweeps three leases and gives a fourth break off after each of its writes:
// nothing is rolled back, so what stands must be safe. The escrow covers the leases, and beside it the level has room.
func TestScriptThatBreaksOff(t *testing.T) {
	ctx := context.Background()
	client := server(t)
	const most = 10
	for n := range most {
		client.Del(ctx, scriptKey)
		for i, id := range []string{"A", "B", "C"} {
			c := scriptCall{lease: id, seq: int64(i + 1), want: 2}
			if err := client.Eval(ctx, lua.TokenBucket.Script().Source, []string{scriptKey}, c.args()...).Err(); err != nil {
				t.Fatal(err)
			}
		}
		sweeps := scriptCall{after: 2_000_000, lease: "D", seq: 4, want: 3}
		err := client.Eval(ctx, fmt.Sprintf(breaker, n)+lua.TokenBucket.Script().Source, []string{scriptKey}, sweeps.args()...).Err()
		if err != nil && !strings.Contains(err.Error(), "broken off") {
			t.Fatal(err)
		}
		fields, _ := client.HGetAll(ctx, scriptKey).Result()
		number := func(text string) float64 { x, _ := strconv.ParseFloat(text, 64); return x }
		out := 0.0
		for name, v := range fields {
			if name[0] == 'p' {
				out += number(strings.Split(v, "|")[2])
			}
		}
		if escrow := number(fields["o"]); escrow < out || number(fields["l"])+escrow > 10 {
			t.Errorf("broken off after %d writes: escrow %v of %v that are out, in %v", n, escrow, out, fields)
		}
		if err == nil { // it had no more to write
			if n < 5 || out != 3 {
				t.Errorf("%d writes, %v out, want three deletions, the bucket and its time, and the new lease", n, out)
			}
			return
		}
	}
	t.Errorf("more than %d writes", most)
}
