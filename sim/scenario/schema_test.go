package scenario_test

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"go.yaml.in/yaml/v3"

	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/fatal"
	"github.com/tiered-limiter/tiered-limiter/sim/scenario"
)

// The schema for editors is that of the tables. It takes the scenarios of the library, and refuses
// what Parse refuses. After a change: go test ./sim/scenario -update.
func TestSchema(t *testing.T) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	fatal.If(t, e.Encode(scenario.Schema()))
	if *update {
		fatal.If(t, os.WriteFile("schema.json", b.Bytes(), 0o644))
	}
	if is, err := os.ReadFile("schema.json"); err != nil || !bytes.Equal(is, b.Bytes()) {
		t.Errorf("schema.json is not what the tables say: %v", err)
	}
	document := fatal.Get(jsonschema.UnmarshalJSON(&b))(t)
	c := jsonschema.NewCompiler()
	fatal.If(t, c.AddResource("schema.json", document))
	compiled := fatal.Get(c.Compile("schema.json"))(t)
	validate := func(text string) error {
		var content any
		fatal.If(t, yaml.Unmarshal([]byte(text), &content))
		data := fatal.Get(json.Marshal(content))(t)
		value := fatal.Get(jsonschema.UnmarshalJSON(bytes.NewReader(data)))(t)
		return compiled.Validate(value)
	}
	good := []string{ordinary, settable, written}
	files, err := filepath.Glob("../library/*.yaml")
	if err != nil || len(files) < 50 {
		t.Fatal(files, err)
	}
	for _, name := range files {
		text := fatal.Get(os.ReadFile(name))(t)
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
		if _, err := scenario.Parse(text); err == nil {
			t.Errorf("Parse takes %q", more)
		}
	}
}
