package policyfile_test

import (
	"fmt"
	"os"
	"reflect"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
	"pgregory.net/rapid"

	"github.com/tiered-limiter/tiered-limiter/internal/defaults"
	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/fatal"
	"github.com/tiered-limiter/tiered-limiter/tiered"
	"github.com/tiered-limiter/tiered-limiter/tiered/policyfile"
)

// What is printed of a file has all that it can say, also what it leaves out.
func TestFileIsPrintedInFull(t *testing.T) {
	data := fatal.Get(os.ReadFile("testdata/whole.yaml"))(t)
	f := fatal.Get(policyfile.Parse("whole.yaml", data))(t)
	printed := f.String()
	for _, want := range []string{
		"max_debt: 2000\n", "max_debt: 0 # one burst\n", "      mallory: blocked\n", "      internal-batch-: 10/s burst 20\n",
		"standing: off\n", "    plans:\n      pro: 1000/min burst 2000\n      staff: unlimited\n",
		"missing: next, cost: 1, plan: header X-Plan, hidden: false}\n", "{policy: per-address, key: ip 24 56, missing",
		"    address: forwarded-for 10.0.0.0/8 fd00::/8\n    ranges:\n      10.0.0.0/8: unlimited\n      2001:db8::1: unlimited\n" +
			"      198.51.100.0/24: mails\n", "    address: ip\n    ranges:\n      10.0.0.0/8: unlimited\n", "calendar: true\n", "limit: 1000/min and 5000/h\n", "fail_mode: local\n",
		"lease: {size: 0, period: 250ms} # the size follows demand\n", "lease: {size: none, period: 250ms}\n",
		"  # POST, any host, /api/mails/{tenant}, however the URL is spelled\n  - match: POST /api/mails/{tenant}\n",
		"{policy: mails, key: [ip, path tenant], missing: together, cost: 2, hidden: false}\n", "missing: refuse, cost: 1, hidden: false}\n",
		"'forwarded-for 10.0.0.0/8 fd00::/8'", "    preflights: limit\n",
	} {
		if !strings.Contains(printed, want) {
			t.Errorf("no %q in\n%s", want, printed)
		}
	}
	for _, name := range schemaFields() {
		if !strings.Contains(printed, name+":") {
			t.Errorf("the field %s of the schema is not in\n%s", name, printed)
		}
	}
	if again := same(t, f); again != printed {
		t.Errorf("printed again it is\n%s", again)
	}
	if text := (*policyfile.File)(nil).String(); text != "" {
		t.Errorf("no file is %q", text)
	}
}

type failer interface {
	Helper()
	Fatalf(format string, args ...any)
}

// same checks that what is printed of a file reads as that file. It returns what is printed of
// that.
func same(t failer, f *policyfile.File) string {
	t.Helper()
	again, err := policyfile.Parse("printed.yaml", []byte(f.String()))
	if err != nil {
		t.Fatalf("%v\n%s", err, f)
	}
	plain := func(all []tiered.Policy) (same []string) {
		for _, p := range all {
			p.PerKey = nil
			if p.Lease.Period == 0 && p.Algorithm != tiered.SlidingLog {
				p.Lease.Period = defaults.Period
			}
			if p.Algorithm == tiered.SlidingLog {
				p.Lease.Size = tiered.NoLease
			}
			same = append(same, fmt.Sprintf("%+v", p))
		}
		return same
	}
	if a, b := plain(f.Policies), plain(again.Policies); !reflect.DeepEqual(a, b) {
		t.Fatalf("policies %s, printed %s", a, b)
	}
	if !reflect.DeepEqual(f.GRPC, again.GRPC) {
		t.Fatalf("calls %+v, printed %+v", f.GRPC, again.GRPC)
	}
	if a, b := fmt.Sprintf("%+v", f.HTTP), fmt.Sprintf("%+v", again.HTTP); len(f.HTTP) != len(again.HTTP) {
		t.Fatalf("routes %s, printed %s", a, b)
	}
	for i, r := range f.HTTP {
		if o := again.HTTP[i]; !reflect.DeepEqual(r.Exceptions, o.Exceptions) || r.Match != o.Match || r.ExemptPreflights != o.ExemptPreflights ||
			len(r.Limits)+len(o.Limits) > 0 && !reflect.DeepEqual(r.Limits, o.Limits) {
			t.Fatalf("route %+v, printed %+v", r, o)
		}
	}
	return again.String()
}

