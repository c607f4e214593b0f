package httplimit_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dunglas/httpsfv"

	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/fatal"
	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/testgroup"
	"github.com/tiered-limiter/tiered-limiter/tiered"
	"github.com/tiered-limiter/tiered-limiter/tiered/httplimit"
)

// read reads an answer with what is not ours: the status, and who refused; the X fields;
// Retry-After; and what the draft has of each limit: its policy, and what is left.
func read(t *testing.T, r *http.Response) string {
	t.Helper()
	h, got := r.Header, []string{strconv.Itoa(r.StatusCode)}
	say := func(name, text string) {
		if text != "" {
			got = append(got, name+" "+text)
		}
	}
	if r.StatusCode == http.StatusTooManyRequests {
		var p problem
		fatal.If(t, json.NewDecoder(r.Body).Decode(&p))
		say("by", strings.Join(p.Violated, " "))
	}
	say("x", strings.TrimSpace(h.Get("X-RateLimit-Limit")+" "+h.Get("X-RateLimit-Remaining")+" "+h.Get("X-RateLimit-Reset")))
	say("retry", h.Get("Retry-After"))
	for _, field := range [][3]string{{"RateLimit-Policy", "q", "w"}, {"RateLimit", "r", "t"}} {
		list, err := httpsfv.UnmarshalList(h.Values(field[0]))
		if err != nil && len(h.Values(field[0])) > 0 {
			t.Fatalf("%s %q: %v", field[0], h.Values(field[0]), err)
		}
		for _, member := range list {
			item := member.(httpsfv.Item)
			say(item.Value.(string), fmt.Sprintf("%s=%d %s=%d", field[1], integer(t, item.Params, field[1]),
				field[2], integer(t, item.Params, field[2])))
		}
	}
	return strings.Join(got, ", ")
}

