package remote_test

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/tiered-limiter/tiered-limiter/lua"
)

// breaker, put before a script, ends a run with an error after so many writes, as a lack of memory
// may.
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

// Redis rolls nothing back when a script ends with an error. A call that sweeps three leases and
// grants a fourth is ended after each of its writes. The escrow still covers the leases, and the
// level fits beside it.
func TestScriptThatBreaksOff(t *testing.T) {
	e := miniEngine(t)
	const most, bucket = 10, "{k}tb2"
	source := lua.TokenBucket.Script().Source
	call := func(lease string, seq, want, after int64) lua.Call {
		return lua.Call{
			Bucket: bucket, Cap: 10, Tokens: 1, Period: 1_000_000, TTL: 2_000_000, Fleet: 1,
			Lease: lease, Seq: seq, Ack: seq - 1, Want: want, Now: scriptStart + after,
		}
	}
	for n := range most {
		e.del(t, bucket)
		for i, id := range []string{"A", "B", "C"} {
			if a := e.call(t, call(id, int64(i+1), 2, 0)); a.err != "" || a.reply.Grant != 2 {
				t.Fatal(a)
			}
		}
		sweeps := longArgs(call("D", 4, 3, 2_000_000))
		err := e.client.Eval(t.Context(), fmt.Sprintf(breaker, n)+source, []string{bucket}, sweeps...).Err()
		if err != nil && !strings.Contains(err.Error(), "broken off") {
			t.Fatal(err)
		}
		fields := e.look(t, bucket).fields
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
			if n < 4 || out != 3 {
				t.Errorf("%d writes, %v out, want the deletions, the bucket and its time, and the new lease", n, out)
			}
			return
		}
	}
	t.Errorf("more than %d writes", most)
}
