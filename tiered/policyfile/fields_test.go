package policyfile_test

import (
	"context"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/tiered-limiter/tiered-limiter/internal/test/proof/answers"
	"github.com/tiered-limiter/tiered-limiter/internal/test/proof/legal"
	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/fatal"
	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/testgroup"
	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
	"github.com/tiered-limiter/tiered-limiter/tiered/httplimit"
	"github.com/tiered-limiter/tiered-limiter/tiered/policyfile"
)

// option says of a field of tiered.Policy where else it must be known. A new field needs a row.
type option struct {
	was, is string // fields of a policy in a file that differ in this field only

	// bad makes the field's value wrong. never says why no value is.
	bad   func(*tiered.Policy)
	never string

	stays bool // SetPolicy refuses another value, because buckets in Redis count by it

	// A field is drawn by the legal plans. If not, elsewhere says why, and drawn which other proof
	// does.
	elsewhere string
	drawn     func(seed uint64) []tiered.Policy
}

// limited begins most rows.
const limited = "limit: 100/h"

// options has a row for each field of tiered.Policy, and of its Limit and its Lease.
var options = map[string]option{
	"Name":         {was: limited, is: "name: other, " + limited, bad: func(p *tiered.Policy) { p.Name = "a b" }, stays: true},
	"Limit.Tokens": {was: limited, is: "limit: 200/h", bad: func(p *tiered.Policy) { p.Limit.Tokens = -1 }},
	"Limit.Per":    {was: limited, is: "limit: 100/min", bad: func(p *tiered.Policy) { p.Limit.Per = -1 }},
	"Limit.Burst":  {was: limited, is: "limit: 100/h burst 200", bad: func(p *tiered.Policy) { p.Limit.Burst = -1 }},
	"Limit.Precision": {
		was: "limit: 100/h, algorithm: sliding window", is: "limit: 100/h precision 30s, algorithm: sliding window",
		bad: func(p *tiered.Policy) { p.Limit.Precision = -1 },
	},
	"Limit.Calendar": {
		was: "limit: 100/month, algorithm: fixed window", is: "limit: 100/month in Asia/Tokyo from day 17, algorithm: fixed window",
		bad: func(p *tiered.Policy) { p.Limit = p.Limit.From(40) },
	},
	"Limit.Also": {
		was: limited + " and 500/day", is: limited + " and 600/day",
		bad: func(p *tiered.Policy) { p.Limit = p.Limit.And(tiered.Limit{}) },
	},
	"Algorithm": {was: limited, is: limited + ", algorithm: sliding window", bad: func(p *tiered.Policy) { p.Algorithm = 9 }, stays: true},
	"Standing":  {was: limited, is: limited + ", standing: 1/2", bad: func(p *tiered.Policy) { p.Standing = 9 }},
	"Calendar": {
		was: limited + ", algorithm: fixed window", is: limited + ", algorithm: fixed window, calendar: true", stays: true,
		bad: func(p *tiered.Policy) { p.Algorithm, p.Calendar = tiered.TokenBucket, true },
	},
	"PerKey": {was: limited, is: limited + ", keys: {ann: 7/h}", never: "what it returns is checked, by Policy.CheckLimit"},
	"Plans": {
		was: limited + ", plans: {pro: 200/h}", is: limited + ", plans: {pro: 300/h}",
		bad: func(p *tiered.Policy) { p.Plans = map[string]tiered.Limit{"": tiered.PerHour(1)} },
	},
	"FailMode":     {was: limited, is: limited + ", fail_mode: closed", bad: func(p *tiered.Policy) { p.FailMode = 9 }},
	"Lease.Size":   {was: limited, is: limited + ", lease: {size: 3}", bad: func(p *tiered.Policy) { p.Lease.Size = -7 }},
	"Lease.Period": {was: limited, is: limited + ", lease: {period: 2s}", bad: func(p *tiered.Policy) { p.Lease.Period = -1 }},
	"MaxDebt":      {was: limited, is: limited + ", max_debt: 300", bad: func(p *tiered.Policy) { p.MaxDebt = -1 }},
	"Shadow": {
		was: limited, is: limited + ", shadow: true", never: "both are right",
		elsewhere: "a policy on trial admits what it refuses, so no limit holds: package answers has its properties",
		drawn:     func(seed uint64) []tiered.Policy { return answers.Draw(seed).Policies },
	},
}

