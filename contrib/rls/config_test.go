package rls_test

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/tiered-limiter/tiered-limiter/contrib/rls"
	"github.com/tiered-limiter/tiered-limiter/contrib/rls/internal/behavior"
	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/fatal"
	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/testgroup"
	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// TestMistakes reads files that are wrong. All mistakes of a file are told at once, with their
// places.
func TestMistakes(t *testing.T) {
	for _, c := range []struct {
		name, text string
		want       []string // each in the error
	}{
		{"empty", "", []string{"a.yaml: the file is empty: must have a domain"}},
		{"no YAML", "domain: [", []string{"a.yaml:2:1: did not find expected node content"}},
		{"no YAML at two places", "domain: d\ndescriptors:\n  - key: [\n  - key: a\n    value: @sk-1\n  - key: b\n", []string{
			"a.yaml:4:3: did not find expected node content", "a.yaml:5:12: found character that cannot start any token",
		}},
		{"a list", "- domain", []string{"a.yaml:1:1: a list: must be fields with values"}},
		{"no domain", "descriptors: []", []string{"a.yaml:1:1: domain is empty: must be set"}},
		{"a second document", "domain: d\n---\ndomain: e", []string{"a.yaml:3:1: this is a second document: must be a file of its own"}},
		{"a second document that is no YAML", "domain: d\n---\ndomain: [", []string{"a.yaml: the second document of the file is no YAML"}},
		{"no domain and an unknown field", "descriptors:\n- {kez: a}", []string{"a.yaml:1:1: domain is empty", `a.yaml:2:4: "kez" is not a field`}},
		{"unknown fields", "domain: d\nrate: 1\ndescriptors:\n- key: k\n  limit: 2", []string{
			`a.yaml:2:1: "rate" is not a field here: must be one of domain, descriptors, tiered`,
			`a.yaml:5:3: "limit" is not a field here: must be one of key,`,
		}},
		{"metadata", "domain: d\ndescriptors:\n- {key: k, rate_limit: {unit: day}, metadata: 7}\n- {key: l, rate_limit: {unit: day}, metadata: {a: .nan, [b]: c, <<: 1}}", []string{
			`a.yaml:3:47: "7": must be fields with values`, `a.yaml:4:51: ".nan": must be a number that JSON has`,
			`a.yaml:4:57: a list: must be a name`, `a.yaml:4:65: "<<": must be a name`,
		}},
		{"metadata without an end", "domain: d\ndescriptors:\n- {key: k, rate_limit: {unit: day}, metadata: &m {a: *m}}", []string{"must be within at most 31"}},
		{"own settings of the domain", "domain: d\ntiered: {together: 7, apart: true}", []string{
			`a.yaml:2:20: "7": must be true or false`, `a.yaml:2:23: "apart" is not a field here: must be one of together`,
		}},
		{"own settings that are none", "domain: d\ntiered: true", []string{`a.yaml:2:9: "true": must be fields with values`}},
		{"twice", "domain: d\ndomain: e", []string{"a.yaml:2:1: domain is there twice"}},
		{"no key", "domain: d\ndescriptors:\n- value: v\n- {key: ''}", []string{
			"a.yaml:3:3: key is empty: must be set", "a.yaml:4:3: key is empty: must be set",
		}},
		{"the same descriptor", "domain: d\ndescriptors:\n- {key: a, value: b}\n- {key: a_b}", []string{
			`a.yaml:4:3: there is another descriptor with this key and value here`,
		}},
		{"units", "domain: d\ndescriptors:\n- {key: a, rate_limit: {unit: fortnight, requests_per_unit: 1}}\n" +
			"- {key: b, rate_limit: {requests_per_unit: 1}}\n- {key: c, rate_limit: {unit: unknown}}", []string{
			`a.yaml:3:24: unit is "fortnight": must be second, minute, hour, day, week, month or year`,
			`a.yaml:4:24: unit is "": must be`, `a.yaml:5:24: unit is "unknown": must be`,
		}},
		{"numbers", "domain: d\ndescriptors:\n- {key: a, rate_limit: {unit: day, requests_per_unit: -1}}\n" +
			"- {key: b, rate_limit: {unit: day, requests_per_unit: 4294967296}}\n- {key: c, shadow_mode: 7}", []string{
			`a.yaml:3:55: "-1": must be a whole number, 0 to 4294967295`, `a.yaml:4:55: "4294967296": must be`,
			`a.yaml:5:25: "7": must be true or false`,
		}},
		{"unlimited", "domain: d\ndescriptors:\n- {key: a, rate_limit: {unit: day, unlimited: true}}", []string{
			`a.yaml:3:31: unit is "day" and unlimited is true: must have only one of them`,
		}},
		{"replaces", "domain: d\ndescriptors:\n- key: a\n  rate_limit:\n    {unit: day, name: me, replaces: [{name: me}, {name: ''}]}", []string{
			`a.yaml:5:38: name is "me", the limit's own: must be that of another`, "a.yaml:5:50: name is empty",
		}},
		{"share_threshold", "domain: d\ndescriptors:\n- {key: a, value: b, share_threshold: true}\n- {key: a, value: 'b*c', share_threshold: true}", []string{
			`a.yaml:3:39: share_threshold is true, but value has no asterisk: must have one`,
		}},
		{"own settings", "domain: d\ndescriptors:\n- key: a\n  rate_limit: {unit: day, requests_per_unit: 5}\n" +
			"  tiered: {algorithm: leaky, burst: 7, fail_mode: maybe}\n- {key: b, tiered: {burst: 1}}", []string{
			`a.yaml:5:23: `, "leaky", `a.yaml:5:51: `, "maybe", "a.yaml:6:20: tiered is set, but rate_limit is not",
		}},
		{"further limits", "domain: d\ndescriptors:\n- key: a\n  rate_limit: {unit: day, requests_per_unit: 5}\n" +
			"  tiered: {also: [{unit: hour}, {unit: x, requests_per_unit: 1}, 7], max_debt: 9, count_refused: maybe}", []string{
			"a.yaml:5:19: a limit under also: must have requests_per_unit of 1 or more", "a.yaml:5:33: a limit under also",
			`a.yaml:5:66: "7": must be fields`, `a.yaml:5:80: max_debt is set, but algorithm is fixed window: must be token bucket`,
			`a.yaml:5:98: "maybe": must be true or false`,
		}},
		{"several units", "domain: d\ndescriptors:\n- key: a\n  rate_limit: {unit: day, requests_per_unit: 5}\n" +
			"  tiered: {unit_multiplier: 0, also: [{unit: year, unit_multiplier: 101, requests_per_unit: 1}]}\n" +
			"- {key: b, rate_limit: {unit: day, unit_multiplier: 2, requests_per_unit: 5}}\n" +
			"- {key: c, rate_limit: {unit: year, requests_per_unit: 5}, tiered: {unit_multiplier: 4294967295}}", []string{
			"a.yaml:5:29: unit_multiplier is 0: must be 1 or more, and at most 100 years", "a.yaml:5:69: unit_multiplier is 101: must be 1",
			`a.yaml:6:36: "unit_multiplier" is not a field here`, "a.yaml:7:86: unit_multiplier is 4294967295: must be 1",
		}},
		{"a burst of a window", "domain: d\ndescriptors:\n- {key: a, rate_limit: {unit: day, requests_per_unit: 5}, tiered: {burst: 1}}", []string{
			"a.yaml:3:75: burst is set, but algorithm is fixed window: must be token bucket",
		}},
		{"a limit that the algorithm cannot have", "domain: d\ndescriptors:\n- key: a\n" +
			"  rate_limit: {unit: day, requests_per_unit: 200_000}\n  tiered: {algorithm: sliding log}", []string{
			"a.yaml:4:15: tiered: Policy.Limit.Tokens is 200000: must be at most 100000",
		}},
		{"numbers that are none", "domain: d\ndescriptors:\n- {key: a, rate_limit: {unit: day, requests_per_unit: '5'}}\n" +
			"- {key: b, rate_limit: {unit: day, requests_per_unit: 1e3}}", []string{
			`a.yaml:3:55: "5": must be a whole number`, `a.yaml:4:55: "1e3": must be a whole number`,
		}},
		{"a merged mapping", "domain: d\ndescriptors:\n- {<<: {rate: 1}, key: a}\n- {<<: 7, key: b}", []string{
			`a.yaml:3:9: "rate" is not a field here`, `a.yaml:4:8: "7": must be fields with values`,
		}},
		{"a list in place of a value", "domain: d\ndescriptors:\n- {key: [a]}\n- b\n- {key: c, descriptors: d}", []string{
			"a.yaml:3:9: a list: must be a single value", `a.yaml:4:3: "b": must be fields with values`,
			`a.yaml:5:25: "d": must be a list`,
		}},
	} {
		_, err := rls.Parse(rls.File{Name: "a.yaml", Text: []byte(c.text)})
		for _, want := range c.want {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: lacks %s in\n%v", c.name, want, err)
			}
		}
	}
	none := []byte("descriptors: []")
	if _, err := rls.Parse(rls.File{Name: "a.yaml", Text: none}, rls.File{Name: "b.yaml", Text: none, Merge: true}); err == nil ||
		err.Error() != "a.yaml:1:1: domain is empty: must be set\nb.yaml:1:1: domain is empty: must be set" {
		t.Error(err)
	}
	one := []byte("domain: d")
	if _, err := rls.Parse(rls.File{Name: "a.yaml", Text: one}, rls.File{Name: "b.yaml", Text: one}); err == nil ||
		!strings.Contains(err.Error(), `b.yaml:1:9: domain is "d": another file or place has it`) {
		t.Error(err)
	}
}

