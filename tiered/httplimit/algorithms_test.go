package httplimit_test

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dunglas/httpsfv"

	"github.com/tiered-limiter/tiered-limiter/internal/rig/groups"
	"github.com/tiered-limiter/tiered-limiter/tiered"
	"github.com/tiered-limiter/tiered-limiter/tiered/httplimit"
)

// told is what a client reads in an answer: the X fields as text, those of the draft by name of the limit.
type told struct {
	status              int
	x                   string // limit remaining reset
	retry               string
	policies, remaining map[string][2]int64 // q and w, r and t
	violated            string
}

// read reads an answer with what is not ours.
func read(t *testing.T, r *http.Response) told {
	t.Helper()
	h := r.Header
	got := told{status: r.StatusCode, retry: h.Get("Retry-After")}
	if h.Get("X-RateLimit-Limit") != "" {
		got.x = h.Get("X-RateLimit-Limit") + " " + h.Get("X-RateLimit-Remaining") + " " + h.Get("X-RateLimit-Reset")
	}
	fields := func(name, first, second string) map[string][2]int64 {
		if len(h.Values(name)) == 0 {
			return nil
		}
		list, err := httpsfv.UnmarshalList(h.Values(name))
		if err != nil {
			t.Fatalf("%s %q: %v", name, h.Values(name), err)
		}
		all := map[string][2]int64{}
		for _, member := range list {
			item := member.(httpsfv.Item)
			if _, twice := all[item.Value.(string)]; twice {
				t.Errorf("%s has %q twice", name, item.Value)
			}
			all[item.Value.(string)] = [2]int64{integer(t, item.Params, first), integer(t, item.Params, second)}
		}
		return all
	}
	got.policies, got.remaining = fields("RateLimit-Policy", "q", "w"), fields("RateLimit", "r", "t")
	if r.StatusCode == http.StatusTooManyRequests {
		body, _ := io.ReadAll(r.Body)
		var p problem
		if err := json.Unmarshal(body, &p); err != nil || len(p.Violated) != 1 {
			t.Fatalf("%v: %s", err, body)
		}
		got.violated = p.Violated[0]
	}
	return got
}

func (a told) equal(b told) bool {
	return a.status == b.status && a.x == b.x && a.retry == b.retry && a.violated == b.violated &&
		maps.Equal(a.policies, b.policies) && maps.Equal(a.remaining, b.remaining)
}

