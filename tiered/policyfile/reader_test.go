package policyfile_test

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/fatal"
	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/testgroup"
	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
	"github.com/tiered-limiter/tiered-limiter/tiered/httplimit"
	"github.com/tiered-limiter/tiered-limiter/tiered/policyfile"
)

// right is a file without a mistake. Each field has a line of its own.
const right = `version: 1
policies:
  - name: b
    limit: 5/s
  - name: a
    limit:
      40/min and 1000/h
    algorithm: token bucket
    fail_mode: local
    standing: off
    shadow: false
    max_debt: 4000
    lease:
      size: 2
      period: 1s
  - name: vips
    limit: 40/h
    algorithm: fixed window
    keys: {vip: 400/h}
  - name: customers
    limit: 100/min
    plans: {pro: 1000/min}
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
      - policy: customers
        key: ip
        plan: header X-Plan
    ranges:
      ? 10.0.0.0/8
      : unlimited
grpc:
  - match: /s.T/
    limits:
      - policy: b
        key: metadata m
  - match: /
    limits: [] # grpc
`

// mistakes are texts that take the place of a right one, and how each line begins of what is said
// of them.
var mistakes = []struct{ good, bad, want string }{
	{"version: 1", "version: 2", `1:10: version is "2": must be 1`},
	{"name: a", "name: a b", `5:11: policies[1]: Policy.Name is "a b": must be 1 to 64 of A-Z a-z 0-9 _ . -`},
	{"name: a", "name: [a]", "5:11: policies[1].name is a list: must be a text"},
	{"name: a", "name: \"a\\0\"", `5:11: policies[1]: Policy.Name is "a\x00": must be 1 to 64 of A-Z a-z 0-9 _ . -`},
	{"name: a", "name: b", `5:5: policies[1]: name is "b": the policy in line 3 has that name`},
	{"name: a\n    limit", "limit", `5:5: policies[1]: Policy.Name is "": must be 1 to 64 of A-Z a-z 0-9 _ . -`},
	{"40/min and 1000/h", "40/x", `7:7: policies[1].limit: limit "40/x": "x" at position 4 must be s, min, h, day,`},
	{"40/min and 1000/h", "0/min", `7:7: policies[1].limit: limit "0/min": "0" at position 1 must be a whole number`},
	{"40/min and 1000/h", "[1]", "7:7: policies[1].limit is a list: must be a text"},
	{"40/min and 1000/h", "40/min and 7", `7:7: policies[1].limit: limit "40/min and 7": "7" at position 12 must be tokens per period`},
	{"40/min and 1000/h", "40/min and", `7:7: policies[1].limit: limit "40/min and": "" at position 11 must be tokens per period`},
	{"40/min and 1000/h", "40/min and unlimited", `7:7: policies[1].limit: limit "40/min and unlimited": "unlimited" at position 12 must be tokens per period`},
	{"pro: 1000/min", "pro: 9/min and 9/h", `22:18: policies[3]: Policy.Plans["pro"] is 2 limits: must be 1 limit, as Limit is, because the buckets in Redis count`},
	{"40/min and 1000/h", "40/min and 1000/min", "7:7: policies[1]: Policy.Limit.Also[0].Per is 1m0s: must differ from that of Limit"},
	{"algorithm: token bucket", "algorithm: gcra", `8:16: policies[1].algorithm: is "gcra": must be one of`},
	{"fail_mode: local", "fail_mode: maybe", `9:16: policies[1].fail_mode: is "maybe": must be one of closed, local,`},
	{"standing: off", "standing: maybe", `10:15: policies[1].standing: is "maybe": must be one of 1/2, 1/4, 1/8, 3/4, 3/8, 5/8, off`},
	{"shadow: false", "shadow: 1", `11:13: policies[1].shadow: is "1": must be true or false`},
	{"    shadow: false\n", "    calendar: true\n", "11:15: policies[1]: Policy.Calendar is true: only a FixedWindow has it"},
	{"shadow: false", "shade: false", "11:5: policies[1].shade is no field: must be shadow"},
	{"max_debt: 4000", "max_debt: -1", "12:15: policies[1]: Policy.MaxDebt is -1: must be 0 for one burst, or at least"},
	{"size: 2", "size: many", `14:13: policies[1].lease.size: is "many": must be a whole number up to`},
	{"size: 2", "size: -7", "14:13: policies[1]: Policy.Lease.Size is -7: must be 0 (follow demand), NoLease, or 1 to a"},
	{"size: 2", "size: 2\n      size: 3", "15:7: policies[1].lease.size is there twice: the first is in line 14"},
	{"period: 1s", "period: soon", `15:15: policies[1].lease.period: is "soon": must be a time such as 250ms or 1m30s`},
	{"period: 1s", "period: 9h", "15:15: policies[1]: Policy.Lease.Period is 9h0m0s: must be 5ms to 1m, or 0 for 250ms"},
	{"vip: 400/h", "vip: 4/x", `19:17: policies[2].keys: limit "4/x": "x" at position 3 must be s, min, h, day, week,`},
	{"vip: 400/h", "vip: 400/min", "19:17: policies[2]: the limit of this key: Policy.Limit.Per is 1m0s: must be that of Limit, 1h0m0s"},
	{"vip: 400/h", "'': 400/h", "19:12: policies[2].keys: a key has 0 bytes: must have 1 to 65536"},
	{"pro: 1000/min", "pro: 7/minutes", `22:18: policies[3].plans.pro: limit "7/minutes": "minutes" at position 3 must`},
	{"pro: 1000/min", "pro: [9/min, 9/month]", "22:18: policies[3].plans.pro is a list: must be a text, such as 100/min or, of several limits, 100/min and 1000/h"},
	{"pro: 1000/min", "'': 70/min", `22:12: policies[3]: Policy.Plans is 1 plans: must have no plan "", because that is`},
	{"pro: 1000/min", "[pro]: 70/min", "22:13: policies[3].plans: a name is a list: must be a text"},
	{"pro: 1000/min", "' pro': 1000/min", `22:21: policies[3]: Policy.Plans[" pro"] is 1000/min: its name must be 1 to`},
	{"pro: 1000/min", "pro: 1000/min, algorithm: fixed", `22:39: policies[3].plans.algorithm: limit "fixed": "fixed" at`},
	{"limit: 100/min", "limit: unlimited", "21:12: policies[3]: Policy.Limit is Unlimited: must be a limit or Blocked"},
	{"    limit: 100/min\n", "", "20:5: policies[3]: Policy.Limit is zero: must be set, as in tiered.PerSecond(100)"},
	{"    plans: {pro: 1000/min}\n", "", `34:15: http[1].limits[1].plan is "header X-Plan": policy "customers" must`},
	{
		"limit: 100/min\n    plans: {pro: 1000/min", "limit: 100/min\n    algorithm: fixed window\n    plans: {pro: 1000/h",
		`23:18: policies[3]: Policy.Plans["pro"].Per is 1h0m0s: must be that of Limit,`,
	},
	{"http:\n", "  - 5\nhttp:\n", `23:5: policies[4] is "5": must be a mapping`},
	{"match: /a/{x}", "match: a/", `26:12: http[1].match: is "a/": "a" would be a host: must begin with / as in "/a/",`},
	{
		"match: /a/{x}", "match: /b",
		"26:12: http[1].match is \"/b\": pattern \"/b\" conflicts with pattern \"/b\"\n" +
			"30:14: http[1].limits[0].key: is \"path x\": \"x\" must be a wildcard of match,",
	},
	{"match: /b\n    limits: []", "limits: []", "24:5: http[0].match is missing: must say which requests or calls are"},
	{"preflights: limit", "preflights: maybe", `27:17: http[1].preflights: is "maybe": must be one of exempt, limit`},
	{"preflights: limit", "preflight: limit", "27:5: http[1].preflight is no field: must be preflights"},
	{"policy: b", "policy: z", `29:17: http[1].limits[0].policy is "z": must be the name of a policy in this file`},
	{
		"policy: customers", "policy: b",
		"33:9: http[1].limits[1]: policy is \"b\", as in line 29: must be another policy\n" +
			"35:15: http[1].limits[1].plan is \"header X-Plan\": policy \"b\" must have plans",
	},
	{"key: path x", "key: path y", `30:14: http[1].limits[0].key: is "path y": "y" must be a wildcard of match, which`},
	{"key: path x", "key: header", `30:14: http[1].limits[0].key: is "header": must be cookie NAME, credential NAME,`},
	{
		"key: path x", "key: forwarded-for 10.0.0.1",
		"30:14: http[1].limits[0].key: the proxy \"10.0.0.1\": must be a prefix such as\n" +
			"37:7: http[1].address is missing: must say how the address of a client is",
	},
	{
		"key: path x", "key: hops 99",
		"30:14: http[1].limits[0].key: hops \"99\": must be a number from 1 to 32\n" +
			"37:7: http[1].address is missing: must say how the address of a client is",
	},
	{"key: path x", "key: [ip, 'header a:b']", `30:19: http[1].limits[0].key[1]: is Header("a:b"): must be the name of`},
	{"key: path x", "key: cookie a=b", `30:14: http[1].limits[0].key: is Cookie("a=b"): must be the name of a cookie`},
	{"missing: refuse", "missing: maybe", `31:18: http[1].limits[0].missing: is "maybe": must be one of exempt, next,`},
	{"key: path x", "key: ip 56", `30:14: http[1].limits[0].key: the bits "56": must be 1 to 32 of IPv4 and`},
	{
		"key: path x", "key: hops 3 64 32",
		"30:14: http[1].limits[0].key: the bits \"64 32\": must be 1 to 32 of IPv4 and\n" +
			"37:7: http[1].address is missing: must say how the address of a client is",
	},
	{"cost: 3", "cost: -3", "32:15: http[1].limits[0].cost is -3: must be at least 0"},
	{"cost: 3", "cost: 6", "32:15: http[1].limits[0].cost: the cost is 6: must be at most 5, because"},
	{"cost: 3", "cots: 3", "32:9: http[1].limits[0].cots is no field: must be cost"},
	{"plan: header X-Plan", "plan: metadata x", `35:15: http[1].limits[1].plan: is "metadata x": must be header NAME`},
	{"plan: header X-Plan", "plan: header a@b", `35:15: http[1].limits[1].plan: is Header("a@b"): must be the name of a`},
	{"    preflights: limit", "    plan: header X-Tier", `27:11: http[1].plan is "header X-Tier": a policy of its limits must have plans, and`},
	{"    preflights: limit", "    plan: metadata x", `27:11: http[1].plan: is "metadata x": must be header NAME`},
	{"    limits: [] # grpc", "    limits: []\n    plan: metadata x", `46:11: grpc[1].plan is "metadata x": a policy of its limits must`},
	{"    limits: [] # grpc", "    limits: []\n    plan: metadata grpc-x", `46:11: grpc[1].plan: the field is "grpc-x": must`},
	{"grpc:\n", "rpcs:\n", "39:1: this field must be one of version, policies, at_once, http, grpc"},
	{"match: /s.T/", "match: s.T", `40:12: grpc[0].match: is "s.T": must be /package.Service/Method, /package.Service/`},
	{"match: /s.T/", "match: /", `44:12: grpc[1].match is "/", as in line 40: must be another one`},
	{"match: /s.T/\n    limits", "limits", "40:5: grpc[0].match is missing: must say which requests or calls are"},
	{"key: metadata m", "key: metadata grpc-m", `43:14: grpc[0].limits[0].key: the field is "grpc-m": must have only`},
	{"key: metadata m", "key: header m", `43:14: grpc[0].limits[0].key: is "header m": must be credential NAME,`},
	{"key: metadata m", "key: metadata m\n        missing: next", "42:9: grpc[0].limits[0].missing is next: must be another word,"},
	{
		"key: metadata m", "key: metadata m\n        missing: next\n      - {policy: a, key: ip}\n      - {policy: b, key: ip}",
		`46:9: grpc[0].limits[2]: policy is "b", as in line 42: must be another policy`,
	},
	{"key: metadata m", "key: []", "43:14: grpc[0].limits[0].key is an empty list: must have one key at least"},
	{"key: metadata m", "key: [ip, metadata grpc-x]", `43:19: grpc[0].limits[0].key[1]: the field is "grpc-x": must`},
	{"key: metadata m", "key: ip\n      - policy: b\n        key: ip", `44:9: grpc[0].limits[1]: policy is "b", as in`},
	{"limits: [] # grpc", "limts: [] # grpc", "45:5: grpc[1].limts is no field: must be limits"},
	{"limits: [] # grpc", "limits: 7 # grpc", `45:13: grpc[1].limits is "7": must be a list`},
	{"? 10.0.0.0/8", "? 10.0.0.1/8", `37:9: http[1].ranges: a range is "10.0.0.1/8" with bits after the first 8: must be`},
	{"? 10.0.0.0/8", "? 10.0.0.0/33", `37:9: http[1].ranges: a range is "10.0.0.0/33" and not valid: must be an address,`},
	{"? 10.0.0.0/8", "? fe80::1%eth0", "37:9: http[1].ranges: a range is with a zone: must have none"},
	{"? 10.0.0.0/8", "? '::ffff:10.0.0.0/90'", `37:9: http[1].ranges: a range is "::ffff:10.0.0.0/90" of IPv4 addresses`},
	{"? 10.0.0.0/8", "? sk-live-1", "37:9: http[1].ranges: a range is and not valid: must be an address, or a range such"},
	{
		"? 10.0.0.0/8", "? '::ffff:10.0.0.0/104'\n      : b\n      ? 10.0.0.0/8",
		"39:9: http[1].ranges: the range 10.0.0.0/8 is there twice: the first is in line",
	},
	{": unlimited", ": blocked", `38:9: http[1].ranges: is "blocked": must be unlimited, or the name of a`},
	{": unlimited", ": 5/s", `38:9: http[1].ranges: is "5/s": must be unlimited, or the name of a policy`},
	{": unlimited", ": [a]", "38:9: http[1].ranges is a list: must be a text"},
	{"key: ip", "key: header X", "37:7: http[1].address is missing: must say how the address of a client is found, as a"},
	{"key: ip", "key: [ip, forwarded-for 10.0.0.0/8]", "37:7: http[1].address is missing: must say how the address of a"},
	{
		"    limits: []\n  - match: /a", "    limits: []\n    ranges: {10.0.0.0/8: b}\n  - match: /a",
		"26:13: http[0].address is missing: must say how the address of a client is",
	},
	{"    ranges:\n      ? 10.0.0.0/8\n      : unlimited\n", "    address: ip\n", "36:14: http[1].address is there without"},
	{"    ranges:", "    address: route\n    ranges:", `36:14: http[1].address: is "route": must be forwarded PROXIES,`},
	{"    ranges:", "    address: header-ip a@b 10.0.0.0/8\n    ranges:", `36:14: http[1].address: is HeaderIP("a@b"):`},
	{"match: /b", "match: api/", `24:12: http[0].match: is "api/": "api" would be a host: must begin with / as in`},
	{"match: /b", "match: POST api/x", `24:12: http[0].match: is "POST api/x": "api" would be a host: must begin with /`},
	{"match: /b", "match: https://example.com/", `24:12: http[0].match: is "https://example.com/": the host "https:"`},
	{"match: /b", "match: example.com:80/", `24:12: http[0].match: is "example.com:80/": the host "example.com:80" must`},
	{"match: /b", "match: '*.example.com/'", `24:12: http[0].match: is "*.example.com/": the host "*.example.com" must`},
	{"match: /b", "match: bücher.example/", `24:12: http[0].match: is "bücher.example/": the host "bücher.example" must`},
	{"match: /b", "match: post /login", `24:12: http[0].match: is "post /login": the method must be in capitals, as in`},
	{"match: /b", "match: /api//x", `24:12: http[0].match: is "/api//x": the path must have no empty part, no . and no`},
	{"match: /b", "match: CONNECT /./x", `24:12: http[0].match: is "CONNECT /./x": the path must have no empty part, no`},
	{"match: /b", "match: /api/%2e%2e/x", `24:12: http[0].match: is "/api/%2e%2e/x": the path must have no empty part,`},
	{"match: /b", "match: /api%2fx", `24:12: http[0].match: is "/api%2fx": %2F must be written as /: the path is`},
	{"match: /b", "match: /api?x=1", `24:12: http[0].match: is "/api?x=1": must have no ? and no #, because only the`},
	{"match: /b", "match: /api#x", `24:12: http[0].match: is "/api#x": must have no ? and no #, because only the path`},
	{"match: /b", "match: '/{a}/{a}'", `24:12: http[0].match: is "/{a}/{a}": parsing "/{a}/{a}": at offset 5: duplicate`},
	{"match: /b", "match: '\" /x\"'", `24:12: http[0].match: is "\" /x\"": parsing "\" /x\"": at offset 0: invalid`},
	{"match: /b", "match: ''", `24:12: http[0].match: is "": invalid pattern`},
	{"match: /b", "match: api", `24:12: http[0].match: is "api": parsing "api": at offset 0: host/path missing /`},
	{
		"match: /b\n    limits: []", "match: /A/{x}/c\n    limits: []\n  - match: '/a/c/{y}'\n    limits: []",
		"26:12: http[1].match",
	},
}