// A few lines of aliases cannot become gigabytes.
func TestAliasesAreBounded(t *testing.T) {
	var text strings.Builder
	text.WriteString("domain: d\ndescriptors:\n- {key: a0, descriptors: &d0 [{key: k}]}\n")
	for i := range 60 {
		text.WriteString("- {key: b" + strings.Repeat("x", i) + ", descriptors: &e" + strings.Repeat("x", i) + " [")
		before := "*d0"
		if i > 0 {
			before = "*e" + strings.Repeat("x", i-1)
		}
		text.WriteString("{key: k, descriptors: " + before + " }, {key: l, descriptors: " + before + " }]}\n")
	}
	_, err := rls.Parse(rls.File{Name: "bomb.yaml", Text: []byte(text.String())})
	if err == nil || !strings.Contains(err.Error(), "must have fewer") &&
		!strings.Contains(err.Error(), "excessive aliasing") {
		t.Error(err)
	}
}

func TestPolicies(t *testing.T) {
	c := fatal.Get(rls.Parse(rls.File{Name: "a.yaml", Text: []byte(`
domain: shop
descriptors:
  - key: user
    rate_limit: {unit: minute, requests_per_unit: 7}
    shadow_mode: true
    descriptors:
      - {key: path, value: "/pay", rate_limit: {unit: year, requests_per_unit: 0}}
  - key: ip
    rate_limit: {unit: SECOND, requests_per_unit: 100}
    tiered: {algorithm: token bucket, burst: 200, fail_mode: fail-closed, standing: 1/8}
  - {key: admin, rate_limit: {unlimited: true}}
`)}))(t)
	all := c.Policies()
	if len(all) != 3 {
		t.Fatalf("%+v", all)
	}
	if p := all[0]; p.Name != "shop.user.minute" || p.Limit != tiered.PerMinute(7) || p.Algorithm != tiered.FixedWindow ||
		!p.Calendar || !p.Shadow {
		t.Errorf("%+v", p)
	}
	if p := all[1]; !strings.HasPrefix(p.Name, "shop.user.path__pay-") || p.PerKey("") != tiered.Blocked() {
		t.Errorf("%+v", p)
	}
	if p := all[2]; p.Name != "shop.ip.second-token-bucket" || p.Limit != tiered.PerSecond(100).WithBurst(200) ||
		p.Algorithm != tiered.TokenBucket || p.FailMode != tiered.FailClosed || p.Standing == 0 {
		t.Errorf("%+v", p)
	}
}