// Each field of tiered.Policy is validated, drawn by a proof, read from a policy file and its
// schema, compared by SetPolicy, shown by tiersim check, copied for the caller, and explained, and
// a mistake in it hides no other one. TestFilesThatDifferInOneField (reload_test.go) asks besides
// that two files which differ in it only are two policies.
func TestEveryFieldOfAPolicy(t *testing.T) {
	fields := fieldsOf(reflect.TypeFor[tiered.Policy](), "")
	for name := range options {
		if !slices.Contains(fields, name) {
			t.Errorf("Policy.%s: there is a row, and no such field", name)
		}
	}
	comments, page, whole := commentsOf(t, "../*.go"), readConfigurationPage(t), string(fatal.Get(os.ReadFile("testdata/whole.yaml"))(t))
	for _, name := range fields {
		t.Run(name, func(t *testing.T) {
			o, ok := options[name]
			if !ok {
				t.Fatalf("Policy.%s has no row: add one to options, here", name)
			}
			wasText, isText := fileOf(o.was), fileOf(o.is)
			was, is := parse(t, wasText), parse(t, isText)
			before, after := was.Policies[0], is.Policies[0]
			for _, other := range fields {
				if differ := !equal(field(before, other), field(after, other)); differ != (other == name) {
					t.Errorf("the files of the row differ in Policy.%s: %v", other, differ)
				}
			}
			if err := validate(t, compile(t), []byte(isText)); err != nil {
				t.Errorf("the schema does not take the file: %v", err)
			}
			if was.String() == is.String() || !equal(field(parse(t, is.String()).Policies[0], name), field(after, name)) {
				t.Errorf("tiersim check does not show it:\n%s", is)
			}
			for _, words := range wordsThatDiffer(t, wasText, isText) {
				if !strings.Contains(whole, words[0]+":") {
					t.Errorf("testdata/whole.yaml, which other tests read, has no %s", words[0])
				}
				if !slices.ContainsFunc(page, func(row string) bool {
					return !slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(row, w) }) &&
						strings.Contains(strings.SplitN(row, ": ", 2)[0], "`"+words[0]+"`")
				}) {
					t.Errorf("docs/configuration.md has no row for %q", words)
				}
			}
			if comments[name] == "" {
				t.Error("it has no comment")
			}
			o.validated(t, name, before)
			o.hidesNothing(t, name, wordsThatDiffer(t, wasText, isText)[0])
			o.compared(t, name)
			o.isDrawn(t, name)
		})
	}
}

// validated checks that a wrong value is an error that names the field.
func (o option) validated(t *testing.T, name string, p tiered.Policy) {
	if (o.bad == nil) == (o.never == "") {
		t.Error("the row must have a wrong value, or say why there is none")
	}
	if o.bad == nil {
		return
	}
	o.bad(&p)
	if err := p.Validate(); err == nil || !strings.Contains(err.Error(), "Policy."+name) {
		t.Errorf("with a wrong value, Validate says %v", err)
	}
}

