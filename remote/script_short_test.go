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

// Most direct takes are sent in a short form, and the scripts have a short way for them. That they
// come to the same as the long ones is seen by all tests that compare engines; that the short way
// is taken when it should be, by testdata/script/short.txt.

// TestShortForm makes direct takes in both forms, on keys of their own: the same answers and the
// same state, step by step; the same errors, by the number of the argument in the long form; and
// the same over each damage to a key.
func TestShortForm(t *testing.T) {
	places := map[int]int{0: 1, 1: 2, 2: 3, 3: 11, 4: 12, 5: 13, 6: 22, 7: 23, 8: 24, 9: 25}
	bad := []string{"", "x", "nan", "-nan", "inf", "-1", "0.5", "9007199254740992", "1e400"}
	for _, e := range []*engine{miniEngine(t), realEngine(t)} {
		for a := range lua.Algorithm(lua.Algorithms) {
			send := func(key string, args []any) answer {
				return answerOfCmd(t, a, e.client.EvalSha(t.Context(), a.Script().SHA, []string{key}, args...))
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
				begun := time.Now() // a refusal leaves the times to live of a step before
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
				for _, text := range bad {
					spoiled := slices.Clone(args)
					spoiled[short] = text
					if got, want := send("args", spoiled), fmt.Sprintf("RLARG argument %d", n); got.err != want {
						t.Errorf("%s, algorithm %d, %q for argument %d: %v, want %s", e.name, a, text, short, got, want)
					}
				}
			}
			for n := range 24 { // a form with something missing, or too much
				if n >= 9 && n <= 22 && n%3 < 2 { // with or without a last one
					continue
				}
				some := append(slices.Clone(args), 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1)[:n]
				if got := send("args", some); !strings.HasPrefix(got.err, "RLARG argument") {
					t.Errorf("%s, algorithm %d, %d arguments: %v", e.name, a, n, got)
				}
			}
			if e.lookAt(t, a, "args").fields != nil {
				t.Fatalf("%s wrote", e.name)
			}
		}
		c := take(of(lua.TokenBucket, "{"+secret+"}tb2", 10, 10*sec, 0), 1)
		c.Now, c.Deadline = scriptStart, scriptStart+5*minute
		c.Tokens, c.Period = 1, sec
		e.damage(t, c, []string{"v", "l", "s", "t", "c", "z", "r"}, append(bad, "-1e300", "1e300", "0", "7",
			"10/1", "10/1/0", "10/1/1000000/", "10/2/1000000", "1e1/1/1000000", "10/1/1000000/99", "10/1/1000000/9", "10/1/1000000/0",
			"10/1/1000000/-9", "10/2/1000000/99", "10/1/1000000/"+strings.Repeat("9", 400)))
		c = take(of(lua.FixedWindow, "{damage}fw2", 10, minute, 0), 1)
		c.Now, c.Deadline, c.Phase = scriptStart, scriptStart+5*minute, scriptStart%minute
		e.damage(t, c, []string{"v", "c", "t", "n", "w"}, append(bad, "0", "7", "9", "10", "11", "fw1",
			fmt.Sprint(scriptStart-2*minute), fmt.Sprint(scriptStart+sec), fmt.Sprint(scriptStart+sec+1), fmt.Sprint(scriptStart+minute)))
	}
}

// damage takes once, then puts each text into each field, and takes the fields away. The same call
// in both forms has the same answer then, and leaves the same.
func (e *engine) damage(t *testing.T, c lua.Call, fields, texts []string) {
	t.Helper()
	sha := c.Algorithm.Script().SHA
	for _, field := range fields {
		for _, text := range append([]string{"gone"}, texts...) {
			e.del(t, c.Bucket)
			e.call(t, c)
			if text == "gone" {
				e.client.HDel(t.Context(), c.Bucket, field) // it may not be there
			} else if err := e.client.HSet(t.Context(), c.Bucket, field, text).Err(); err != nil {
				t.Fatal(err)
			}
			dump, err := e.client.HGetAll(t.Context(), c.Bucket).Result()
			if err != nil {
				t.Fatal(err)
			}
			var results [2]string
			for i, args := range [][]any{shortArgs(c), longArgs(c)} {
				got := answerOfCmd(t, c.Algorithm, e.client.EvalSha(t.Context(), sha, []string{c.Bucket}, args...))
				results[i] = fmt.Sprintf("%v, %v", got, e.look(t, c.Bucket).fields)
				e.del(t, c.Bucket)
				if err := e.client.HSet(t.Context(), c.Bucket, dump).Err(); err != nil {
					t.Fatal(err)
				}
			}
			if results[0] != results[1] {
				t.Errorf("%s, field %s %q: short\n\t%s, long\n\t%s", e.name, field, text, results[0], results[1])
			}
		}
	}
}

// TestCostOfAWindow measures what the short form of a direct take saves Redis: its processor time,
// the median of five rounds.
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
	for _, a := range without(lua.OneLevel) {
		var long, short, parts []float64
		for range 7 { // by pairs: a machine that is busy is so for both
			l, s := measure(a, longArgs), measure(a, shortArgs)
			long, short, parts = append(long, l), append(short, s), append(parts, s/l)
		}
		// As much or less. A busy machine has measured 1.05, and a form that reads twice costs half
		// as much again.
		if median(parts) > 1.25 {
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
