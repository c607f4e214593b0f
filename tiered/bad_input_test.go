package tiered_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
	"github.com/tiered-limiter/tiered-limiter/tiered/httplimit"
	"github.com/tiered-limiter/tiered-limiter/tiered/policyfile"
)

// The likeliest mistakes of a newcomer. Each is told in one line, with the field, the value and the
// rule. A value that may be a secret is left out: that of a URL, and a plan's name that came with a
// request.
func TestBadInput(t *testing.T) {
	limit := tiered.PerMinute(100)
	policy := func(p tiered.Policy) func(*testing.T) error {
		return func(*testing.T) error { return p.Validate() }
	}
	text := func(s string) func(*testing.T) error {
		return func(*testing.T) error { _, err := tiered.ParseLimit(s); return err }
	}
	file := func(s string) func(*testing.T) error {
		return func(*testing.T) error { _, err := policyfile.Parse("p.yaml", []byte("version: 1\n"+s)); return err }
	}
	open := func(url string) func(*testing.T) error {
		return func(*testing.T) error { _, err := remote.Open(url, nil); return err }
	}
	// of makes a Limiter of a policy with a plan, in a bubble.
	of := func(f func(t *testing.T, l *tiered.Limiter, log *bytes.Buffer) error) func(*testing.T) error {
		return func(t *testing.T) (err error) {
			synctest.Test(t, func(t *testing.T) {
				log := new(bytes.Buffer)
				l, made := tiered.New(remote.NewMemory(), tiered.Policy{
					Name: "api", Limit: limit, Plans: map[string]tiered.Limit{"pro": tiered.PerMinute(1000), "banned": tiered.Blocked()},
				}, &tiered.Options{Logger: slog.New(slog.NewTextHandler(log, nil))})
				if made != nil {
					t.Fatal(made)
				}
				defer func() { _ = l.Close(ctx) }()
				err = f(t, l, log)
			})
			return err
		}
	}
	rule := func(change func(*httplimit.Rule)) func(*testing.T) error {
		return of(func(_ *testing.T, l *tiered.Limiter, _ *bytes.Buffer) error {
			r := httplimit.Rule{Limiter: l, Key: httplimit.RemoteIP(), Missing: httplimit.Refuse}
			change(&r)
			_, err := httplimit.New([]httplimit.Rule{r}, nil)
			return err
		})
	}
	ask := func(f func(l *tiered.Limiter) tiered.Decision) func(*testing.T) error {
		return of(func(_ *testing.T, l *tiered.Limiter, _ *bytes.Buffer) error { return f(l).Err() })
	}
	for name, c := range map[string]struct {
		mistake func(*testing.T) error
		want    string
	}{
		"a policy without a name": {
			policy(tiered.Policy{Limit: limit}), `tiered: Policy.Name is "": must be 1 to 64 of A-Z a-z 0-9 _ . -`,
		},
		"a name with a space": {
			policy(tiered.Policy{Name: "per user", Limit: limit}),
			`tiered: Policy.Name is "per user": must be 1 to 64 of A-Z a-z 0-9 _ . -`,
		},
		"no limit": {policy(tiered.Policy{Name: "api"}), "tiered: Policy.Limit is zero: must be set, as in tiered.PerSecond(100)"},
		"a limit without a period": {
			policy(tiered.Policy{Name: "api", Limit: tiered.Limit{Tokens: 5}}),
			"tiered: Policy.Limit.Per is 0s: must be 1µs to 100 years, in whole microseconds",
		},
		"a plan without a limit": {
			policy(tiered.Policy{Name: "api", Limit: limit, Plans: map[string]tiered.Limit{"free": {}}}),
			`tiered: Policy.Plans["free"] is zero: must be set, as in tiered.PerSecond(100)`,
		},
		"a window with a burst": {
			policy(tiered.Policy{Name: "api", Limit: limit.WithBurst(200), Algorithm: tiered.SlidingWindow}),
			"tiered: Policy.Limit.Burst is 200: must be 0: a sliding window admits Tokens and no more at once",
		},
		"100/minutes": {
			text("100/minutes"), `tiered: limit "100/minutes": "minutes" at position 5 must be s, min, h, day, week, month, quarter, year, or a duration ` +
				`such as 15min, 1h30m or 30d, from 1us to 100 years in whole us: write 100/min`,
		},
		"100 per minute": {
			text("100 per minute"), `tiered: limit "100 per minute": "100" at position 1 must be tokens per period, as in 100/min: write 100/min`,
		},
		"half a token": {text("0.5/s"), `tiered: limit "0.5/s": "0.5" at position 1 must be a whole number of tokens, 1 to 2^40: write 1/2s`},
		"a typo in a field": {
			file("policies: [{name: api, limitt: 100/min}]"), "p.yaml:2:24: policies[0].limitt is no field: must be limit",
		},
		"a policy that is nowhere": {
			file("policies: [{name: api, limit: 100/min}]\nhttp: [{match: /, limits: [{policy: apis, key: ip}]}]"),
			`p.yaml:3:37: http[0].limits[0].policy is "apis": must be the name of a policy in this file, such as "api"`,
		},
		"a rule without a key": {
			file("policies: [{name: api, limit: 100/min}]\nhttp: [{match: /, limits: [{policy: api}]}]"),
			"p.yaml:3:28: http[0].limits[0].key is missing: must be what is counted, such as ip",
		},
		"tabs": {file("policies:\n\t- name: api"), "policyfile: p.yaml:3:1: a tab: lines must be indented by spaces"},
		"an address for a URL": {
			open("localhost:6379"), "remote: the Redis URL: it has no scheme: must be as in redis://localhost:6379, or with " +
				"rediss, unix, sentinel, rediss+sentinel, cluster or rediss+cluster",
		},
		"a URL of another thing": {
			open("http://localhost:6379"), "remote: the Redis URL: its scheme is unknown: must be redis, or " +
				"rediss, unix, sentinel, rediss+sentinel, cluster or rediss+cluster",
		},
		"no store": {
			func(*testing.T) error { _, err := tiered.NewGroup(nil, nil); return err },
			"remote: the store is nil: must be made by remote.Open, remote.NewRedis or remote.NewMemory",
		},
		"a nil client": {
			func(*testing.T) error {
				_, err := tiered.NewGroup(remote.NewRedis((*redis.Client)(nil), nil), nil)
				return err
			},
			"remote: the Redis client is nil: must be made by redis.NewClient or its like, or by remote.Open",
		},
		"a password is missing": {
			withoutPassword,
			`tiered: the limiter cannot decide now: node "redis:6379": NOAUTH Authentication required. ` +
				"(the client must have a password, as in redis://user:password@host)",
		},
		"a number for a time": {
			func(*testing.T) error {
				_, err := tiered.NewGroup(remote.NewMemory(), &tiered.Options{Budget: 20})
				return err
			}, "tiered: Options.Budget is 20ns: must be 1ms to 1m, or 0 for 20ms",
		},
		"a policy twice": {
			of(func(_ *testing.T, l *tiered.Limiter, _ *bytes.Buffer) error {
				_, err := l.Group().NewLimiter(tiered.Policy{Name: "api", Limit: limit})
				return err
			}), `tiered: Policy.Name is "api": must differ from the names of the Group's other policies`,
		},
		"a rule without Missing": {
			rule(func(r *httplimit.Rule) { r.Missing = 0 }), "httplimit: rules[0].Missing is 0: must be Refuse, Exempt, Together or Next",
		},
		"a rule whose Limiter could not be made": {
			rule(func(r *httplimit.Rule) { r.Limiter = nil }), "httplimit: rules[0].Limiter is nil: must be set",
		},
		"proxies without their addresses": {
			rule(func(r *httplimit.Rule) { r.Key = httplimit.ForwardedFor() }),
			"httplimit: rules[0].Key is ForwardedFor(): must have the prefix of a proxy at least",
		},
		"a cost that is never admitted": {
			ask(func(l *tiered.Limiter) tiered.Decision { return l.AllowN(ctx, "ann", 200) }),
			`tiered: refused by policy "api": exceeds burst (cost 200: must be at most 100)`,
		},
		"a cost of 0": {
			ask(func(l *tiered.Limiter) tiered.Decision { return l.AllowN(ctx, "ann", 0) }),
			`tiered: refused by policy "api": invalid cost (0: must be 1 to 2^40)`,
		},
		"an empty key": {
			ask(func(l *tiered.Limiter) tiered.Decision { return l.Allow(ctx, "") }),
			`tiered: refused by policy "api": invalid key (0 bytes: must be 1 to 65536)`,
		},
		"a key function that returns nothing": {
			of(func(_ *testing.T, l *tiered.Limiter, _ *bytes.Buffer) (err error) {
				limit, made := httplimit.New([]httplimit.Rule{{
					Limiter: l, Missing: httplimit.Refuse, Key: httplimit.KeyFunc(func(*http.Request) (string, error) { return "", nil }),
				}}, &httplimit.Options{Refused: func(_ context.Context, d tiered.Decision) { err = d.Err() }})
				if made != nil {
					return made
				}
				limit(nil).ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/", nil))
				return err
			}), `tiered: refused by policy "api": invalid key (0 bytes: must be 1 to 65536)`,
		},
		"a plan whose limit is Blocked": {
			ask(func(l *tiered.Limiter) tiered.Decision {
				return l.For("ann").WithPlan("banned").Allow(ctx)
			}),
			`tiered: refused by policy "api": exceeds burst (the key is blocked)`,
		},
		"a plan that is nowhere": {
			of(func(_ *testing.T, l *tiered.Limiter, log *bytes.Buffer) error {
				l.For("ann").WithPlan("gold").Allow(ctx)
				synctest.Wait() // the line is written
				return lineOf(log)
			}), `level=ERROR msg="a request has a plan that the policy does not have: the policy's own limit decides" ` +
				`policy=api plans="banned, pro"`,
		},
		"two Groups in one process, with other limits": {
			twoGroups, `level=INFO msg="processes of this service have other limits for this policy" ` +
				"node=memory policy=api service=shop limits=100/min processes=1",
		},
		"a cost of another policy": {
			of(func(_ *testing.T, l *tiered.Limiter, _ *bytes.Buffer) (err error) {
				limit, made := httplimit.New([]httplimit.Rule{{Limiter: l, Missing: httplimit.Refuse, Key: httplimit.Method()}},
					&httplimit.Options{Settle: true})
				if made != nil {
					return made
				}
				limit(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
					err = httplimit.Settle(r.Context(), map[string]int64{"tokens": 7})
				})).ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/", nil))
				return err
			}), `httplimit: actual has policy "tokens": must be one of ["api"]`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			got := ""
			if err := c.mistake(t); err != nil {
				got = err.Error()
			}
			if got != c.want {
				t.Errorf("said\n%s\nwant\n%s", got, c.want)
			}
		})
	}
}

