package policyfile_test

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"go.yaml.in/yaml/v3"

	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/fatal"
	"github.com/tiered-limiter/tiered-limiter/tiered/policyfile"
)

func compile(t *testing.T) *jsonschema.Schema {
	t.Helper()
	document := fatal.Get(jsonschema.UnmarshalJSON(bytes.NewReader(policyfile.Schema)))(t)
	c := jsonschema.NewCompiler()
	fatal.If(t, c.AddResource("schema.json", document))
	s := fatal.Get(c.Compile("schema.json"))(t)
	return s
}

// validate reports what the schema says of a file.
func validate(t *testing.T, s *jsonschema.Schema, text []byte) error {
	t.Helper()
	var content any
	fatal.If(t, yaml.Unmarshal(text, &content))
	asJSON := fatal.Get(json.Marshal(content))(t)
	value := fatal.Get(jsonschema.UnmarshalJSON(bytes.NewReader(asJSON)))(t)
	return s.Validate(value)
}

// The schema takes the files of this project, and refuses what Parse refuses.
func TestSchema(t *testing.T) {
	s := compile(t)
	files := fatal.Get(filepath.Glob("testdata/*.yaml"))(t)
	for _, name := range append(files, "../../examples/services/api/policies.yaml") {
		text := fatal.Get(os.ReadFile(name))(t)
		if err := validate(t, s, text); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	const good = "version: 1\npolicies: [{name: a, limit: 1/s}]\n"
	for _, more := range []string{
		"", "http: [{match: /, limits: []}]\n", "http: [{match: /, limits: [{policy: a, key: ip}], preflights: exempt}]\n",
		"grpc: [{match: /, limits: []}]\n",
		"http: [{match: /, limits: [{policy: a, key: ip}], ranges: {10.0.0.0/8: unlimited, '::1': a}}]\n",
		"grpc: [{match: /, limits: [], address: ip, ranges: {10.0.0.0/8: unlimited}}]\n",
	} {
		fatal.If(t, validate(t, s, []byte(good+more)))
		fatal.Get(policyfile.Parse("p.yaml", []byte(good+more)))(t)
	}
	for _, text := range []string{
		"version: 2\npolicies: []\n",
		"policies: []\n",
		"version: 1\n",
		"7\n",
		good + "more: 1\n",
		"version: 1\npolicies: {}\n",
		"version: 1\npolicies: [{name: a}]\n",
		"version: 1\npolicies: [{limit: 1/s}]\n",
		"version: 1\npolicies: [{name: a, limit: [1/s]}]\n",
		"version: 1\npolicies: [{name: a, limit: 1/s, burst: 3}]\n",
		"version: 1\npolicies: [{name: a, limit: 1/s, algorithm: gcra}]\n",
		"version: 1\npolicies: [{name: a, limit: 1/s, fail_mode: maybe}]\n",
		"version: 1\npolicies: [{name: a, limit: 1/s, max_debt: -1}]\n",
		"version: 1\npolicies: [{name: a, limit: 1/s, shadow: 1}]\n",
		"version: 1\npolicies: [{name: a, limit: 1/s, keys: {'': 1/s}}]\n",
		"version: 1\npolicies: [{name: a, limit: 1/s, lease: {length: 3}}]\n",
		good + "http: [{match: /}]\n",
		good + "http: [{limits: []}]\n",
		good + "http: [{match: /, limits: [], preflights: yes}]\n",
		good + "grpc: [{match: /}]\n",
		good + "http: [{match: /, limits: [{policy: a, key: ip}], ranges: [10.0.0.0/8]}]\n",
		good + "http: [{match: /, limits: [{policy: a, key: ip}], ranges: {office: unlimited}}]\n",
		good + "http: [{match: /, limits: [], address: method, ranges: {10.0.0.0/8: unlimited}}]\n",
		good + "grpc: [{match: /, limits: [], address: hops 1, ranges: {10.0.0.0/8: unlimited}}]\n",
		good + "http: [{match: /, limits: [{policy: a}]}]\n",
		good + "http: [{match: /, limits: [{policy: a, key: header}]}]\n",
		good + "http: [{match: /, limits: [{policy: a, key: metadata x}]}]\n",
		good + "http: [{match: /, limits: [{policy: a, key: []}]}]\n",
		good + "http: [{match: /, limits: [{policy: a, key: ip, missing: no}]}]\n",
		good + "grpc: [{match: a.B, limits: [{policy: a, key: ip}]}]\n",
		good + "grpc: [{match: /, limits: [{policy: a, key: header x}]}]\n",
		good + "grpc: [{match: /, limits: [{policy: a, key: forwarded-for}]}]\n",
	} {
		if err := validate(t, s, []byte(text)); err == nil {
			t.Errorf("the schema takes %q", text)
		}
		if _, err := policyfile.Parse("p.yaml", []byte(text)); err == nil {
			t.Errorf("Parse takes %q", text)
		}
	}
}

// Parse and the schema know the same fields at each place, and the same words.
func TestSchemaHasAllFields(t *testing.T) {
	var schema struct {
		Properties map[string]struct {
			Items struct{ Properties map[string]object }
		}
		Defs map[string]object `json:"$defs"`
	}
	fatal.If(t, json.Unmarshal(policyfile.Schema, &schema))
	top := object{Properties: map[string]json.RawMessage{}}
	for name := range schema.Properties {
		top.Properties[name] = nil
	}
	var lease object
	fatal.If(t, json.Unmarshal(schema.Defs["policy"].Properties["lease"], &lease))
	http, grpc := schema.Properties["http"].Items.Properties, schema.Properties["grpc"].Items.Properties
	for place, c := range map[string]struct {
		text string
		is   object
	}{
		"file":       {"no: 1\n", top},
		"policy":     {"policies: [{no: 1}]\n", schema.Defs["policy"]},
		"lease":      {"policies: [{lease: {no: 1}}]\n", lease},
		"http":       {"http: [{no: 1}]\n", object{Properties: raw(http)}},
		"http limit": {"http: [{limits: [{no: 1}]}]\n", *http["limits"].Items},
		"grpc":       {"grpc: [{no: 1}]\n", object{Properties: raw(grpc)}},
		"grpc limit": {"grpc: [{limits: [{no: 1}]}]\n", *grpc["limits"].Items},
	} {
		_, err := policyfile.Parse("p.yaml", []byte(c.text))
		m := regexp.MustCompile(`this field must be one of (.*)`).FindStringSubmatch(err.Error())
		if m == nil {
			t.Fatalf("%s: %v", place, err)
		}
		known := strings.Split(m[1], ", ")
		slices.Sort(known)
		var inSchema []string
		for name := range c.is.Properties {
			inSchema = append(inSchema, name)
		}
		slices.Sort(inSchema)
		if !slices.Equal(known, inSchema) {
			t.Errorf("%s: Parse has %q, the schema %q", place, known, inSchema)
		}
	}
	for section, words := range map[string]string{"http": "httpKey", "grpc": "grpcKey"} {
		_, err := policyfile.Parse("p.yaml", []byte(section+": [{limits: [{key: no}]}]\n"))
		m := regexp.MustCompile(`key: is "no": must be (.*)`).FindStringSubmatch(err.Error())
		if m == nil {
			t.Fatal(err)
		}
		known := map[string]bool{}
		for _, w := range regexp.MustCompile(`, | or `).Split(m[1], -1) {
			w, _, _ = strings.Cut(w, " ")
			known[w] = true
		}
		for _, example := range schema.Defs[words].Examples {
			w, _, _ := strings.Cut(example, " ")
			delete(known, w)
			if !regexp.MustCompile(schema.Defs[words].Pattern).MatchString(example) {
				t.Errorf("%s: the pattern does not match %q", words, example)
			}
			match := map[string]string{"http": "/{tenant}", "grpc": "/"}[section]
			text := "version: 1\npolicies: [{name: a, limit: 1/s}]\n" + section + ": [{match: '" + match +
				"', limits: [{policy: a, key: " + example + "}]}]\n"
			fatal.Get(policyfile.Parse("p.yaml", []byte(text)))(t)
		}
		if len(known) > 0 {
			t.Errorf("%s: no example has %v", words, known)
		}
	}
}

// object is what a schema says of an object.
type object struct {
	Properties map[string]json.RawMessage
	Items      *object
	Pattern    string
	Examples   []string
}

// raw forgets what the properties are.
func raw(all map[string]object) map[string]json.RawMessage {
	names := map[string]json.RawMessage{}
	for name := range all {
		names[name] = nil
	}
	return names
}