// hidesNothing checks what is told of a file with two mistakes: a rule's, and one of this field or
// of another one in the row. It is both and nothing else, because a policy with such a field is
// judged by what it could be.
func (o option) hidesNothing(t *testing.T, name string, words []string) {
	withRule := func(f *policyfile.File) string {
		f.HTTP = []policyfile.Route{{Match: "/", Limits: []policyfile.Limit{{
			Policy: f.Policies[0].Name, Key: []policyfile.Key{{Kind: "ip"}}, Missing: httplimit.Refuse, Cost: 1 << 41,
		}}}}
		return f.String()
	}
	check := func(text string, fields ...string) {
		all := mistakesOf(text)
		others := slices.DeleteFunc(slices.Clone(all), func(m string) bool {
			return slices.ContainsFunc(fields, func(f string) bool { return strings.Contains(m, f) })
		})
		if len(others) != 1 || len(all) == 1 || !strings.Contains(others[0], "http[0].limits[0].cost") {
			t.Errorf("told is %q, want what is wrong with %q and with the cost, of\n%s", all, fields, text)
		}
	}
	at := "policies[0]." + strings.Join(words, ".")
	if o.bad != nil {
		f := parse(t, fileOf(o.was))
		o.bad(&f.Policies[0])
		check(withRule(f), "Policy."+name, at)
	}
	unreadable := [][]string{words}
	for word := range fieldsIn(t, fileOf(o.is)) {
		unreadable = append(unreadable, []string{word})
	}
	for _, words := range unreadable {
		if words[0] == "name" { // the rule needs it
			continue
		}
		var file map[string]any
		fatal.If(t, yaml.Unmarshal([]byte(withRule(parse(t, fileOf(o.is)))), &file))
		in := file["policies"].([]any)[0].(map[string]any)
		for _, word := range words[:len(words)-1] {
			in = in[word].(map[string]any)
		}
		in[words[len(words)-1]] = []any{[]any{}}
		check(string(fatal.Get(yaml.Marshal(file))(t)), "policies[0]."+strings.Join(words, "."))
	}
}

// compared checks that SetPolicy and SetPolicies notice another value, and that nobody can change
// the value of a Limiter.
func (o option) compared(t *testing.T, name string) {
	for what, set := range map[string]func(*tiered.Limiter, tiered.Policy) error{
		"SetPolicy":   (*tiered.Limiter).SetPolicy,
		"SetPolicies": func(l *tiered.Limiter, p tiered.Policy) error { return l.Group().SetPolicies([]tiered.Policy{p}) },
	} {
		before, after := parse(t, fileOf(o.was)).Policies[0], parse(t, fileOf(o.is)).Policies[0]
		g := fatal.Get(tiered.NewGroup(remote.NewMemory(), &tiered.Options{Logger: slog.New(slog.DiscardHandler)}))(t)
		l := testgroup.NewLimiter(t, g, before)
		want := field(after, name)
		err := set(l, after)
		if o.stays {
			want = field(before, name)
		}
		removed := name == "Name" && what == "SetPolicies" // another name is another policy
		if refused := err != nil && strings.Contains(err.Error(), "Policy."+name+" is"); refused != o.stays && !removed {
			t.Errorf("%s says %v; must it stay: %v", what, err, o.stays)
		}
		if !equal(field(l.Policy(), name), want) {
			t.Errorf("after %s the field is %v, want %v", what, field(l.Policy(), name), want)
		}
		is := fmt.Sprint(field(l.Policy(), name))
		for _, v := range []reflect.Value{field(l.Policy(), name), field(before, name), field(after, name)} {
			switch v.Kind() { // as a caller may write to what he has given or got
			case reflect.Slice:
				v.Index(0).SetZero()
			case reflect.Map:
				v.Clear()
			}
		}
		if now := fmt.Sprint(field(l.Policy(), name)); now != is {
			t.Errorf("after %s a caller can write to the field of the Limiter: it was %s, and is %s", what, is, now)
		}
		_ = g.Close(context.Background())
	}
}

// isDrawn checks that many plans have more than one value of the field.
func (o option) isDrawn(t *testing.T, name string) {
	if (o.elsewhere == "") != (o.drawn == nil) {
		t.Error("the row must say which other proof draws it, and why")
	}
	const seeds = 300
	legally, otherwise := map[string]bool{}, map[string]bool{}
	for seed := range uint64(seeds) {
		plan := legal.Draw(seed)
		for i, p := range plan.Policies {
			if name == "PerKey" { // the player makes the function
				legally[fmt.Sprint(plan.Plans[i])] = true
			} else {
				legally[fmt.Sprint(field(p, name))] = true
			}
		}
		if o.drawn != nil {
			for _, p := range o.drawn(seed) {
				otherwise[fmt.Sprint(field(p, name))] = true
			}
		}
	}
	switch {
	case o.drawn == nil && len(legally) < 2:
		t.Errorf("%d legal plans have no other value than %v", seeds, legally)
	case o.drawn != nil && len(otherwise) < 2:
		t.Errorf("%d draws of the other proof have no other value than %v", seeds, otherwise)
	case o.drawn != nil && len(legally) > 1:
		t.Error("the legal plans draw it: the row needs no other proof")
	}
}