// here is a value of another field, which an error shows.
var here = regexp.MustCompile(`here \d+`)

// mistakesOf returns what is said of a file, without the file's name.
func mistakesOf(text string) []string {
	_, err := policyfile.Parse("p.yaml", []byte(text))
	if err == nil {
		return nil
	}
	all := strings.Split(here.ReplaceAllString(err.Error(), "here N"), "\n")
	for i, m := range all {
		all[i] = strings.TrimPrefix(m, "p.yaml:")
	}
	return all
}

// Each mistake is told with its place, and where our code is is not. No mistake hides another, and
// two together make up no third one: each pair of mistakes says what each of them says alone.
func TestMistakes(t *testing.T) {
	if all := mistakesOf(right); all != nil {
		t.Fatalf("the file has mistakes: %q", all)
	}
	alone, pairs := make([][]string, len(mistakes)), 0
	for i, a := range mistakes {
		withA := strings.Replace(right, a.good, a.bad, 1)
		alone[i] = mistakesOf(withA)
		if !slices.EqualFunc(alone[i], strings.Split(a.want, "\n"), strings.HasPrefix) || strings.Contains(alone[i][0], ".go:") {
			t.Errorf("%q: %q, want %q", a.bad, alone[i], a.want)
		}
		for j, b := range mistakes[:i] {
			both := strings.Replace(withA, b.good, b.bad, 1)
			if a.good == b.good || strings.Contains(a.good+a.bad+b.good+b.bad, "\n") || both == withA {
				continue
			}
			pairs++
			got, want := mistakesOf(both), append(slices.Clone(alone[i]), alone[j]...)
			for _, m := range slices.Concat(got, want) {
				if slices.Contains(got, m) != slices.Contains(want, m) && !follows(m, b.bad+", "+a.bad) {
					t.Errorf("%s, %s: %s: told: %v, alone: %v", a.bad, b.bad, m, slices.Contains(got, m), slices.Contains(want, m))
				}
			}
		}
	}
	t.Log(pairs, "pairs")
}