// Which part of their limits replicas share is said by a rule, else by its domain, else by the
// service, and a rule that cannot have that has none.
func TestStandingByRuleDomainAndService(t *testing.T) {
	c := fatal.Get(rls.Parse(rls.File{Name: "a.yaml", Text: []byte(`
domain: shop
tiered: {standing: 1/2}
descriptors:
  - {key: a, rate_limit: {unit: minute, requests_per_unit: 100}}
  - {key: b, rate_limit: {unit: minute, requests_per_unit: 100}, tiered: {standing: 1/8}}
  - {key: c, rate_limit: {unit: minute, requests_per_unit: 100}, tiered: {standing: off}}
  - {key: d, rate_limit: {unit: minute, requests_per_unit: 3}}
  - {key: e, rate_limit: {unit: minute, requests_per_unit: 100}, tiered: {algorithm: sliding window}}
`)}, rls.File{Name: "b.yaml", Text: []byte(`
domain: other
descriptors:
  - {key: a, rate_limit: {unit: minute, requests_per_unit: 100}}
  - {key: b, rate_limit: {unit: day, requests_per_unit: 1000}, tiered: {algorithm: token bucket}}
  - {key: c, rate_limit: {unit: minute, requests_per_unit: 2}}
`)}))(t)
	g := testgroup.New(t, remote.NewMemory(), nil)
	if err := fatal.Get(rls.New(g, &rls.Options{Standing: 3. / 4}))(t).Use(c); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]float64{
		"shop.a.minute": 1. / 2, "shop.b.minute": 1. / 8, "shop.c.minute": 0, "shop.d.minute": 0, "shop.e.minute-sliding-window": 0,
		"other.a.minute": 3. / 4, "other.b.day-token-bucket": 3. / 4, "other.c.minute": 0,
	} {
		if got := testgroup.Of(t, g, name).Policy().Standing; got != want {
			t.Errorf("%s: %v, want %v", name, got, want)
		}
	}
	if _, err := rls.New(g, &rls.Options{Standing: 0.3}); err == nil || !strings.Contains(err.Error(), "Options.Standing is 0.3: must be") {
		t.Errorf("%v", err)
	}
	_, err := rls.Parse(rls.File{Name: "a.yaml", Text: []byte("domain: d\ntiered: {standing: 1/3}\ndescriptors: []")},
		rls.File{Name: "b.yaml", Text: []byte("domain: e\ntiered: {standing: 1/8}\ndescriptors: []")},
		rls.File{Name: "c.yaml", Text: []byte("domain: e\ntiered: {standing: 1/4}\ndescriptors: []"), Merge: true})
	for _, what := range []string{`standing is "1/3": must be one of 1/2, 1/4`, "standing is 0.25, but 0.125 in another file of the domain"} {
		if err == nil || !strings.Contains(err.Error(), what) {
			t.Errorf("%v does not say %q", err, what)
		}
	}
}

