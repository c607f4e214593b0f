package remote_test

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/tiered-limiter/tiered-limiter/lua"
)

// Direct takes of windows and of several buckets in both forms, on keys of their own: the same answers and the same
// state, step by step, and the same errors, by the number of the argument in the long form.
func TestShortFormOfWindows(t *testing.T) {
	places := map[int]int{0: 1, 1: 2, 2: 3, 3: 11, 4: 12, 5: 13, 6: 22, 7: 23, 8: 24, 9: 25}
	for _, e := range []*engine{miniEngine(t), realEngine(t)} {
		for a := lua.SlidingLog; a <= lua.TokenBuckets; a++ {
			sha := a.Script().SHA
			send := func(key string, args []any) answer {
				return answerOfCmd(t, e.client.EvalSha(t.Context(), sha, []string{key}, args...))
			}
			codes := map[lua.Code]int{}
			for limits := range 6 { // 5 further ones go in the long form
				c := of(a, "", 5, 10*sec, sec)
				if limits > 0 && a != lua.SlidingWindow && a != lua.TokenBuckets {
					break
				}
				for i := range limits {
					c.Also = append(c.Also, lua.Limit{Cap: 6, Tokens: 6, Period: int64(11+i) * sec, Span: c.Span})
				}
				if n, want := len(c.Arguments(nil, nil)), 9+3*limits; limits < 5 && n != want ||
					limits == 5 && n != len(c.LongArguments()) {
					t.Errorf("%d further limits: %d arguments", limits, n)
				}
				for step, n := range []int64{1, 2, 3, 2, 0, 7, 1, 1, 5, 1, 2} {
					c.Now = scriptStart + int64(step*step)*sec/2
					c.Deadline = scriptStart + 45*sec // the last is late
					if step == 3 {
						c.Now -= 3 * sec // set back by half a second, which is waited out
					}
					if step == 8 {
						c.Now -= 3600 * sec // set back by an hour
					}
					if c.Epoch = scriptStart; step > 5 {
						c.Epoch++ // another
					}
					keys := [2]string{fmt.Sprintf("{short/%d/%d}", a, limits), fmt.Sprintf("{long/%d/%d}", a, limits)}
					begun := time.Now()
					short, long := send(keys[0], shortArgs(take(c, n))), send(keys[1], longArgs(take(c, n)))
					if short != long || short.err != "" {
						t.Fatalf("%s, algorithm %d, step %d: short %v, long %v", e.name, a, step, short, long)
					}
					if x, y := e.lookAt(t, a, keys[0]), e.lookAt(t, a, keys[1]); !maps.Equal(x.fields, y.fields) ||
						max(x.pttl, y.pttl)-min(x.pttl, y.pttl) > 2+time.Since(begun).Milliseconds() {
						t.Fatalf("%s, algorithm %d, step %d: short %v, long %v", e.name, a, step, x, y)
					}
					codes[short.reply.Code]++
				}
			}
			if len(codes) < 4 {
				t.Errorf("algorithm %d: only codes %v: this shows little", a, codes)
			}
			c := take(of(a, "", 5, minute, sec), 1)
			c.Now = scriptStart
			c.MaxDebt = 30
			args := c.Arguments(nil, nil)
			for short, n := range places {
				for _, text := range []any{"", "x", "nan", "inf", "-1", "0.5", "9007199254740992"} {
					bad := slices.Clone(args)
					bad[short] = text
					if got, want := send("args", bad), fmt.Sprintf("RLARG argument %d", n); got.err != want {
						t.Errorf("%s, algorithm %d, %q for argument %d: %v, want %s", e.name, a, text, short, got, want)
					}
				}
			}
			for n := range 24 { // a form with something missing, or too much
				if n >= 9 && n <= 22 && n%3 < 2 { // with or without a last one
					continue
				}
				bad := append(slices.Clone(args), 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1)[:n]
				if got := send("args", bad); !strings.HasPrefix(got.err, "RLARG argument") {
					t.Errorf("%s, algorithm %d, %d arguments: %v", e.name, a, n, got)
				}
			}
			if e.lookAt(t, a, "args").fields != nil {
				t.Fatalf("%s wrote", e.name)
			}
		}
	}
}