// dependent is what is said of a field because of another one, and in which pairs it is not.
var dependent = []struct{ said, pairs string }{
	{"must be a wildcard of match", "^match: (a/|/b),"},
	{"conflicts with pattern", "^match: .*, match: "},
	{"the cost is", "^(name: b|policy: z),"},
	{"as in line", "^policy: z, policy: b"},
	{"must have plans", "^policy: b, plan: "},
	{"no plan of its own", "plan: .*X-Tier"},
	{"address is missing", "^key: .*, key: "},
	{"Policy.Limit is Unlimited", "pro"},
}

func follows(mistake, pair string) bool {
	for _, d := range dependent {
		if strings.Contains(mistake, d.said) && regexp.MustCompile(d.pairs).MatchString(pair) {
			return true
		}
	}
	return false
}

// A cost that no key of the policy ever has is a mistake, of a route, of a gRPC method, and of a
// File made by hand. A key with a limit of its own may have it.
func TestCostThatNobodyHas(t *testing.T) {
	for _, c := range []struct{ policy, cost, want string }{
		{"limit: 10/h", "11", "must be at most 10, because Policy.Limit.Tokens is 10"},
		{"limit: 10/h burst 5", "6", "must be at most 5, because Policy.Limit.Burst is 5"},
		{"limit: 10/h and 9/day", "10", "must be at most 9, because Policy.Limit.Also[0].Tokens is 9"},
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
	// The limit that cannot be read may be large enough, also if something else is wrong with the
	// policy.
	_, err := policyfile.Parse("p.yaml", []byte("version: 1\npolicies: [{name: a b, limit: 10/h, keys: {ann: many}}]\n"+
		"http:\n  - match: /\n    limits: [{policy: a b, key: ip, cost: 11}]\n"))
	if err == nil || strings.Contains(err.Error(), "cost") {
		t.Errorf("a limit of a key that cannot be read: %v", err)
	}
	g := testgroup.New(t, remote.NewMemory(), nil)
	f := &policyfile.File{
		Policies: []tiered.Policy{{Name: "a", Limit: tiered.PerHour(10)}},
		HTTP: []policyfile.Route{{Match: "/", Limits: []policyfile.Limit{{
			Policy: "a", Key: []policyfile.Key{{Kind: "ip"}}, Missing: httplimit.Refuse,
		}}}},
	}
	fatal.If(t, g.SetPolicies(f.Policies))
	for cost, refused := range map[int64]bool{-1: true, 0: false, 10: false, 11: true} {
		f.HTTP[0].Limits[0].Cost = cost
		if _, err := f.Middleware(g, nil); (err != nil) != refused {
			t.Errorf("cost %d: %v", cost, err)
		}
	}
}

// A credential counts by its hash. So a limit of a key that is none would meet nobody, and a
// blocked client would pass.
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