// twoGroups is what the log says of two Groups whose policies of one name differ.
func twoGroups(t *testing.T) (err error) {
	synctest.Test(t, func(t *testing.T) {
		log, store := new(bytes.Buffer), remote.NewMemory()
		for i, to := range []io.Writer{log, io.Discard} {
			l, made := tiered.New(store, tiered.Policy{Name: "api", Limit: tiered.PerMinute(int64(100 - 50*i))},
				&tiered.Options{Service: "shop", Logger: slog.New(slog.NewTextHandler(to, nil))})
			if made != nil {
				t.Fatal(made)
			}
			defer func() { _ = l.Close(ctx) }()
		}
		time.Sleep(10 * time.Second)
		synctest.Wait()
		err = lineOf(log)
	})
	return err
}

// lineOf returns the only line of a log beside that of a healthy start, without its time.
func lineOf(log *bytes.Buffer) error {
	var all []string
	for line := range bytes.Lines(log.Bytes()) {
		if !greets(line) {
			_, line, _ := strings.Cut(strings.TrimSpace(string(line)), " ")
			all = append(all, line)
		}
	}
	return errors.New(strings.Join(all, "\n"))
}

// withoutPassword is what Ping says of a Redis that wants a password of a client that has none.
func withoutPassword(t *testing.T) error {
	client := redis.NewClient(&redis.Options{
		Addr: "redis:6379", DialerRetries: 1, ContextTimeoutEnabled: true,
		Dialer: func(context.Context, string, string) (net.Conn, error) {
			here, there := net.Pipe()
			go refuseAll(there)
			return here, nil
		},
	})
	defer func() { _ = client.Close() }()
	o := &tiered.Options{Logger: slog.New(slog.DiscardHandler), Budget: time.Second}
	g := must(tiered.NewGroup(remote.NewRedis(client, nil), o))
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	defer func() { _ = g.Close(ctx) }() // Redis records nobody, so there is nobody to take out
	return g.Ping(t.Context())
}

// refuseAll answers each command as a Redis with a password does.
func refuseAll(c net.Conn) {
	defer func() { _ = c.Close() }()
	for r := bufio.NewReader(c); ; {
		line, err := r.ReadString('\n')
		if err != nil {
			return
		}
		words := 0
		_, _ = fmt.Sscanf(line, "*%d", &words)
		for range 2 * words { // the length of each word, and the word
			if _, err := r.ReadString('\n'); err != nil {
				return
			}
		}
		if _, err := io.WriteString(c, "-NOAUTH Authentication required.\r\n"); err != nil {
			return
		}
	}
}
