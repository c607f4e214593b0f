package policyfile_test

import (
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/fatal"
	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/testgroup"
	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
	"github.com/tiered-limiter/tiered-limiter/tiered/atonce"
	"github.com/tiered-limiter/tiered-limiter/tiered/policyfile"
)

// A file has policies of what runs at the same time. Its text, and the schema, have all that it
// says.
func TestAtOnce(t *testing.T) {
	const text = `version: 1
policies: [{name: a, limit: 1/s}]
at_once:
  - {name: in-flight, places: 5}
  - {name: exports, places: 20, plans: {pro: 50}, fail_mode: closed, life: 30s, max_run: 10m}
`
	fatal.If(t, validate(t, compile(t), []byte(text)))
	f := fatal.Get(policyfile.Parse("p.yaml", []byte(text)))(t)
	want := []atonce.Policy{
		{Name: "in-flight", Places: 5},
		{
			Name: "exports", Places: 20, Plans: map[string]int{"pro": 50}, FailMode: tiered.FailClosed,
			Life: 30 * time.Second, MaxRun: 10 * time.Minute,
		},
	}
	if !reflect.DeepEqual(f.AtOnce, want) {
		t.Errorf("%+v", f.AtOnce)
	}
	again := fatal.Get(policyfile.Parse("p.yaml", []byte(f.String())))(t)
	want[0].Life = atonce.DefaultLife
	if !reflect.DeepEqual(again.AtOnce, want) {
		t.Errorf("written as %s\nand read as %+v", f, again.AtOnce)
	}
	for wrong, want := range map[string]string{
		"{places: 5}":                                "p.yaml:3:11: at_once[0].name is missing",
		"{name: b}":                                  "at_once[0].places is missing",
		"{name: b, places: 0}":                       "at_once[0]: Policy.Places is 0: must be 1 to 2^20",
		"{name: b, places: x}":                       `at_once[0].places: is "x": must be 1 to 1048576`,
		"{name: b, places: 5, life: 1ms}":            "at_once[0]: Policy.Life is 1ms: must be 1s to 1h",
		"{name: b, places: 5, plans: {p: 0}}":        `at_once[0]: Policy.Plans["p"] is 0`,
		"{name: b, places: 5, limit: 1/s}":           "must be one of",
		"{name: b, places: 5}, {name: b, places: 5}": "at_once[1]: name is \"b\": the policy in line 3 has that name",
	} {
		_, err := policyfile.Parse("p.yaml", []byte("version: 1\npolicies: []\nat_once: ["+wrong+"]\n"))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", wrong, err, want)
		}
	}
}

const atOnceRules = `version: 1
policies: [{name: rate, limit: 100/h}, {name: other, limit: 50/h}]
at_once: [{name: in-flight, places: 2, plans: {pro: 3}}, {name: exports, places: 1}]
http:
  - match: /api/
    limits: [{policy: rate, at_once: in-flight, key: header X-User, plan: header X-Plan, cost: 2}]
  - match: /exports/
    limits: [{at_once: exports, key: header X-User, missing: exempt}]
  - match: /p/{id}/issues
    limits: [{policy: rate, at_once: exports, key: header X-User}]
  - match: /p/
    limits: [{at_once: exports, key: header X-User}, {policy: other, at_once: in-flight, key: header X-User, cost: 3}]
  - match: /q/{id}/issues
    limits: [{policy: other, at_once: in-flight, key: header X-User}]
  - match: /q/
    limits: [{policy: other, key: header X-User}, {at_once: exports, key: header X-User}]
  - match: /r/{id}/issues
    limits: [{policy: other, key: header X-User}, {at_once: exports, key: header X-User}]
  - match: /r/
    limits: [{policy: other, at_once: in-flight, key: header X-User}]
grpc:
  - match: /
    limits: [{at_once: in-flight, key: metadata x-user, plan: metadata x-plan}]
`

