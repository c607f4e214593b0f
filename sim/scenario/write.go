package scenario

import (
	"bytes"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// String is s as YAML: a field that is 0 is left out. For a valid s it parses to the same.
func (s *Scenario) String() string {
	var b bytes.Buffer
	e := yaml.NewEncoder(&b)
	e.SetIndent(2)
	if err := e.Encode(s.node()); err != nil {
		return fmt.Sprintf("# %v\n", err) // a text that is no UTF-8, which is not valid
	}
	return b.String()
}

// MarshalText is [Scenario.String], so JSON has a scenario as a text.
func (s Scenario) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText is [Parse], but whether all fits together is for [Scenario.Validate] to say.
func (s *Scenario) UnmarshalText(text []byte) error {
	read, err := parse("", string(text), func(*reader, *Scenario) {})
	if err == nil {
		*s = *read
	}
	return err
}

// node is s as a node of YAML.
func (s *Scenario) node() *yaml.Node {
	root := &yaml.Node{Kind: yaml.MappingNode}
	for _, name := range tags(s) {
		value := &yaml.Node{Kind: yaml.SequenceNode}
		switch name {
		case "expect":
			for i := range s.Expect {
				add(value, scalar(s.Expect[i].String()))
			}
		case "sometimes":
			value = words(s.Sometimes)
		case "sweep":
			value.Kind = yaml.MappingNode
			for _, a := range s.Sweep {
				add(value, scalar(a.Path), words(a.Values))
			}
		default:
			if f := find("").field(name); f != nil {
				if v := f.get(s); !isZero(v) {
					add(root, scalar(name), f.node(v))
				}
				continue
			}
			m := find(name)
			for _, item := range m.items(s) {
				add(value, m.node(item))
			}
			if m.most == 0 {
				value = value.Content[0]
			}
		}
		if len(value.Content) > 0 {
			add(root, scalar(name), value)
		}
	}
	return root
}

// node is an item as a node of YAML.
func (m *mapping) node(item any) *yaml.Node {
	n := &yaml.Node{Kind: yaml.MappingNode, Style: yaml.FlowStyle}
	for i := range m.fields {
		if v := m.fields[i].get(item); !isZero(v) {
			add(n, scalar(m.fields[i].name), m.fields[i].node(v))
		}
	}
	return n
}

// node is a value of the field. A text is in quotes if it would be a number without.
func (f *field) node(v any) *yaml.Node {
	n := scalar(f.format(v))
	if _, ok := v.(string); ok {
		n.Tag = "!!str"
	}
	return n
}

// scalar is a value as it is written.
func scalar(text string) *yaml.Node {
	n := &yaml.Node{Kind: yaml.ScalarNode, Value: text}
	if slices.Contains([]string{"", "~", "null", "Null", "NULL"}, text) {
		n.Tag = "!!str"
	}
	return n
}

func words(all []string) *yaml.Node {
	n := &yaml.Node{Kind: yaml.SequenceNode, Style: yaml.FlowStyle}
	for _, text := range all {
		add(n, scalar(text))
	}
	return n
}

func add(to *yaml.Node, nodes ...*yaml.Node) { to.Content = append(to.Content, nodes...) }

// String is f in a line, without its time: "blackhole for=15s".
func (f *Fault) String() string { return f.Kind + find("faults").parameters(f, 2) }

// String is e as a scenario has it: "decide_p99 <= 1ms after=20s".
func (e *Expectation) String() string {
	value := formatPlain(e.Value)
	if m, known := metric(e.Metric); known {
		value = m.Unit.Format(e.Value)
	}
	return e.Metric + " " + e.Op + " " + value + expectations.parameters(e, 0)
}

// parameters are the fields of an item from one on, in a line.
func (m *mapping) parameters(item any, from int) (line string) {
	for _, f := range m.fields[from:] {
		if v := f.get(item); !isZero(v) {
			text := f.format(v)
			if strings.ContainsAny(text, "\" \\\t\n") {
				text = strconv.Quote(text)
			}
			line += " " + f.name + "=" + text
		}
	}
	return line
}
