package policyfile

import (
	"bytes"
	"fmt"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/tiered-limiter/tiered-limiter/tiered/httplimit"
)

var preflights = map[string]bool{"exempt": true, "limit": false}

var missings = map[string]httplimit.Missing{
	"refuse": httplimit.Refuse, "exempt": httplimit.Exempt, "together": httplimit.Together, "next": httplimit.Next,
}

// String returns the file as YAML, with all that it does not say: defaults, what they mean, and
// which requests a rule meets. Parse reads it as the same file. Limits of single keys are there if
// the File was made by Load or Parse.
func (f *File) String() string {
	if f == nil {
		return ""
	}
	policies, http, grpc := yamlList(), yamlList(), yamlList()
	for i, p := range f.Policies {
		said := policy{Policy: p}
		if i < len(f.read) {
			said.keys = f.read[i].keys
		}
		policies.Content = append(policies.Content, said.written(policyFields))
	}
	for _, r := range f.HTTP {
		said := []any{"match", yamlText(r.Match), "preflights", yamlFor(preflights)(r.ExemptPreflights), "limits", limitsText(r.Limits)}
		n := yamlMap(append(said, r.Exceptions.text()...)...)
		n.HeadComment = r.Meets() + ", however the URL is spelled"
		http.Content = append(http.Content, n)
	}
	for _, m := range f.GRPC {
		said := []any{"match", yamlText(m.Match), "limits", limitsText(m.Limits)}
		grpc.Content = append(grpc.Content, yamlMap(append(said, m.Exceptions.text()...)...))
	}
	root := yamlMap("version", yamlWord(Version), "policies", policies, "http", http, "grpc", grpc)
	if len(f.AtOnce) > 0 {
		atOnce := yamlList()
		for _, p := range f.AtOnce {
			atOnce.Content = append(atOnce.Content, atOnceText(p))
		}
		root.Content = append(root.Content, yamlWord("at_once"), atOnce)
	}
	var b bytes.Buffer
	e := yaml.NewEncoder(&b)
	e.SetIndent(2)
	if err := e.Encode(root); err != nil { // of texts that are no UTF-8, which no file has
		return err.Error()
	}
	return b.String()
}

func limitsText(limits []Limit) *yaml.Node {
	all := yamlList()
	for _, l := range limits {
		key := yamlFlow(l.Key)
		if len(l.Key) == 1 {
			key = key.Content[0]
		}
		n := yamlMap()
		if l.Policy != "" {
			n = yamlMap("policy", yamlText(l.Policy))
		}
		if l.AtOnce != "" {
			n.Content = append(n.Content, yamlWord("at_once"), yamlText(l.AtOnce))
		}
		n.Content = append(n.Content, yamlMap("key", key, "missing", yamlFor(missings)(l.Missing)).Content...)
		if l.Policy != "" {
			n.Content = append(n.Content, yamlWord("cost"), yamlValue(l.Cost))
		}
		if l.Plan.Kind != "" {
			n.Content = append(n.Content, yamlWord("plan"), yamlText(l.Plan.String()))
		}
		if l.Policy != "" {
			n.Content = append(n.Content, yamlWord("hidden"), yamlValue(l.Hidden))
		}
		n.Style = yaml.FlowStyle
		all.Content = append(all.Content, n)
	}
	return all
}

// String returns the key as a file has it, as in "header X-User".
func (k Key) String() string {
	words := []string{k.Kind}
	if k.Name != "" {
		words = append(words, k.Name)
	}
	for _, p := range k.Proxies {
		words = append(words, p.String())
	}
	if k.Hops != 0 {
		words = append(words, strconv.Itoa(k.Hops))
	}
	if k.IPv4 != 0 || k.IPv6 != 0 {
		words = append(words, strconv.Itoa(k.IPv4), strconv.Itoa(k.IPv6))
	}
	return strings.Join(words, " ")
}

// yamlMap returns a mapping of names and their values.
func yamlMap(pairs ...any) *yaml.Node {
	n := &yaml.Node{Kind: yaml.MappingNode}
	for i := 0; i+1 < len(pairs); i += 2 {
		n.Content = append(n.Content, yamlWord(pairs[i].(string)), pairs[i+1].(*yaml.Node))
	}
	return n
}

func yamlList() *yaml.Node { return &yaml.Node{Kind: yaml.SequenceNode} }

// yamlText is a text, with quotes if it would be something else without them.
func yamlText(s string) *yaml.Node { return &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: s} }

// yamlWord is a word or a number without quotes.
func yamlWord(s string) *yaml.Node { return &yaml.Node{Kind: yaml.ScalarNode, Value: s} }

func yamlValue[T any](value T) *yaml.Node { return yamlWord(fmt.Sprint(value)) }

// yamlString is the text of a value.
func yamlString[T fmt.Stringer](value T) *yaml.Node { return yamlText(value.String()) }

// yamlFlow is a list of values in one line.
func yamlFlow[T fmt.Stringer](all []T) *yaml.Node {
	n := &yaml.Node{Kind: yaml.SequenceNode, Style: yaml.FlowStyle}
	for _, value := range all {
		n.Content = append(n.Content, yamlString(value))
	}
	return n
}

// yamlFor returns what writes the word for a value.
func yamlFor[T comparable](words map[string]T) func(T) *yaml.Node {
	return func(value T) *yaml.Node {
		for word, v := range words {
			if v == value {
				return yamlWord(word)
			}
		}
		return yamlValue(value)
	}
}
