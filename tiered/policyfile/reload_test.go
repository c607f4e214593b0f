package policyfile_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/tiered-limiter/tiered-limiter/tiered"
	"github.com/tiered-limiter/tiered-limiter/tiered/policyfile"
)

// schemaFields are the names of all fields that a file may have.
func schemaFields() []string {
	var schema any
	if err := json.Unmarshal(policyfile.Schema, &schema); err != nil {
		return []string{err.Error()}
	}
	names := map[string]bool{}
	var visit func(of any)
	visit = func(of any) {
		switch of := of.(type) {
		case []any:
			for _, one := range of {
				visit(one)
			}
		case map[string]any:
			properties, _ := of["properties"].(map[string]any)
			for name := range properties {
				names[name] = true
			}
			for _, value := range of {
				visit(value)
			}
		}
	}
	visit(schema)
	return slices.Sorted(maps.Keys(names))
}

// In this file each field has a line of its own, and a value that changes what is admitted or how.
const differing = `version: 1
policies:
  - name: a
    limit: 40/h
    algorithm: token bucket
    fail_mode: local
    standing: off
    shadow: false
    max_debt: 400
    lease:
      size: 2
      period: 1s
    keys:
      ann: 20/h
    prefixes:
      be: 10/h
  - name: b
    limit: 40/h
    algorithm: fixed window
    calendar: false
  - name: c
    limit: 70/h and 90/day
  - name: f
    limit: 50/h
    plans:
      pro: 60/h
http:
  - match: /x/
    preflights: limit
    limits:
      - policy: a
        key: header X-User
        missing: refuse
        cost: 1
        hidden: false
  - match: /plans/
    limits:
      - policy: f
        key: ip
        plan: header X-Plan
    address: forwarded-for 10.0.0.0/8
    ranges:
      10.1.0.0/16: unlimited
      198.51.100.0/24: b
grpc:
  - match: /
    limits: []
at_once:
  - name: g
    places: 5
    life: 5s
    max_run: 1m
`

// A version of a file that differs in one field is used or refused as a whole. Whatever it is,
// requests are limited by the file that is in force. TestMistakes has what else is refused.
func TestFilesThatDifferInOneField(t *testing.T) {
	const stays, wrong = "must stay", "must be"
	tried := map[string]bool{}
	for _, c := range []struct{ from, to, refused string }{
		{"version: 1", "version: 2", wrong},
		{"version: 1", "version: '1'", ""},
		{"policies:\n", "policies: []\nhttps:\n", wrong},
		{"http:\n", "grpc: []\nhttp:\n", "is there twice"},
		{"    ranges:\n      10.1.0.0/16: unlimited\n      198.51.100.0/24: b\n", "", "address is there without ranges"},
		{"name: c", "name: d", ""},
		{"name: a", "name: d", wrong}, // a rule names it
		{"limit: 40/h", "limit: 30/h", ""},
		{"limit: 40/h", "limit: 60/h", ""},
		{"limit: 40/h", "limit: 40/min", ""},
		{"limit: 40/h", "limit: blocked", ""},
		{"limit: 40/h", "limit: unlimited", ""},
		{"limit: 70/h and", "limit: 70/2h and", stays}, // it names a bucket in Redis
		{"90/day", "80/day", ""},
		{"90/day", "80/2d", stays},
		{" and 90/day", "", "must stay 2 limits"},
		{" and 90/day", " and 90/day and 200/week", "must stay 2 limits"},
		{"pro: 60/h", "pro: 5/h", ""},
		{"pro: 60/h", "pro: unlimited", ""},
		{"pro: 60/h", "gold: 60/h", ""},
		{"plans:\n      pro: 60/h", "plans: {}", "policy \"f\" must have plans"}, // a rule reads them
		{"plan: header X-Plan", "plan: header X-Tier", ""},
		{"address: forwarded-for 10.0.0.0/8", "address: ip", ""},
		{"    address: forwarded-for 10.0.0.0/8\n", "", ""}, // that of the key
		{"10.1.0.0/16: unlimited", "10.1.0.0/16: b", ""},
		{"10.1.0.0/16: unlimited", "10.1.0.0: unlimited", ""},
		{"plan: header X-Plan", "cost: 60", ""},
		{"algorithm: token bucket", "algorithm: sliding window", "only a TokenBucket has it"},
		{"algorithm: fixed window", "algorithm: sliding window", stays},
		{"algorithm: fixed window\n    calendar: false", "algorithm: sliding log", stays},
		{"calendar: false", "calendar: true", stays},
		{"fail_mode: local", "fail_mode: closed", ""},
		{"shadow: false", "shadow: true", ""},
		{"max_debt: 400", "max_debt: 4_000", ""},
		{"max_debt: 400", "max_debt: 4", "at least the burst"},
		{"size: 2", "size: none", ""},
		{"size: 2", "size: 200", ""}, // of a policy with limits of keys it is reduced
		{"period: 1s", "period: 2s", ""},
		{"lease:\n      size: 2\n      period: 1s", "lease: {}", ""},
		{"ann: 20/h", "ann: 5/h", ""},
		{"ann: 20/h", "ann: blocked", ""},
		{"ann: 20/h", "bob: 20/h", ""},
		{"keys:\n      ann: 20/h", "keys: {}", ""},
		{"be: 10/h", "be: 1/h", ""},
		{"prefixes:\n      be", "prefixes:\n      ''", "must have 1 to"},
		{"match: /x/", "match: /y/", ""},
		{"match: /x/", "match: /{$}", ""},
		{"preflights: limit", "preflights: exempt", ""},
		{"policy: a", "policy: b", ""},
		{"key: header X-User", "key: ip", ""},
		{"missing: refuse", "missing: together", ""},
		{"missing: refuse", "missing: exempt", ""},
		{"hidden: false", "hidden: true", ""},
		{"cost: 1", "cost: 7", ""},
		{"cost: 1", "cost: 0", ""},
		{"cost: 1", "cost: 40", ""},
		{"standing: off", "standing: 1/3", wrong},
		{"cost: 1", "cost: 9223372036854775808", wrong},
		{"grpc:\n  - match: /\n    limits: []\n", "grpc: []\n", ""},
		{"match: /\n", "match: /shop.Orders/\n", ""},
		{"limits: []", "limits: [{policy: a, key: method}]", ""},
		{"at_once:\n  - name: g\n    places: 5\n    life: 5s\n    max_run: 1m\n", "", ""},
		{"places: 5", "places: 6", ""},
		{"life: 5s", "life: 6s", ""},
		{"max_run: 1m", "max_run: 2m", ""},
	} {
		text := strings.Replace(differing, c.from, c.to, 1)
		if text == differing {
			t.Fatalf("there is no %q", c.from)
		}
		for _, name := range schemaFields() {
			tried[name] = tried[name] || strings.Contains(c.from, name+":")
		}
		t.Run(c.to, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { differs(t, text, c.to, c.refused) })
		})
	}
	for _, name := range schemaFields() {
		if !tried[name] {
			t.Errorf("no file differs in %s", name)
		}
	}
}