// What a client is told, by algorithm: the quota and the window of the limit that decided, and when it is whole or
// over. The first requests leave at second 10 of a minute, those of a second time at second 25.
func TestFieldsByAlgorithm(t *testing.T) {
	type limits = map[string][2]int64
	minute := tiered.Limit{Tokens: 100, Per: time.Minute}
	hour := tiered.Limit{Tokens: 90, Per: time.Hour}
	for name, c := range map[string]struct {
		policy          tiered.Policy
		first           int64 // tokens, one request
		admitted        told
		then            int64
		refused         told // of the second request, unless it is admitted
		secondAdmission bool
	}{
		"token bucket": {
			policy: tiered.Policy{Limit: minute.WithBurst(50)}, first: 40,
			admitted: told{200, "50 10 24", "", limits{"p": {50, 30}}, limits{"p": {10, 6}}, ""},
			then:     50, refused: told{429, "50 35 9", "9", limits{"p": {50, 30}}, limits{"p": {15, 9}}, "p"},
		},
		"fixed window: until its edge": {
			policy: tiered.Policy{Limit: minute, Algorithm: tiered.FixedWindow, Calendar: true}, first: 60,
			admitted: told{200, "100 40 50", "", limits{"p": {100, 60}}, limits{"p": {40, 24}}, ""},
			then:     50, refused: told{429, "100 40 35", "35", limits{"p": {100, 60}}, limits{"p": {40, 35}}, "p"},
		},
		"sliding log: until the entry is old": {
			policy: tiered.Policy{Limit: minute, Algorithm: tiered.SlidingLog}, first: 60,
			admitted: told{200, "100 40 60", "", limits{"p": {100, 60}}, limits{"p": {40, 24}}, ""},
			then:     50, refused: told{429, "100 40 45", "45", limits{"p": {100, 60}}, limits{"p": {40, 45}}, "p"},
		},
		"sliding window: a block later, and a reset that is at the latest": {
			policy: tiered.Policy{Limit: minute, Algorithm: tiered.SlidingWindow}, first: 60,
			admitted: told{200, "100 40 61", "", limits{"p": {100, 60}}, limits{"p": {40, 24}}, ""},
			then:     50, refused: told{429, "100 40 61", "46", limits{"p": {100, 60}}, limits{"p": {40, 46}}, "p"},
		},
		"a list: the limit that refused": {
			policy: tiered.Policy{Limit: minute, Also: []tiered.Limit{hour}, Algorithm: tiered.SlidingWindow},
			first:  60,
			admitted: told{
				200, "90 30 3650", "",
				limits{"p": {100, 60}, "p#2": {90, 3600}},
				limits{"p#2": {30, 1200}},
				"",
			},
			then: 45, refused: told{
				429, "90 30 3635", "3635",
				limits{"p": {100, 60}, "p#2": {90, 3600}},
				limits{"p#2": {30, 3635}},
				"p#2",
			},
		},
		"several buckets: the limit that refused": {
			policy: tiered.Policy{Limit: minute.WithBurst(50), Also: []tiered.Limit{hour}}, first: 40,
			admitted: told{200, "50 10 24", "", limits{"p": {50, 30}, "p#2": {90, 3600}}, limits{"p": {10, 6}}, ""},
			then:     50, refused: told{
				429, "50 35 9", "9",
				limits{"p": {50, 30}, "p#2": {90, 3600}},
				limits{"p": {15, 9}},
				"p",
			},
		},
		"several buckets: the other": {
			policy: tiered.Policy{Limit: minute, Also: []tiered.Limit{hour}}, first: 60,
			admitted: told{
				200, "90 30 2400", "",
				limits{"p": {100, 60}, "p#2": {90, 3600}},
				limits{"p#2": {30, 1200}},
				"",
			},
			then: 40, refused: told{
				429, "90 30 2385", "385",
				limits{"p": {100, 60}, "p#2": {90, 3600}},
				limits{"p#2": {9, 385}},
				"p#2",
			},
		},
		"a limit by key": {
			policy: tiered.Policy{
				Limit: hour, PerKey: func(string) tiered.Limit { return minute }, Algorithm: tiered.SlidingWindow,
			}, first: 60,
			admitted: told{200, "100 40 61", "", limits{"p": {100, 60}}, limits{"p": {40, 24}}, ""},
			then:     50, refused: told{429, "100 40 61", "46", limits{"p": {100, 60}}, limits{"p": {40, 46}}, "p"},
		},
		"by key, unused": {
			policy: tiered.Policy{Limit: hour, PerKey: func(string) tiered.Limit { return minute }}, first: 100,
			admitted: told{200, "100 0 60", "", limits{"p": {100, 60}}, limits{"p": {0, 1}}, ""},
			then:     1, secondAdmission: true, refused: told{
				200, "100 24 46", "",
				limits{"p": {100, 60}},
				limits{"p": {24, 15}},
				"",
			},
		},
		"unlimited": {
			policy: tiered.Policy{Limit: tiered.Unlimited()}, first: 1, admitted: told{status: 200},
			then: 1, secondAdmission: true, refused: told{status: 200},
		},
		"blocked": {
			policy: tiered.Policy{Limit: tiered.Blocked()}, first: 1, admitted: told{status: 429, violated: "p"},
			then: 1, refused: told{status: 429, violated: "p"},
		},
		"blocked by key": {
			policy: tiered.Policy{Limit: hour, PerKey: func(string) tiered.Limit { return tiered.Blocked() }}, first: 1,
			admitted: told{status: 429, violated: "p"}, then: 1, refused: told{status: 429, violated: "p"},
		},
		"more than a window ever holds": {
			policy: tiered.Policy{Limit: minute, Also: []tiered.Limit{hour}, Algorithm: tiered.SlidingWindow},
			first:  95,
			admitted: told{
				429, "90 90 0", "",
				limits{"p": {100, 60}, "p#2": {90, 3600}},
				limits{"p#2": {90, 3600}},
				"p#2",
			},
			then: 95, refused: told{
				429, "90 90 0", "",
				limits{"p": {100, 60}, "p#2": {90, 3600}},
				limits{"p#2": {90, 3600}},
				"p#2",
			},
		},
		"more than a bucket ever holds": {
			policy: tiered.Policy{Limit: minute}, first: 60,
			admitted: told{200, "100 40 36", "", limits{"p": {100, 60}}, limits{"p": {40, 24}}, ""},
			then:     101, refused: told{429, "100 65 21", "", limits{"p": {100, 60}}, limits{"p": {65, 39}}, "p"},
		},
		"tried out": {
			policy: tiered.Policy{Limit: minute, Algorithm: tiered.FixedWindow, Shadow: true}, first: 90,
			admitted: told{status: 200},
			then:     90, secondAdmission: true, refused: told{status: 200},
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g, _ := group(t)
				c.policy.Name, c.policy.Lease.Size = "p", tiered.NoLease
				l := groups.NewLimiter(t, g, c.policy)
				cost := c.first
				rule := perUser(l)
				rule.Cost = func(*http.Request) int64 { return cost }
				h := wrap(t, []httplimit.Rule{rule}, &httplimit.Options{IETFDraft11: true, Problem: true}, ok)
				time.Sleep(10 * time.Second)
				if got := read(t, get(h, "ann")); !got.equal(c.admitted) {
					t.Errorf("%+v, want\n%+v", got, c.admitted)
				}
				time.Sleep(15 * time.Second)
				cost = c.then
				got := read(t, get(h, "ann"))
				if !got.equal(c.refused) || (got.status == 200) != c.secondAdmission {
					t.Errorf("then %+v, want\n%+v", got, c.refused)
				}
				if c.secondAdmission || got.retry == "" {
					return
				}
				// Who comes back when it was said is admitted, by the very limit that refused.
				var seconds int
				if _, err := fmt.Sscan(got.retry, &seconds); err != nil {
					t.Fatal(err)
				}
				time.Sleep(time.Duration(seconds)*time.Second - 2*time.Millisecond)
				early := read(t, get(h, "ann"))
				time.Sleep(3 * time.Millisecond) // a level is a double: the last microsecond may be missing
				if then := get(h, "ann"); early.status != 429 || then.StatusCode != 200 {
					t.Errorf("2 ms before Retry-After %d, after it %d", early.status, then.StatusCode)
				}
			})
		})
	}
}