// A merge key may be within itself, and a file may have more mistakes than anybody reads.
func TestMistakesAreBounded(t *testing.T) {
	for name, text := range map[string]string{
		"merged with itself": "domain: d\ndescriptors:\n- &a {key: k, <<: [*a, *a, *a]}",
		"many":               "domain: d\ndescriptors:\n" + strings.Repeat("- {}\n", 100_000),
	} {
		_, err := rls.Parse(rls.File{Name: "a.yaml", Text: []byte(text)})
		n := strings.Count(fmt.Sprint(err), "\n")
		if err == nil || n > 100 || !strings.Contains(err.Error(), "more than 100 mistakes") {
			t.Errorf("%s: %d lines: %.300v", name, n, err)
		}
	}
}

// YAML has several ways to say something.
func TestYAML(t *testing.T) {
	c := fatal.Get(rls.Parse(rls.File{Name: "a.yaml", Text: []byte(`domain: d
descriptors:
  - key: a
    rate_limit: &daily {unit: day, requests_per_unit: 1_000}
  - key: b
    rate_limit: {<<: *daily, requests_per_unit: 0x10}
  - key: c
    rate_limit: {<<: [{unit: hour}, *daily]}
  - key: d
    rate_limit:
    descriptors:
`)}))(t)
	var got []string
	for _, p := range c.Policies() {
		got = append(got, p.Name+" "+p.Limit.String())
	}
	if all := strings.Join(got, ", "); all != "d.a.day 1000/day, d.b.day 16/day, d.c.hour 1000/h" {
		t.Error(all)
	}
}