// What a client is told, by algorithm: the quota and the window of the limit that decided, and when
// it is whole or over. The first requests leave at second 10 of a minute, those of a second time at
// second 25.
func TestFieldsByAlgorithm(t *testing.T) {
	minute := tiered.Limit{Tokens: 100, Per: time.Minute}
	hour := tiered.Limit{Tokens: 90, Per: time.Hour}
	ofMinute := func(string) tiered.Limit { return minute }
	for name, c := range map[string]struct {
		policy   tiered.Policy
		first    int64 // tokens, one request
		admitted string
		then     int64
		refused  string // what the second request is told
	}{
		"token bucket": {
			tiered.Policy{Limit: minute.WithBurst(50)},
			40, "200, x 50 10 24, p q=50 w=30, p r=10 t=6",
			50, "429, by p, x 50 35 9, retry 9, p q=50 w=30, p r=15 t=9",
		},
		"fixed window: until its edge": {
			tiered.Policy{Limit: minute, Algorithm: tiered.FixedWindow, Calendar: true},
			60, "200, x 100 40 50, p q=100 w=60, p r=40 t=24",
			50, "429, by p, x 100 40 35, retry 35, p q=100 w=60, p r=40 t=35",
		},
		"sliding log: until the entry is old": {
			tiered.Policy{Limit: minute, Algorithm: tiered.SlidingLog},
			60, "200, x 100 40 60, p q=100 w=60, p r=40 t=24",
			50, "429, by p, x 100 40 45, retry 45, p q=100 w=60, p r=40 t=45",
		},
		"sliding window: a block later, and a reset that is at the latest": {
			tiered.Policy{Limit: minute, Algorithm: tiered.SlidingWindow},
			60, "200, x 100 40 61, p q=100 w=60, p r=40 t=24",
			50, "429, by p, x 100 40 61, retry 46, p q=100 w=60, p r=40 t=46",
		},
		"a list: the limit that refused": {
			tiered.Policy{Limit: minute.And(hour), Algorithm: tiered.SlidingWindow},
			60, "200, x 90 30 3650, p q=100 w=60, p#2 q=90 w=3600, p#2 r=30 t=1200",
			45, "429, by p#2, x 90 30 3635, retry 3635, p q=100 w=60, p#2 q=90 w=3600, p#2 r=30 t=3635",
		},
		"several buckets: the limit that refused": {
			tiered.Policy{Limit: minute.WithBurst(50).And(hour)},
			40, "200, x 50 10 24, p q=50 w=30, p#2 q=90 w=3600, p r=10 t=6",
			50, "429, by p, x 50 35 9, retry 9, p q=50 w=30, p#2 q=90 w=3600, p r=15 t=9",
		},
		"several buckets: the other": {
			tiered.Policy{Limit: minute.And(hour)},
			60, "200, x 90 30 2400, p q=100 w=60, p#2 q=90 w=3600, p#2 r=30 t=1200",
			40, "429, by p#2, x 90 30 2385, retry 385, p q=100 w=60, p#2 q=90 w=3600, p#2 r=9 t=385",
		},
		"a limit by key": {
			tiered.Policy{Limit: hour, PerKey: ofMinute, Algorithm: tiered.SlidingWindow},
			60, "200, x 100 40 61, p q=100 w=60, p r=40 t=24",
			50, "429, by p, x 100 40 61, retry 46, p q=100 w=60, p r=40 t=46",
		},
		"by key, unused": {
			tiered.Policy{Limit: hour, PerKey: ofMinute},
			100, "200, x 100 0 60, p q=100 w=60, p r=0 t=1",
			1, "200, x 100 24 46, p q=100 w=60, p r=24 t=15",
		},
		"unlimited": {tiered.Policy{Limit: tiered.Unlimited()}, 1, "200", 1, "200"},
		"blocked":   {tiered.Policy{Limit: tiered.Blocked()}, 1, "429, by p", 1, "429, by p"},
		"blocked by key": {
			tiered.Policy{Limit: hour, PerKey: func(string) tiered.Limit { return tiered.Blocked() }}, 1, "429, by p", 1, "429, by p",
		},
		"more than a window ever holds": {
			tiered.Policy{Limit: minute.And(hour), Algorithm: tiered.SlidingWindow},
			95, "429, by p#2, x 90 90 0, p q=100 w=60, p#2 q=90 w=3600, p#2 r=90 t=3600",
			95, "429, by p#2, x 90 90 0, p q=100 w=60, p#2 q=90 w=3600, p#2 r=90 t=3600",
		},
		"more than a bucket ever holds": {
			tiered.Policy{Limit: minute},
			60, "200, x 100 40 36, p q=100 w=60, p r=40 t=24",
			101, "429, by p, x 100 65 21, p q=100 w=60, p r=65 t=39",
		},
		"tried out": {tiered.Policy{Limit: minute, Algorithm: tiered.FixedWindow, Shadow: true}, 90, "200", 90, "200"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g, _ := group(t)
				c.policy.Name, c.policy.Lease.Size = "p", tiered.NoLease
				l := testgroup.NewLimiter(t, g, c.policy)
				cost := c.first
				rule := perUser(l)
				rule.Cost = func(*http.Request) int64 { return cost }
				h := wrap(t, []httplimit.Rule{rule}, &httplimit.Options{IETFDraft11: true, Problem: true}, ok)
				time.Sleep(10 * time.Second)
				if got := read(t, get(h, "ann")); got != c.admitted {
					t.Errorf("%s, want\n%s", got, c.admitted)
				}
				time.Sleep(15 * time.Second)
				cost = c.then
				then := get(h, "ann")
				if got := read(t, then); got != c.refused {
					t.Errorf("then %s, want\n%s", got, c.refused)
				}
				seconds, err := strconv.Atoi(then.Header.Get("Retry-After"))
				if err != nil {
					return
				}
				// Who comes back when it was said is admitted, by the very limit that refused.
				time.Sleep(time.Duration(seconds)*time.Second - 2*time.Millisecond)
				early := get(h, "ann")
				time.Sleep(3 * time.Millisecond) // a level is a double: the last microsecond may be missing
				if then := get(h, "ann"); early.StatusCode != 429 || then.StatusCode != 200 {
					t.Errorf("2 ms before Retry-After %d, after it %d", early.StatusCode, then.StatusCode)
				}
			})
		})
	}
}
