package policyfile_test

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/tiered-limiter/tiered-limiter/internal/rig/groups"
	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
	"github.com/tiered-limiter/tiered-limiter/tiered/httplimit"
	"github.com/tiered-limiter/tiered-limiter/tiered/policyfile"
)

// oneMistake are fields with values that are wrong whatever the others are, by the text that is replaced.
var oneMistake = []struct{ good, bad string }{
	{"version: 1", "version: 2"},
	{"name: a", "name: a b"},
	{"name: a", "name: [a]"},
	{"limit: 40/min", "limit: 40/x"},
	{"limit: 40/min", "limit: [1]"},
	{"also: [1000/h]", "also: 7"},
	{"also: [1000/h]", "also: [unlimited]"},
	{"algorithm: token bucket", "algorithm: gcra"},
	{"fail_mode: local", "fail_mode: maybe"},
	{"standing: off", "standing: maybe"},
	{"shadow: false", "shadow: 1"},
	{"max_debt: 4000", "max_debt: -1"},
	{"max_debt: 4000", "max_debt: many"},
	{"size: 2", "size: many"},
	{"size: 2", "size: -7"},
	{"period: 1s", "period: soon"},
	{"period: 1s", "period: 9h"},
	{"vip: 400/min", "vip: 4/x"},
	{"pro: 70/min", "pro: 7/x"},
	{"pro: 70/min", "'': 70/min"},
	{"pro: 70/min", "[pro]: 70/min"},
	{"match: /a/{x}", "match: a/"},
	{"match: /a/{x}", "match: /b"}, // as the other rule, and without its wildcard
	{"preflights: limit", "preflights: maybe"},
	{"policy: b", "policy: z"},
	{"key: path x", "key: path y"},
	{"key: path x", "key: header"},
	{"key: path x", "key: [ip, 'header a:b']"},
	{"key: path x", "key: cookie a=b"},
	{"missing: refuse", "missing: maybe"},
	{"cost: 3", "cost: -3"},
	{"cost: 3", "cost: 6"}, // more than policy b ever has
	{"cost: 3", "cots: 3"},
	{"match: /s.T/", "match: s.T"},
	{"key: metadata m", "key: metadata grpc-m"},
	{"limits: [] # grpc", "limts: [] # grpc"},
}

// In this file each field has a line of its own, so that a mistake moves no other.
const wholeOfMistakes = `version: 1
policies:
  - name: b
    limit: 5/s
  - name: a
    limit: 40/min
    FURTHER
    algorithm: token bucket
    fail_mode: local
    standing: off
    shadow: false
    max_debt: 4000
    lease:
      size: 2
      period: 1s
http:
  - match: /b
    limits: []
  - match: /a/{x}
    preflights: limit
    limits:
      - policy: b
        key: path x
        missing: refuse
        cost: 3
grpc:
  - match: /s.T/
    limits:
      - policy: b
        key: metadata m
  - match: /
    limits: [] # grpc
`

// here is a value of another field, which an error shows.
var here = regexp.MustCompile(`here \d+`)

func mistakesOf(t *testing.T, text string) (all []string) {
	t.Helper()
	_, err := policyfile.Parse("p.yaml", []byte(text))
	if err == nil {
		return nil
	}
	return strings.Split(here.ReplaceAllString(err.Error(), "here N"), "\n")
}

// No mistake hides another, and two together make up no third one: each pair of mistakes says what each of them says
// alone, in the order of the file, with line and column.
func TestNoMistakeHidesAnother(t *testing.T) {
	place := regexp.MustCompile(`^p\.yaml:\d+:\d+: \S`)
	hidden, pairs := 0, 0
	for _, further := range []string{"also: [1000/h]", "keys: {vip: 400/min}", "plans: {pro: 70/min}"} { // a policy has one of them
		file := strings.Replace(wholeOfMistakes, "FURTHER", further, 1)
		if all := mistakesOf(t, file); all != nil {
			t.Fatalf("the file has mistakes: %q", all)
		}
		for i, a := range oneMistake {
			withA := strings.Replace(file, a.good, a.bad, 1)
			if withA == file {
				continue // not in this file
			}
			one := mistakesOf(t, withA)
			if len(one) == 0 {
				t.Errorf("%s is accepted", a.bad)
			}
			for _, m := range one {
				if !place.MatchString(m) {
					t.Errorf("%s: no place: %s", a.bad, m)
				}
			}
			for _, b := range oneMistake[i+1:] {
				withB := strings.Replace(file, b.good, b.bad, 1)
				if a.good == b.good || withB == file {
					continue
				}
				pairs++
				want := append(mistakesOf(t, withB), one...)
				got := mistakesOf(t, strings.Replace(withA, b.good, b.bad, 1))
				for _, w := range want {
					if !slices.Contains(got, w) && !follows(w, a.bad, b.bad) {
						hidden++
						t.Errorf("%s, %s: not told: %s", a.bad, b.bad, w)
					}
				}
				for _, g := range got {
					if !slices.Contains(want, g) && !follows(g, a.bad, b.bad) {
						t.Errorf("%s, %s: made up: %s", a.bad, b.bad, g)
					}
				}
			}
		}
	}
	t.Logf("%d pairs, %d mistakes hidden", pairs, hidden)
}