// fieldsOf returns the names of the fields of a struct, and of the structs of this module in it.
func fieldsOf(s reflect.Type, path string) (all []string) {
	for i := range s.NumField() {
		f := s.Field(i)
		if f.Type.Kind() == reflect.Struct && f.Type != reflect.TypeFor[tiered.Calendar]() && f.Type != reflect.TypeFor[tiered.Further]() { // they change as a whole
			all = append(all, fieldsOf(f.Type, path+f.Name+".")...)
		} else {
			all = append(all, path+f.Name)
		}
	}
	return all
}

// field returns a field of a policy by its name.
func field(p tiered.Policy, name string) reflect.Value {
	v := reflect.ValueOf(p)
	for part := range strings.SplitSeq(name, ".") {
		v = v.FieldByName(part)
	}
	return v
}

// equal compares two values of a field. Of functions it is only known whether there is one.
func equal(a, b reflect.Value) bool {
	if a.Kind() == reflect.Func {
		return a.IsNil() == b.IsNil()
	}
	return reflect.DeepEqual(a.Interface(), b.Interface())
}

// fileOf returns a file with one policy.
func fileOf(fields string) string {
	if !strings.HasPrefix(fields, "name:") {
		fields = "name: one, " + fields
	}
	return "version: 1\npolicies:\n  - {" + fields + "}\n"
}

// wordsThatDiffer returns the fields of the policy that two files do not have in common: the
// outermost with those in it.
func wordsThatDiffer(t *testing.T, was, is string) (all [][]string) {
	before := fieldsIn(t, was)
	for word, value := range fieldsIn(t, is) {
		if reflect.DeepEqual(before[word], value) {
			continue
		}
		words := []string{word}
		if inner, ok := value.(map[string]any); ok && word == "lease" {
			for w := range inner {
				words = append(words, w)
			}
		}
		all = append(all, words)
	}
	return all
}

// fieldsIn returns what a file says of its policy.
func fieldsIn(t *testing.T, text string) map[string]any {
	var f struct{ Policies []map[string]any }
	fatal.If(t, yaml.Unmarshal([]byte(text), &f))
	return f.Policies[0]
}

// commentsOf returns the comments of the fields of Policy, Limit and Lease, by their names in a
// Policy.
func commentsOf(t *testing.T, pattern string) map[string]string {
	files := fatal.Get(filepath.Glob(pattern))(t)
	prefixes, all := map[string]string{"Policy": "", "Limit": "Limit.", "Lease": "Lease."}, map[string]string{}
	for _, path := range files {
		file := fatal.Get(parser.ParseFile(token.NewFileSet(), path, nil, parser.ParseComments))(t)
		ast.Inspect(file, func(n ast.Node) bool {
			spec, ok := n.(*ast.TypeSpec)
			if !ok {
				return true
			}
			prefix, is := prefixes[spec.Name.Name]
			if s, ok := spec.Type.(*ast.StructType); ok && is {
				for _, f := range s.Fields.List {
					for _, name := range f.Names {
						all[prefix+name.Name] = f.Doc.Text() + f.Comment.Text()
					}
				}
			}
			return false
		})
	}
	return all
}

// readConfigurationPage returns the items of the lists of fields.
func readConfigurationPage(t *testing.T) []string {
	text := fatal.Get(os.ReadFile("../../docs/configuration.md"))(t)
	var rows []string
	for _, item := range strings.Split(string(text), "\n- `")[1:] {
		item, _, _ = strings.Cut(item, "\n\n")
		rows = append(rows, "`"+strings.Join(strings.Fields(item), " "))
	}
	return rows
}