// TestShortWayOfFixedWindow tells the ways apart by what they write, as TestShortWay does: the long way writes four fields
// each time, and five more when the window lends.
func TestShortWayOfFixedWindow(t *testing.T) {
	e := realEngine(t)
	const long, nothing = 4 + 1, 0
	direct := func(after, n int64) lua.Call {
		c := take(of(lua.FixedWindow, "", 10, minute, sec), n)
		c.Now, c.Deadline, c.Phase = scriptStart+after, scriptStart+5*minute, scriptStart%minute
		return c
	}
	two := []lua.Call{direct(sec, 2)}
	lent := leaseOf(direct(sec, 2))
	for _, c := range []struct {
		name   string
		before []lua.Call
		call   lua.Call
		writes int64
		want   lua.Code
	}{
		{"a new window: all fields", nil, direct(0, 1), 4 + 1, lua.Granted},
		{"one that is there: time and count", two, direct(2*sec, 8), 2 + 1, lua.Granted},
		{"some of what is asked for", two, min1(direct(2*sec, 9)), 2 + 1, lua.Granted},
		{"not enough", two, direct(2*sec, 9), nothing, lua.Denied},
		{"more than the limit", nil, min1(direct(0, 11)), long, lua.Granted},
		{"a smaller limit", two, limitedTo(direct(2*sec, 1), 3, 0, minute), 2 + 1, lua.Granted},
		{"the clock a second back", two, direct(0, 1), 2 + 1, lua.Granted},
		{"the clock further back", []lua.Call{direct(sec+1, 2)}, direct(0, 1), long + 1, lua.Granted}, // and what is forgotten
		{"the next window", two, direct(minute, 1), 1 + 1 + long, lua.Granted},
		{"a look", two, direct(2*sec, 0), nothing, lua.Granted},
		{"too late", nil, direct(5*minute, 1), nothing, lua.Late},
		{"a window that lends", []lua.Call{lent}, direct(sec, 1), long, lua.Granted},
	} {
		bucket := fmt.Sprintf("{short/%s}fw2", c.name)
		for _, b := range c.before {
			b.Bucket = bucket
			if a := e.call(t, b); a.err != "" || a.reply.Grant != b.Want {
				t.Fatalf("%s: %v before", c.name, a)
			}
		}
		before := e.writes(t)
		c.call.Bucket = bucket
		a := e.call(t, c.call)
		if n := e.writes(t) - before; n != c.writes || a.err != "" || a.reply.Code != c.want {
			t.Errorf("%s: %d writes and %v, want %d and code %d", c.name, n, a, c.writes, c.want)
		}
	}
	for _, e := range []*engine{miniEngine(t), e} {
		c := direct(0, 1)
		c.Bucket = "{damage}fw2"
		e.damage(t, c, []string{"v", "c", "t", "n", "w"}, []string{
			"", "x", "nan", "-nan", "inf", "-1", "0.5", "9007199254740992", "1e400", "0", "7", "9", "10", "11", "fw1",
			fmt.Sprint(scriptStart - 2*minute), fmt.Sprint(scriptStart + sec), fmt.Sprint(scriptStart + sec + 1), fmt.Sprint(scriptStart + minute),
		})
	}
}

// TestCostOfAWindow measures what the short form of a direct take saves Redis: its processor time, the median of
// five rounds.
func TestCostOfAWindow(t *testing.T) {
	if testing.Short() {
		t.Skip("a measurement")
	}
	e := realEngine(t)
	const calls = 3_000
	measure := func(a lua.Algorithm, args func(lua.Call) []any) float64 {
		sha := a.Script().SHA
		before := e.cpu(t)
		for from := 0; from < calls; from += 1000 {
			_, err := e.client.Pipelined(t.Context(), func(p redis.Pipeliner) error {
				for i := range 1000 {
					c := take(of(a, fmt.Sprint("window", a, i), 1<<30, 60*sec, sec), 1)
					p.EvalSha(t.Context(), sha, []string{c.Bucket}, args(c)...)
				}
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
		}
		return (e.cpu(t) - before) / calls * 1e6
	}
	for a := lua.SlidingLog; a <= lua.TokenBuckets; a++ {
		var long, short, parts []float64
		for range 7 { // by pairs: a machine that is busy is so for both
			l, s := measure(a, longArgs), measure(a, shortArgs)
			long, short, parts = append(long, l), append(short, s), append(parts, s/l)
		}
		if median(parts) > 1.05 {
			t.Errorf("algorithm %d: the short form is not worth it", a)
		}
		t.Logf("algorithm %d: a direct take %.1f µs, in the short form %.1f µs: %.2f of it", a, median(long),
			median(short), median(parts))
	}
}

// cpu is the processor time of the server's main thread, in seconds.
func (e *engine) cpu(t *testing.T) (total float64) {
	text := e.client.Info(t.Context(), "cpu").Val()
	for _, m := range regexp.MustCompile(`used_cpu_(?:sys|user)_main_thread:([0-9.]+)`).FindAllStringSubmatch(text,
		-1) {
		x, err := strconv.ParseFloat(m[1], 64)
		if err != nil {
			t.Fatal(err)
		}
		total += x
	}
	return total
}