func differs(t *testing.T, text, what, refused string) {
	d := watchText(t, differing)
	before, policies := d.File().String(), said(policiesOf(d.Group()))
	d.put(text)
	err := d.Reload()
	switch {
	case refused == "" && err != nil, refused != "" && (err == nil || !strings.Contains(err.Error(), refused)):
		t.Errorf("%s: %v, want %q", what, err, refused)
	case err != nil:
		if d.File().String() != before || said(policiesOf(d.Group())) != policies {
			t.Errorf("%s is refused, and something has changed: %s", what, said(policiesOf(d.Group())))
		}
	default:
		want, err := policyfile.Parse("p.yaml", []byte(text))
		if err != nil || d.File().String() != want.String() || said(policiesOf(d.Group())) != said(want.Policies) {
			t.Errorf("%s: the policies are %s, want %s (%v)", what, said(policiesOf(d.Group())), said(want.Policies), err)
		}
	}
	d.isKept(t, what)
}

// policiesOf returns the policies of a Group, by name.
func policiesOf(g *tiered.Group) (all []tiered.Policy) {
	for _, name := range slices.Sorted(maps.Keys(g.Stats().Policies)) {
		if l, ok := g.Limiter(name); ok {
			all = append(all, l.Policy())
		}
	}
	return all
}

// said is what policies say, but for the limits of keys.
func said(all []tiered.Policy) string {
	var texts []string
	for _, p := range all {
		p.PerKey = nil
		texts = append(texts, fmt.Sprintf("%+v", p))
	}
	slices.Sort(texts)
	return strings.Join(texts, "\n")
}

// isKept sends requests of several users until each would be refused, and checks that no more are
// admitted than the rule in force says.
func (d *desk) isKept(t *testing.T, what string) {
	h := d.Middleware(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	route := d.File().HTTP[0]
	rule := route.Limits[0]
	l, ok := d.Group().Limiter(rule.Policy)
	if !ok {
		t.Fatalf("%s: the rule's policy %s is not there", what, rule.Policy)
	}
	p := l.Policy()
	target := strings.TrimSuffix(strings.ReplaceAll(route.Match, "{$}", ""), "/") + "/"
	for _, user := range []string{"ann", "bess", "carl"} {
		limit := p.Limit
		if p.PerKey != nil && rule.Key[0].Kind == "header" {
			if own := p.PerKey(user); own != (tiered.Limit{}) {
				limit = own
			}
		}
		most := limit.Tokens / max(rule.Cost, 1)
		switch {
		case limit == tiered.Unlimited() || p.Shadow || rule.Cost == 0:
			most = 100
		case limit == tiered.Blocked():
			most = 0
		}
		admitted := int64(0)
		for range 100 {
			r := httptest.NewRequest(http.MethodGet, target, nil)
			r.Header.Set("X-User", user)
			if rule.Key[0].Kind == "ip" {
				r.RemoteAddr = fmt.Sprintf("192.0.2.%d:1", user[0])
			}
			w := httptest.NewRecorder()
			if h.ServeHTTP(w, r); w.Code == http.StatusOK {
				admitted++
			}
		}
		if admitted != min(most, 100) {
			t.Errorf("%s: %s has %d requests admitted, want %d", what, user, admitted, most)
		}
	}
}