// Whatever names, keys and values a file has: what is printed reads as the same file.
func TestWhatIsPrintedIsTheFile(t *testing.T) {
	odd := rapid.OneOf(
		rapid.SampledFrom([]string{
			"true", "off", "~", "null", "12", "1e3", "0x1f", "a: b", "#", "a #b", "- a", "[x]", "{x}", "&a", "*a", "!a", "%a",
			"@", "`", "'", `"`, `\`, "x\ny", "x\n", "\tx", " x ", "é", "\u0085", "\u2028", "\u00a0", "=", "<<", "?", "? a",
			"2001-01-01", "|", ">",
			strings.Repeat("long ", 40),
		}),
		rapid.StringN(1, 20, 200))
	limit := rapid.SampledFrom([]string{"1/s", "100/s burst 200", "1000/min", "5/2h", "100/s and 5000/h", "100/s burst 3 and 9000/3h burst 10000", "blocked", "unlimited", "3/day"})
	rapid.Check(t, func(t *rapid.T) {
		keys := rapid.MapOfN(odd, limit, 0, 3)
		policy := func(i int) map[string]any {
			p := map[string]any{"name": fmt.Sprint("p", i), "limit": limit.Draw(t, "limit")}
			maybe := func(field string, value *rapid.Generator[any]) {
				if rapid.IntRange(0, 3).Draw(t, field) == 0 {
					p[field] = value.Draw(t, field)
				}
			}
			of := func(values ...any) *rapid.Generator[any] { return rapid.SampledFrom(values) }
			maybe("algorithm", of("token bucket", "fixed window", "sliding window", "sliding log"))
			maybe("fail_mode", of("open", "closed", "local"))
			maybe("standing", of("1/8", "3/4"))
			maybe("shadow", of(true))
			maybe("calendar", of(true))
			maybe("max_debt", of(300_000))
			maybe("lease", of(map[string]any{"size": "none"}, map[string]any{"size": 1}, map[string]any{"period": "1m0.5s"},
				map[string]any{"period": "5ms"}))
			maybe("plans", rapid.Map(rapid.MapOfN(odd, limit, 0, 3), func(m map[string]string) any { return m }))
			maybe("keys", rapid.Map(keys, func(m map[string]string) any { return m }))
			maybe("prefixes", rapid.Map(keys, func(m map[string]string) any { return m }))
			return p
		}
		file := map[string]any{"version": 1, "policies": []any{policy(0), policy(1)}}
		key := rapid.SampledFrom([]any{
			"ip", "path id", "header X-User", "credential Authorization", "hops 3", "forwarded 10.0.0.0/8 fd00::/8",
			"header-ip X-Real-IP 10.0.0.0/8", "cookie session", "query k", "ip 24 56", "hops 3 32 128", "route",
			[]string{"ip", "method"},
		})
		cost := rapid.SampledFrom([]int64{0, 1, 7, 100}).Draw(t, "cost")
		rule := map[string]any{"policy": "p0", "key": key.Draw(t, "key"), "cost": cost}
		if rapid.Bool().Draw(t, "missing") {
			rule["missing"] = rapid.SampledFrom([]string{"refuse", "exempt", "together"}).Draw(t, "missing")
		}
		matches := []string{"/{id}", "POST example.com/a/{id}/{rest...}", "[2001:db8::1]/%7B/{id}/{$}"}
		match := rapid.SampledFrom(matches).Draw(t, "match")
		file["http"] = []any{
			map[string]any{
				"match": match, "limits": []any{rule},
				"preflights": rapid.SampledFrom([]string{"exempt", "limit"}).Draw(t, "preflights"),
			},
			map[string]any{"match": "/free", "limits": []any{}},
		}
		var f *policyfile.File
		for _, drop := range []string{
			"", "plans", "and", "standing", "calendar", "lease", "max_debt", "keys", "prefixes", "algorithm", "cost",
		} {
			delete(rule, drop)
			for _, p := range file["policies"].([]any) {
				delete(p.(map[string]any), drop)
			}
			text := fatal.Get(yaml.Marshal(file))(t)
			var err error
			if f, err = policyfile.Parse("p.yaml", text); err == nil {
				break // what does not go together is refused
			}
		}
		if f == nil {
			t.Fatalf("%v is refused", file)
		}
		again := same(t, f)
		if again != f.String() {
			t.Fatalf("printed as\n%s\nand again as\n%s", f, again)
		}
		for i, p := range file["policies"].([]any) {
			for _, field := range []string{"keys", "prefixes"} {
				m, _ := p.(map[string]any)[field].(map[string]string)
				for k := range m {
					read := fatal.Get(policyfile.Parse("printed.yaml", []byte(again)))(t)
					if a, b := f.Policies[i].PerKey(k), read.Policies[i].PerKey(k); a != b {
						t.Fatalf("key %q has %v, printed %v", k, a, b)
					}
				}
			}
		}
	})
}
