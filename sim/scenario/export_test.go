package scenario

import (
	"strings"
)

// What the tables of the language say of a field to editors, in schema.json.

// Schema is that of the tables.
func Schema() any { return schema() }

// Paths are those that can be set in a scenario.
func Paths(s *Scenario) (all []string) {
	for _, target := range s.targets() {
		all = append(all, target.path)
	}
	return all
}

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