func TestMerge(t *testing.T) {
	file := func(name, key string) rls.File {
		text := "domain: d\ndescriptors:\n- {key: " + key + ", rate_limit: {unit: day, requests_per_unit: 1}}"
		return rls.File{Name: name, Text: []byte(text), Merge: true}
	}
	c, err := rls.Parse(file("a.yaml", "a"), file("b.yaml", "b"))
	if err != nil || len(c.Policies()) != 2 || len(c.Domains()) != 1 {
		t.Errorf("%+v, %v", c, err)
	}
	together := func(f rls.File, is string) rls.File {
		f.Text = append(f.Text, "\ntiered: {together: "+is+"}"...)
		return f
	}
	_, err = rls.Parse(together(file("a.yaml", "a"), "true"), file("b.yaml", "b"), together(file("c.yaml", "c"), "false"))
	if err == nil || err.Error() != "c.yaml:4:20: together is false, but true in another file of the domain: must be the same" {
		t.Error(err)
	}
	_, err = rls.Parse(file("a.yaml", "a"), file("b.yaml", "a"))
	if err == nil || !strings.Contains(err.Error(), `b.yaml:3:3: there is another descriptor`) {
		t.Error(err)
	}
}

// Two rules never share a policy, whatever their keys are.
func TestPolicyNamesDiffer(t *testing.T) {
	const limit = "rate_limit: {unit: minute, requests_per_unit: 1}"
	c := fatal.Get(rls.Parse(
		rls.File{Name: "a.yaml", Text: []byte("domain: d\ndescriptors:\n" +
			"- {key: a, " + limit + ", descriptors: [{key: b, " + limit + "}, {key: minute, " + limit + "}]}\n" +
			"- {key: a.b, " + limit + "}\n- {key: a/b, " + limit + "}\n- {key: a b, " + limit + "}\n- {key: override, " + limit + "}")},
		rls.File{Name: "b.yaml", Text: []byte("domain: d.a\ndescriptors:\n- {key: b, " + limit + "}")}))(t)
	s := newService(t, remote.NewMemory(), "domain: d", nil)
	fatal.If(t, s.Use(c))
	fatal.Get(s.ShouldRateLimit(t.Context(), behavior.Request("d | z=x limit=5/minute")))(t)
	names := map[string]bool{}
	for r := range s.Rules() {
		if names[r.Policy] {
			t.Errorf("two policies are %s", r.Policy)
		}
		names[r.Policy] = true
	}
	if len(names) != 9 {
		t.Errorf("%v", names)
	}
}

