package policyfile

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/tiered-limiter/tiered-limiter/internal/defaults"
	"github.com/tiered-limiter/tiered-limiter/tiered"
	"github.com/tiered-limiter/tiered-limiter/tiered/httplimit"
)

// words are what a file writes for values.
var (
	failModes = map[string]tiered.FailMode{"local": tiered.FailLocal, "open": tiered.FailOpen, "closed": tiered.FailClosed}
	standings = map[string]tiered.Standing{
		"off": tiered.StandingOff, "split": tiered.StandingSplit, "on": tiered.StandingOn,
	}
	missings = map[string]httplimit.Missing{
		"refuse": httplimit.Refuse, "exempt": httplimit.Exempt, "together": httplimit.Together,
	}
	preflights = map[string]bool{"exempt": true, "limit": false}
)

// wordFor returns what a file writes for a value.
func wordFor[T comparable](words map[string]T, value T) string {
	for word, v := range words {
		if v == value {
			return word
		}
	}
	return fmt.Sprint(value)
}

// String returns the file as YAML, with all that it does not say: defaults, what they mean, and which requests a rule
// meets. Parse reads it as the same file. Limits of single keys are there if the File was made by Load or Parse.
func (f *File) String() string {
	if f == nil {
		return ""
	}
	policies, http, grpc := yamlList(), yamlList(), yamlList()
	for i, p := range f.Policies {
		var keys []keyLimit
		if i < len(f.details) {
			keys = f.details[i].keys
		}
		policies.Content = append(policies.Content, policyText(p, keys))
	}
	for _, r := range f.HTTP {
		n := yamlMap("match", yamlText(r.Match), "preflights", yamlWord(wordFor(preflights, r.ExemptPreflights)),
			"limits", limitsText(r.Limits))
		n.Content = append(n.Content, yamlMap(r.Exceptions.text()...).Content...)
		n.HeadComment = r.Meets() + ", however the URL is spelled"
		http.Content = append(http.Content, n)
	}
	for _, m := range f.GRPC {
		n := yamlMap("match", yamlText(m.Match), "limits", limitsText(m.Limits))
		n.Content = append(n.Content, yamlMap(m.Exceptions.text()...).Content...)
		grpc.Content = append(grpc.Content, n)
	}
	root := yamlMap("version", yamlWord(Version), "policies", policies, "http", http, "grpc", grpc)
	var b bytes.Buffer
	e := yaml.NewEncoder(&b)
	e.SetIndent(2)
	if err := e.Encode(root); err != nil { // of texts that are no UTF-8, which no file has
		return err.Error()
	}
	return b.String()
}

// policyText writes all fields that the policy's algorithm has, and lists that are not empty.
func policyText(p tiered.Policy, keys []keyLimit) *yaml.Node {
	n := yamlMap("name", yamlText(p.Name), "limit", yamlText(p.Limit.String()))
	add := func(name string, value *yaml.Node, comment string) {
		value.LineComment = comment
		n.Content = append(n.Content, yamlWord(name), value)
	}
	if len(p.Plans) > 0 {
		plans := yamlMap()
		for _, name := range slices.Sorted(maps.Keys(p.Plans)) {
			plans.Content = append(plans.Content, yamlText(name), yamlText(p.Plans[name].String()))
		}
		add("plans", plans, "")
	}
	if len(p.Also) > 0 {
		also := yamlList()
		also.Style = yaml.FlowStyle
		for _, l := range p.Also {
			also.Content = append(also.Content, yamlText(l.String()))
		}
		add("also", also, "")
	}
	add("algorithm", yamlText(p.Algorithm.String()), "")
	if p.Calendar || p.Algorithm == tiered.FixedWindow {
		add("calendar", yamlWord(strconv.FormatBool(p.Calendar)), "")
	}
	add("fail_mode", yamlWord(wordFor(failModes, p.FailMode)), "")
	add("standing", yamlWord(wordFor(standings, p.Standing)), "")
	add("shadow", yamlWord(strconv.FormatBool(p.Shadow)), "")
	if p.Algorithm == tiered.TokenBucket {
		comment := ""
		if p.MaxDebt == 0 {
			comment = "one burst"
		}
		add("max_debt", yamlNumber(p.MaxDebt), comment)
	}
	size, period, comment := yamlNumber(p.Lease.Size), p.Lease.Period, ""
	switch {
	case p.Algorithm == tiered.SlidingLog || p.Lease.Size == tiered.NoLease:
		size = yamlWord("none")
	case p.Lease.Size == 0:
		comment = "the size follows demand"
	}
	if period == 0 && p.Algorithm != tiered.SlidingLog {
		period = defaults.Period
	}
	lease := yamlMap("size", size, "period", yamlWord(period.String()))
	lease.Style = yaml.FlowStyle
	add("lease", lease, comment)
	of := func(name string, prefix bool) {
		limits := yamlMap()
		for _, k := range keys {
			if k.prefix == prefix {
				limits.Content = append(limits.Content, yamlText(k.key), yamlText(k.limit.String()))
			}
		}
		if len(limits.Content) > 0 {
			add(name, limits, "")
		}
	}
	of("keys", false)
	of("prefixes", true)
	return n
}

func limitsText(limits []Limit) *yaml.Node {
	all := yamlList()
	for _, l := range limits {
		key := yamlList()
		key.Style = yaml.FlowStyle
		for _, k := range l.Key {
			key.Content = append(key.Content, yamlText(k.String()))
		}
		if len(l.Key) == 1 {
			key = key.Content[0]
		}
		n := yamlMap("policy", yamlText(l.Policy), "key", key, "missing", yamlWord(wordFor(missings, l.Missing)),
			"cost", yamlNumber(l.Cost))
		if l.Plan.Kind != "" {
			n.Content = append(n.Content, yamlWord("plan"), yamlText(l.Plan.String()))
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

func yamlNumber(n int64) *yaml.Node { return yamlWord(strconv.FormatInt(n, 10)) }