// follows reports whether a mistake is none if the other field has another value.
func follows(mistake, a, b string) bool {
	is := func(bad string) bool { return a == bad || b == bad }
	switch {
	case strings.Contains(mistake, "must be a wildcard of match"): // the wildcards depend on the match
		return is("match: a/") || is("match: /b")
	case strings.Contains(mistake, "the cost is"): // what can be paid depends on the policy
		return is("policy: z")
	}
	return false
}

// A cost that no key of the policy ever has is a mistake, of an HTTP route and of a gRPC method, and of a File made by hand.
// A key with a limit of its own may have it.
func TestCostThatNobodyHas(t *testing.T) {
	for _, c := range []struct{ policy, cost, want string }{
		{"limit: 10/h", "11", "must be at most 10, because Policy.Limit.Tokens is 10"},
		{"limit: 10/h burst 5", "6", "must be at most 5, because Policy.Limit.Burst is 5"},
		{"limit: 10/h, also: [9/day]", "10", "must be at most 9, because Policy.Also[0].Tokens is 9"},
		{"limit: 10/h, algorithm: fixed window", "11", "must be at most 10, because Policy.Limit.Tokens is 10"},
		{"limit: 10/h, keys: {vip: 20/h}, prefixes: {v: 15/h}", "21", "must be at most 20, because Policy.Limit.Tokens is 20"},
		{"limit: 10/h, keys: {vip: 20/h}", "20", ""},
		{"limit: 10/h, plans: {pro: 20/h}", "21", `must be at most 20, the burst of Policy.Plans["pro"]`},
		{"limit: 10/h, plans: {pro: 20/h}", "20", ""},
		{"limit: 10/h, plans: {staff: unlimited}", "2000", ""},
		{"limit: blocked, keys: {vip: 20/h}", "21", ""}, // it refuses on purpose
		{"limit: 10/h", "10", ""},
		{"limit: 10/h", "0", ""},
		{"limit: 10/h", "-1", "must be at least 0"},
		{"limit: unlimited", "1000", ""},
		{"limit: unlimited", "2000000000000", "must be 1 to 2^40"},
	} {
		for rules, key := range map[string]string{"http": "ip", "grpc": "method"} {
			text := "version: 1\npolicies: [{name: a, " + c.policy + "}]\n" + rules +
				":\n  - match: /\n    limits: [{policy: a, key: " + key + ", cost: " + c.cost + "}]\n"
			_, err := policyfile.Parse("p.yaml", []byte(text))
			at := "p.yaml:5:" // line
			if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want) ||
				!strings.HasPrefix(err.Error(), at) || !strings.Contains(err.Error(), rules+"[0].limits[0].cost")) {
				t.Errorf("%s: %s, cost %s: %v, want %q", rules, c.policy, c.cost, err, c.want)
			}
		}
	}
	g := groups.New(t, remote.NewMemory(), nil)
	f := &policyfile.File{
		Policies: []tiered.Policy{{Name: "a", Limit: tiered.PerHour(10)}},
		HTTP: []policyfile.Route{{Match: "/", Limits: []policyfile.Limit{{
			Policy: "a", Key: []policyfile.Key{{Kind: "ip"}}, Missing: httplimit.Refuse,
		}}}},
	}
	if err := g.SetPolicies(f.Policies); err != nil {
		t.Fatal(err)
	}
	for cost, refused := range map[int64]bool{-1: true, 0: false, 10: false, 11: true} {
		f.HTTP[0].Limits[0].Cost = cost
		if _, err := f.Middleware(g, nil); (err != nil) != refused {
			t.Errorf("cost %d: %v", cost, err)
		}
	}
}

// A credential counts by its hash. So a limit of a key that is none would meet nobody, and a blocked client would pass.
func TestKeysThatNoCredentialHas(t *testing.T) {
	const text = `version: 1
policies:
  - {name: per-user, limit: 100/min, keys: {KEY: blocked}}
http:
  - match: /
    limits: [{policy: per-user, key: BY}]
`
	const hash = "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"
	for _, c := range []struct {
		key, by string
		wrong   bool
	}{
		{"mallory", "credential Authorization", true},
		{"mallory", "cookie session", true},
		{hash + "A", "credential Authorization", true},
		{hash, "credential Authorization", false},
		{"mallory", "header X-User", false},
	} {
		in := strings.NewReplacer("KEY", c.key, "BY", c.by).Replace(text)
		_, err := policyfile.Parse("p.yaml", []byte(in))
		want := fmt.Sprintf(`p.yaml:6:38: http[0].limits[0].key is %q: must be another key, or policy "per-user" must have no keys and `+
			"prefixes but hashes, because that key is a hash", c.by)
		if c.wrong != (err != nil) || err != nil && err.Error() != want {
			t.Errorf("%s by %s: %v, want %s", c.key, c.by, err, want)
		}
	}
}
