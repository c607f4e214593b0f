package scenario

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"go.yaml.in/yaml/v3"

	"github.com/tiered-limiter/tiered-limiter/internal/rig/must"
)

type object = map[string]any

// texts are what values look like as text, by how their form begins. Numbers may be numbers.
var texts = []struct {
	form, pattern string
	types         any
}{
	{"a duration", `^-?([0-9]+([.][0-9]*)?(ns|us|µs|ms|s|m|h))+$`, "string"},
	{"a whole number per period", `^[0-9_]+/.`, "string"},
	{"a whole number", `^-?[0-9_]+$`, []string{"integer", "string"}},
	{"a number per period", `^[0-9_.]+(e-?[0-9]+)?/.`, "string"},
	{"a number of processes", `^[0-9_.]+%?$`, []string{"integer", "string"}},
	{"a number", `^[0-9_.]+(e-?[0-9]+)?$`, []string{"number", "string"}},
	{"a ratio", `^[0-9_.]+(e-?[0-9]+)?%?$`, []string{"number", "string"}},
}

// schema is a field's part of the schema.
func (f *field) schema() object {
	says := f.what + ": " + f.span
	if f.left != "" {
		says += "; left out it is " + f.left
	}
	if f.words != nil {
		return object{"enum": f.words, "description": says}
	}
	for _, t := range texts {
		if f.form != "" && strings.HasPrefix(f.form, t.form) {
			return object{"type": t.types, "pattern": t.pattern, "description": says}
		}
	}
	one := object{"type": "string", "minLength": 1, "description": says}
	if !strings.Contains(f.pattern, `\p`) { // what each editor knows
		one["pattern"] = f.pattern
	}
	return one
}

// schema is what a mapping may have, and for each kind what it must and may have.
func (m *mapping) schema() object {
	fields := object{}
	for _, f := range m.fields {
		fields[f.name] = f.schema()
	}
	one := object{"type": "object", "additionalProperties": false, "properties": fields}
	if m.needs != nil {
		one["required"] = m.needs
	}
	var all []object
	for _, k := range m.kinds {
		_, takes, needs := m.takes(k.Name)
		all = append(all, object{
			"if":   object{"properties": object{m.by: object{"const": k.Name}}},
			"then": object{"required": needs, "propertyNames": object{"enum": takes}, "description": k.What},
		})
	}
	if all != nil {
		one["allOf"] = all
	}
	if m.most == 0 {
		return one
	}
	return object{"type": "array", "maxItems": m.most, "items": one}
}

func schema() object {
	top := find("").schema()
	top["$schema"] = "https://json-schema.org/draft/2020-12/schema"
	top["title"] = "A scenario of tiersim, the simulator of tiered-limiter"
	top["description"] = "What sim/scenarios.md explains."
	top["required"] = []string{"name", "limits", "fleet", "traffic", "run"}
	fields := top["properties"].(object)
	for i := range mappings {
		if m := &mappings[i]; m.path != "" {
			fields[m.path] = m.schema()
		}
	}
	for _, name := range []string{"limits", "traffic"} {
		fields[name].(object)["minItems"] = 1
	}
	list := func(most int, items object) object { return object{"type": "array", "maxItems": most, "items": items} }
	fields["expect"] = list(maxExpect, object{
		"type": "string", "description": "what must hold, as in shortfall <= 5% after=20s before=50s limit=api",
		"pattern": `^(` + strings.Join(metricNames(), "|") + `)\s+[<>]=\s+\S+(\s+(after|before|limit)=\S+)*$`,
	})
	fields["sometimes"] = list(len(Happenings), object{"enum": Happenings})
	fields["sweep"] = object{
		"type": "object", "maxProperties": maxAxes, "description": "paths of fields, and the values of each",
		"additionalProperties": object{
			"type": "array", "minItems": 1, "maxItems": maxValues,
			"items": object{"type": []string{"string", "number"}},
		},
	}
	return top
}

// The schema for editors is that of the tables. It takes the scenarios of the library, and refuses what Parse refuses.
// After a change: go test ./sim/scenario -update.
func TestSchema(t *testing.T) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	must.Do(t, e.Encode(schema()))
	if *update {
		must.Do(t, os.WriteFile("schema.json", b.Bytes(), 0o644))
	}
	if is, err := os.ReadFile("schema.json"); err != nil || !bytes.Equal(is, b.Bytes()) {
		t.Errorf("schema.json is not what the tables say: %v", err)
	}
	document := must.Get(jsonschema.UnmarshalJSON(&b))(t)
	c := jsonschema.NewCompiler()
	must.Do(t, c.AddResource("schema.json", document))
	compiled := must.Get(c.Compile("schema.json"))(t)
	validate := func(text string) error {
		var content any
		must.Do(t, yaml.Unmarshal([]byte(text), &content))
		data := must.Get(json.Marshal(content))(t)
		value := must.Get(jsonschema.UnmarshalJSON(bytes.NewReader(data)))(t)
		return compiled.Validate(value)
	}
	good := []string{ordinary, settable, written}
	files, err := filepath.Glob("../library/*.yaml")
	if err != nil || len(files) < 50 {
		t.Fatal(files, err)
	}
	for _, name := range files {
		text := must.Get(os.ReadFile(name))(t)
		good = append(good, string(text))
	}
	for _, text := range good {
		if err := validate(text); err != nil {
			t.Errorf("the schema refuses\n%s\n%v", text, err)
		}
	}
	for _, more := range []string{
		"name: ''", "learn: [a]", "limits: []", "limits: [{name: a}]", "limits: [{name: a, rate: 1/s, size: 3}]",
		"limits: [{name: a, rate: 5}]", "fleet: {}", "fleet: {n: 2.5}", "fleet: {n: 2, mode: shut}", "traffic: []",
		"traffic: [{shape: wave}]", "traffic: [{shape: closed, rate: 1/s}]", "traffic: [{shape: ramp, rate: 1/s}]",
		"net: {rtt: 5}", "run: 60", "warmup: soon", "faults: [{at: 7s, kind: blakhole}]", "faults: [{kind: flush}]",
		"faults: [{at: 7s, kind: flush, for: 1s}]", "faults: [{at: 7s, kind: refuse}]", "expect: [alone <= ]",
		"faults: [{at: 7s, kind: cut, procs: x}]", "expect: [losts <= 5]", "expect: [alone <= 5 for=3s]",
		"sometimes: [lunch]", "limits: [{name: a b, rate: 1/s}]", "sometimes: waited",
		"sweep: {fleet.n: []}", "sweep: [fleet.n]", "limit: []",
	} {
		text := full("+\n" + more)
		if validate(text) == nil {
			t.Errorf("the schema takes %q", more)
		}
		if _, err := Parse(text); err == nil {
			t.Errorf("Parse takes %q", more)
		}
	}
}