// Rules name policies of what runs at the same time, beside a policy or alone. The text of a file
// has them, and the schema. A name that is not there is answered with the near one.
func TestRulesWithPlaces(t *testing.T) {
	schema := compile(t)
	fatal.If(t, validate(t, schema, []byte(atOnceRules)))
	f := parse(t, atOnceRules)
	if l := f.HTTP[0].Limits[0]; l.Policy != "rate" || l.AtOnce != "in-flight" || l.Cost != 2 {
		t.Errorf("%+v", l)
	}
	if l := f.GRPC[0].Limits[0]; l.Policy != "" || l.AtOnce != "in-flight" {
		t.Errorf("%+v", l)
	}
	fatal.If(t, validate(t, schema, []byte(f.String())))
	if again := parse(t, f.String()); !reflect.DeepEqual(again.HTTP, f.HTTP) || !reflect.DeepEqual(again.GRPC, f.GRPC) {
		t.Errorf("written as %s", f)
	}
	for wrong, want := range map[string]string{
		"{at_once: in-flihgt, key: ip}":                                `4:38: http[0].limits[0].at_once is "in-flihgt": must be the name of a policy under at_once in this file, such as "in-flight"`,
		"{at_once: none, key: ip}":                                     `at_once is "none": must be the name of a policy under at_once in this file` + "\n",
		"{at_once: rate, key: ip}":                                     `under at_once in this file, and that is the name of one under policies`,
		"{policy: in-flight, key: ip}":                                 `policy is "in-flight": must be the name of a policy in this file, and that is the name of one under at_once`,
		"{policy: rat, key: ip}":                                       `policy is "rat": must be the name of a policy in this file, such as "rate"`,
		"{at_onec: in-flight, key: ip}":                                "http[0].limits[0].at_onec is no field: must be at_once",
		"{key: ip}":                                                    "http[0].limits[0].policy is missing: must be the name of a policy in this file, or at_once must be there",
		"{at_once: in-flight, key: ip, cost: 2}":                       "http[0].limits[0].cost is there without policy: must be left out",
		"{at_once: in-flight, key: ip, plan: header X}":                `plan is "header X": policy "in-flight" must have plans`,
		"{at_once: in-flight, key: ip}, {at_once: in-flight, key: ip}": `http[0].limits[1]: at_once is "in-flight", as in line 4: must be another policy`,
	} {
		text := "version: 1\npolicies: [{name: rate, limit: 1/s}]\nat_once: [{name: in-flight, places: 5}]\nhttp: [{match: /, limits: [" + wrong + "]}]\n"
		_, err := policyfile.Parse("p.yaml", []byte(text))
		if err == nil || !strings.Contains(err.Error()+"\n", want) {
			t.Errorf("%s:\n%v, want\n%s", wrong, err, want)
		}
	}
	g := testgroup.New(t, remote.NewMemory(), nil, f.Policies...)
	if _, err := f.Middleware(g, nil); err == nil || !strings.Contains(err.Error(), `http[0]: the Group has no policy "in-flight" of what runs`) {
		t.Errorf("a Group without the policies: %v", err)
	}
}

// A request has its places while it runs, one of a key however many of its readings want it, and
// what the first rule refuses takes none. A reload changes the places, and keeps what runs.
func TestPlacesByAFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "p.yaml")
	write := func(text string) { fatal.If(t, os.WriteFile(path, []byte(text), 0o600)) }
	write(atOnceRules)
	g := testgroup.New(t, remote.NewMemory(), nil)
	w := fatal.Get(policyfile.Watch(path, g, nil))(t)
	t.Cleanup(w.Close)
	running := func(name string) int64 { return atonce.Of(g, name).Stats().Running }
	var during func()
	h := w.Middleware(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		if during != nil {
			during()
		}
	}))
	// within sends a request, and while it runs calls do.
	within := func(target string, do func(), fields ...string) int {
		before := during
		defer func() { during = before }()
		during = func() {
			during = nil
			do()
		}
		return ask(h, http.MethodGet, target, fields...)
	}
	spent := func(policy string) int64 {
		l, _ := g.Limiter(policy)
		d := l.Peek(t.Context(), "ann")
		return d.Burst - d.Remaining
	}
	ann, pro := []string{"X-User", "ann"}, []string{"X-User", "ann", "X-Plan", "pro"}
	check := func(target string, want int, fields []string) {
		t.Helper()
		if got := ask(h, http.MethodGet, target, fields...); got != want {
			t.Errorf("%s: %d, want %d", target, got, want)
		}
	}
	nested := within("/api/a", func() {
		within("/api/b", func() {
			before := spent("rate")
			check("/api/c", 429, ann)
			check("/api/c", ok, pro)
			check("/api/c", ok, []string{"X-User", "bob"})
			if n := spent("rate") - before; n != 2 {
				t.Errorf("two requests of ann, one of them without a place, took %d tokens", n)
			}
		}, ann...)
	}, ann...)
	if nested != ok || running("in-flight") != 0 {
		t.Errorf("%d, and then %d run", nested, running("in-flight"))
	}
	within("/exports/a", func() {
		check("/exports/b", 429, ann)
		check("/exports/b", ok, nil) // it has no key
	}, ann...)
	before, other := spent("rate"), spent("other")
	within("/p/a%2Fb/issues", func() { // of /p/{id}/issues, and of /p/
		if running("exports") != 1 || running("in-flight") != 1 {
			t.Errorf("a request with two readings has %d and %d places", running("exports"), running("in-flight"))
		}
	}, ann...)
	if spent("rate") != before+1 || spent("other") != other+3 {
		t.Errorf("it took %d and %d tokens", spent("rate")-before, spent("other")-other)
	}
	for _, target := range []string{"/q/a%2Fb/issues", "/r/a%2Fb/issues"} { // one policy for both, with a place for one
		other = spent("other")
		within(target, func() {
			if running("exports") != 1 || running("in-flight") != 1 || spent("other") != other+1 {
				t.Errorf("%s has %d and %d places, and took %d tokens", target, running("exports"), running("in-flight"), spent("other")-other)
			}
		}, ann...)
	}
	first := atonce.Of(g, "exports")
	within("/exports/a", func() {
		write(strings.Replace(atOnceRules, "{name: exports, places: 1}", "{name: exports, places: 2}", 1))
		fatal.If(t, w.Reload())
		check("/exports/b", ok, ann)
		within("/exports/b", func() { check("/exports/c", 429, ann) }, ann...)
	}, ann...)
	if atonce.Of(g, "exports") != first || running("exports") != 0 {
		t.Errorf("after a reload %d run", running("exports"))
	}
}