// Load reads what a ConfigMap mounts: files by links, beside directories that begin with dots.
func TestLoad(t *testing.T) {
	dir := t.TempDir()
	data := filepath.Join(dir, "..2026")
	write := func(name, text string) {
		t.Helper()
		fatal.If(t, os.WriteFile(name, []byte(text), 0o600))
	}
	fatal.If(t, os.Mkdir(data, 0o700))
	if _, err := rls.Load(dir); err == nil || !strings.Contains(err.Error(), "has no file: must have one at least") {
		t.Error(err)
	}
	write(filepath.Join(data, "a.yaml"), "domain: a")
	fatal.If(t, os.Symlink(filepath.Join("..2026", "a.yaml"), filepath.Join(dir, "a.yaml")))
	write(filepath.Join(dir, "b.yml"), "domain: b")
	write(filepath.Join(dir, ".hidden.yaml"), "domain: [")
	within := filepath.Join(dir, "more", "of", "them")
	fatal.If(t, os.MkdirAll(within, 0o700))
	write(filepath.Join(within, "c"), "domain: c")
	link := filepath.Join(t.TempDir(), "current")
	fatal.If(t, os.Symlink(dir, link))
	for _, at := range []string{dir, link} {
		if c, err := rls.Load(at); err != nil || strings.Join(c.Domains(), " ") != "a b c" {
			t.Errorf("%v, %v", c, err)
		}
	}
	write(filepath.Join(dir, "b.yml"), "domain: b"+strings.Repeat(" ", 10<<20))
	if _, err := rls.Load(dir); err == nil || !strings.Contains(err.Error(), "must have at most 10485760") {
		t.Error(err)
	}
}

// Whatever a file is, it is read or refused, and its policies are valid.
func FuzzParse(f *testing.F) {
	f.Add("domain: d\ndescriptors:\n- {key: a, value: b*, share_threshold: true, rate_limit: {unit: day, requests_per_unit: 3}}")
	f.Add("---\n---\ndomain: d\n...\n---\n")
	f.Add("descriptors: [{key: a}]")
	f.Add("domain: d\ndescriptors:\n- &a {key: a, descriptors: [*a]}")
	f.Add("domain: d\ndescriptors:\n- {key: é, rate_limit: {unit: day, requests_per_unit: 3}, tiered: {algorithm: token bucket, burst: 1}}")
	f.Fuzz(func(t *testing.T, text string) {
		f := rls.File{Name: "f.yaml", Text: []byte(text)}
		if _, err := rls.Parse(f, f); err == nil {
			t.Error("two files with one domain are fine")
		}
		c, err := rls.Parse(f)
		if err != nil {
			return
		}
		seen := map[string]bool{}
		for _, p := range c.Policies() {
			if err := p.Validate(); err != nil || seen[p.Name] {
				t.Errorf("%+v: %v", p, err)
			}
			seen[p.Name] = true
		}
	})
}

// String lists the limits by their place.
func TestString(t *testing.T) {
	c := fatal.Get(rls.Parse(rls.File{Name: "a.yaml", Text: []byte(`domain: shop
descriptors:
  - {key: user, rate_limit: {unit: minute, requests_per_unit: 7}, shadow_mode: true, quota_mode: true}
  - key: ip
    descriptors:
      - key: path
        value: "/a*"
        rate_limit: {unit: day, requests_per_unit: 9}
        tiered: {algorithm: sliding window, fail_mode: fail-open, also: [{unit: hour, requests_per_unit: 3}], unit_multiplier: 2}
  - {key: admin, rate_limit: {unlimited: true}}
`)}, rls.File{Name: "b.yaml", Text: []byte("domain: bank\ntiered: {together: true}")}))(t)
	const want = `bank: all descriptors of a request together
shop.admin: unlimited
shop.ip.path_/a*: 9 per 2 days and 3 per hour, sliding window, fail-open, policy shop.ip.path__a_-6ab65ea5a1c3f66e
shop.user: 7 per minute, fixed window, fail-local, shadow mode, quota mode, policy shop.user.minute
`
	name := regexp.MustCompile(`-[0-9a-f]{16}\n`) // of a policy: it has the hash of its place
	if got := c.String(); name.ReplaceAllString(got, "\n") != name.ReplaceAllString(want, "\n") {
		t.Errorf("%s, want\n%s", got, want)
	}
}
