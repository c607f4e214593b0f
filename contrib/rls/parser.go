package rls

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	ratelimit "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"go.yaml.in/yaml/v3"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/tiered-limiter/tiered-limiter/internal/defaults"
	"github.com/tiered-limiter/tiered-limiter/internal/strictyaml"
	"github.com/tiered-limiter/tiered-limiter/lua"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

type entry = ratelimit.RateLimitDescriptor_Entry

// What the aliases of a file can grow to is bounded.
const (
	maxNodes = 1_000_000 // values
	maxDepth = 32        // descriptors within descriptors, and merge keys; an alias may be within itself
)

// maxProblems is how many mistakes of a file are told.
const maxProblems = 100

// parser reads a file. It goes on after a mistake, to find the others.
type parser struct {
	config   *Config
	file     string
	place    func(line int) string // of a resource; nil for a file
	line     int                   // lines before the part that is read
	merges   bool                  // the domain may be there already
	nodes    int
	depth    int
	problems []error
}

func (p *parser) bad(n *yaml.Node, format string, args ...any) {
	if len(p.problems) > maxProblems {
		return
	}
	if len(p.problems) == maxProblems {
		format, args = "there are more than %d mistakes", []any{maxProblems}
	}
	p.problems = append(p.problems, fmt.Errorf("%s"+format, append([]any{p.at(n)}, args...)...))
}

// at says where a value is: in a file by line and column, in a resource by its descriptor.
func (p *parser) at(n *yaml.Node) string {
	if p.place != nil {
		return p.file + ": " + p.place(p.line+n.Line)
	}
	return fmt.Sprintf("%s:%d:%d: ", p.file, p.line+n.Line, n.Column)
}

// warn tells of what is valid, and hardly meant so.
func (p *parser) warn(n *yaml.Node, format string, args ...any) {
	p.config.warn(p.at(n) + fmt.Sprintf(format, args...))
}

func (p *parser) parse(text []byte) {
	if p.parseParts(text) {
		return
	}
	if top := p.document(text); top != nil {
		p.domain(top)
	}
}

// domain reads a domain. It returns where more of its descriptors belong.
func (p *parser) domain(top *yaml.Node) (at *node, path []string) {
	fields := p.fields(top, "domain", "descriptors", "tiered")
	if fields == nil {
		return new(node), []string{""}
	}
	name := p.text(fields["domain"])
	root := p.config.domains[name]
	switch {
	case name == "":
		p.bad(top, "domain is empty: must be set")
	case root != nil && !p.merges:
		p.bad(fields["domain"], "domain is %.64q: another file or place has it", name)
	}
	if root == nil || !p.merges {
		root = &domain{}
	}
	if name != "" {
		p.config.domains[name] = root
	}
	if own := fields["tiered"]; own != nil {
		if n := p.fields(own, "together")["together"]; n != nil {
			p.together(root, n)
		}
	}
	p.descriptors(&root.node, []string{name}, fields["descriptors"])
	return &root.node, []string{name}
}

// document returns the root of the only document, or nil. Empty ones may come after it, as after a
// last "---".
func (p *parser) document(text []byte) *yaml.Node {
	d := yaml.NewDecoder(bytes.NewReader(text))
	var first *yaml.Node
	for {
		var doc yaml.Node
		switch err := d.Decode(&doc); {
		case errors.Is(err, io.EOF) && first == nil:
			p.problems = append(p.problems, fmt.Errorf("%s: the file is empty: must have a domain", p.file))
			return nil
		case errors.Is(err, io.EOF):
			return first
		case err != nil && first == nil:
			p.problems = append(p.problems, strictyaml.Syntax(p.file, text, err))
			return nil
		case err != nil:
			p.problems = append(p.problems, fmt.Errorf("%s: the second document of the file is no YAML: must be a file of its own", p.file))
			return nil
		case first == nil:
			first = doc.Content[0]
		case doc.Content[0].Tag != "!!null":
			p.bad(doc.Content[0], "this is a second document: must be a file of its own")
			return first
		}
	}
}

// together reads whether all descriptors of a request are decided together. Files of one domain may
// not contradict each other: which one is read last depends on their names.
func (p *parser) together(d *domain, n *yaml.Node) {
	is := p.truth(n)
	if d.together != nil && *d.together != is {
		p.bad(n, "together is %t, but %t in another file of the domain: must be the same", is, *d.together)
	}
	d.together = &is
}

// fields returns the fields of a mapping, by name. It is nil if n is something else.
func (p *parser) fields(n *yaml.Node, known ...string) map[string]*yaml.Node {
	if n = p.follow(n); n == nil {
		return nil
	}
	if n.Kind != yaml.MappingNode {
		p.bad(n, "%s: must be fields with values", shown(n))
		return nil
	}
	all := map[string]*yaml.Node{}
	merged := map[string]*yaml.Node{}
	for i := 0; i < len(n.Content); i += 2 {
		name, value := n.Content[i], n.Content[i+1]
		switch {
		case name.Tag == "!!merge":
			p.merge(merged, value, known)
		case !slices.Contains(known, name.Value):
			p.bad(name, "%.64q is not a field here: must be one of %s", name.Value, strings.Join(known, ", "))
		case all[name.Value] != nil:
			p.bad(name, "%s is there twice", name.Value)
		default:
			all[name.Value] = value
		}
	}
	maps.Copy(merged, all)
	return merged
}

// merge adds the fields of the mapping in a merge key, or of a list of them. The first one counts.
func (p *parser) merge(all map[string]*yaml.Node, n *yaml.Node, known []string) {
	p.depth++
	defer func() { p.depth-- }()
	if p.depth > maxDepth {
		p.bad(n, "this is within %d others: must be within at most %d", p.depth-1, maxDepth-1)
		return
	}
	from := []*yaml.Node{n}
	if n.Kind == yaml.SequenceNode {
		from = n.Content
	}
	for _, n := range from {
		for name, value := range p.fields(n, known...) {
			if all[name] == nil {
				all[name] = value
			}
		}
	}
}

// follow returns what an alias stands for. It is nil if there is too much of it.
func (p *parser) follow(n *yaml.Node) *yaml.Node {
	if p.nodes++; p.nodes > maxNodes {
		if p.nodes == maxNodes+1 {
			p.bad(n, "the file has more than %d values with its aliases: must have fewer", maxNodes)
		}
		return nil
	}
	if n.Kind == yaml.AliasNode {
		return n.Alias
	}
	return n
}

// shown tells what a value is, without more of it than a line.
func shown(n *yaml.Node) string {
	switch n.Kind {
	case yaml.SequenceNode:
		return "a list"
	case yaml.MappingNode:
		return "fields"
	}
	return fmt.Sprintf("%.64q", n.Value)
}

// scalar returns the text of a value that is no list and no mapping. It is "" if there is none.
func (p *parser) scalar(n *yaml.Node) (*yaml.Node, string) {
	if n == nil {
		return nil, ""
	}
	if n = p.follow(n); n == nil {
		return nil, ""
	}
	if n.Kind != yaml.ScalarNode {
		p.bad(n, "%s: must be a single value", shown(n))
		return nil, ""
	}
	if n.Tag == "!!null" {
		return nil, ""
	}
	return n, n.Value
}

func (p *parser) text(n *yaml.Node) string {
	_, s := p.scalar(n)
	return s
}

func (p *parser) truth(n *yaml.Node) (is bool) {
	if n, _ := p.scalar(n); n != nil {
		if err := n.Decode(&is); err != nil {
			p.bad(n, "%s: must be true or false", shown(n))
		}
	}
	return is
}

func (p *parser) number(n *yaml.Node, bits int) uint64 {
	n, _ = p.scalar(n)
	if n == nil {
		return 0
	}
	var x uint64 // as YAML writes it: also 1_000 and 0x10
	if n.ShortTag() != "!!int" || n.Decode(&x) != nil || x >= 1<<bits {
		p.bad(n, "%s: must be a whole number, 0 to %d", shown(n), uint64(1)<<bits-1)
		return 0
	}
	return x
}

// list calls f for the elements of a list.
func (p *parser) list(n *yaml.Node, f func(*yaml.Node)) {
	if n == nil {
		return
	}
	if n = p.follow(n); n == nil || n.Tag == "!!null" {
		return
	}
	if n.Kind != yaml.SequenceNode {
		p.bad(n, "%s: must be a list", shown(n))
		return
	}
	for _, e := range n.Content {
		f(e)
	}
}

// descriptors reads the children of a node.
func (p *parser) descriptors(parent *node, path []string, n *yaml.Node) {
	p.depth++
	defer func() { p.depth-- }()
	p.list(n, func(n *yaml.Node) {
		if p.depth > maxDepth {
			p.bad(n, "this descriptor is within %d others: must be within at most %d", p.depth-1, maxDepth-1)
			return
		}
		p.descriptor(parent, path, n)
	})
}

func (p *parser) descriptor(parent *node, path []string, n *yaml.Node) {
	fields := p.fields(n, "key", "value", "rate_limit", "descriptors", "shadow_mode", "quota_mode", "detailed_metric",
		"value_to_metric", "share_threshold", "metadata", "tiered")
	if fields == nil {
		return
	}
	key, value := p.text(fields["key"]), p.text(fields["value"])
	if key == "" {
		p.bad(n, "key is empty: must be set")
		return
	}
	name := key
	if value != "" {
		name += "_" + value
	}
	if parent.children[name] != nil {
		p.bad(n, "there is another descriptor with this key and value here")
		return
	}
	path = append(slices.Clip(path), name)
	child := &node{key: key, in: parent, valued: p.truth(fields["value_to_metric"])}
	if parent.children == nil {
		parent.children = map[string]*node{}
	}
	parent.children[name] = child
	if value != "" {
		p.doubt(fields["value"], parent, name, value)
	}
	if strings.Contains(name, "*") {
		parent.wildcards = append(parent.wildcards, wildcard{strings.Split(name, "*"), child})
	}
	if p.truth(fields["share_threshold"]) {
		if child.share = value; !strings.Contains(value, "*") {
			p.bad(fields["share_threshold"], "share_threshold is true, but value has no asterisk: must have one")
		}
	}
	detailed := p.truth(fields["detailed_metric"])
	shadow, quota := p.truth(fields["shadow_mode"]), p.truth(fields["quota_mode"])
	switch limit, own := fields["rate_limit"], fields["tiered"]; {
	case limit != nil && limit.Tag != "!!null":
		child.rule = p.rule(path, limit, own)
		child.rule.policy.Shadow, child.rule.quota = shadow, quota
		child.rule.metadata = p.metadata(fields["metadata"])
		child.rule.names = namesOf(child, path[1:], detailed)
		child.rule.fields += len(fields)
	case own != nil:
		p.bad(own, "tiered is set, but rate_limit is not: must have both")
	}
	if n := fields["metadata"]; n != nil && child.rule == nil {
		p.warn(n, "metadata is set, but rate_limit is not: no answer has it")
	}
	p.descriptors(child, path, fields["descriptors"])
	if value == "" && child.rule == nil && child.children == nil {
		p.warn(n, "this descriptor has no rate_limit and no descriptors: it limits nothing")
	}
}

// ofExpression matches what texts for Envoy rarely have, and regular expressions often.
var ofExpression = regexp.MustCompile(`^\^|\$$|\.[*+]|\[.*\]|\\[dwsb./]|\(\?|\(.*\|.*\)`)

// doubt warns of a value that no descriptor may ever have. name is its key with the value. Like all
// that is said of a file, it shows no value of a descriptor: that may be a client's, and it is in
// the log.
func (p *parser) doubt(n *yaml.Node, parent *node, name, value string) {
	switch {
	case ofExpression.MatchString(value):
		p.warn(n, "value looks like a regular expression: it is compared as text. An asterisk stands for any characters")
	case isRange(value) && !strings.HasPrefix(name, "masked_remote_address_"):
		p.warn(n, "value is a range of addresses: it is compared as text. Let Envoy send masked_remote_address, or a descriptor of its own")
	case isRange(value) && !isMasked(value):
		p.warn(n, "value is a range that Envoy never sends: masked_remote_address has zeros behind the prefix")
	case strings.TrimSpace(value) != value:
		p.warn(n, "value begins or ends with a space: no header does")
	}
	prefix, _, ok := strings.Cut(name, "*")
	for _, earlier := range parent.wildcards {
		if ok && len(earlier.parts) == 2 && earlier.parts[1] == "" && strings.HasPrefix(prefix, earlier.parts[0]) {
			p.warn(n, "no descriptor meets this value: a value above, with an asterisk, takes them all")
			return
		}
	}
}

// isRange reports whether a value is addresses: a CIDR, or the first and the last of them.
func isRange(value string) bool {
	if _, err := netip.ParsePrefix(value); err == nil {
		return true
	}
	first, last, ok := strings.Cut(value, "-")
	_, err1 := netip.ParseAddr(strings.TrimSpace(first))
	_, err2 := netip.ParseAddr(strings.TrimSpace(last))
	return ok && err1 == nil && err2 == nil
}

// isMasked reports whether a value is a CIDR as Envoy writes it.
func isMasked(value string) bool {
	p, err := netip.ParsePrefix(value)
	return err == nil && p == p.Masked()
}

// metadata reads values that JSON has, under names.
func (p *parser) metadata(n *yaml.Node) *structpb.Struct {
	if n == nil || n.Tag == "!!null" {
		return nil
	}
	at := n
	if n.Kind == yaml.AliasNode {
		at = n.Alias
	}
	if at.Kind != yaml.MappingNode {
		p.bad(n, "%s: must be fields with values", shown(at))
		return nil
	}
	return p.value(n).GetStructValue()
}

// value reads a value that JSON has.
func (p *parser) value(n *yaml.Node) *structpb.Value {
	p.depth++
	defer func() { p.depth-- }()
	at := n
	if n = p.follow(n); n == nil {
		return nil
	}
	if p.depth > maxDepth {
		p.bad(at, "this is within %d others: must be within at most %d", p.depth-1, maxDepth-1)
		return nil
	}
	switch n.Kind {
	case yaml.MappingNode:
		all := &structpb.Struct{Fields: map[string]*structpb.Value{}}
		for i := 0; i < len(n.Content); i += 2 {
			name := n.Content[i]
			if name.Kind != yaml.ScalarNode || name.Tag == "!!merge" {
				p.bad(name, "%s: must be a name", shown(name))
				continue
			}
			all.Fields[name.Value] = p.value(n.Content[i+1])
		}
		return structpb.NewStructValue(all)
	case yaml.SequenceNode:
		var all []*structpb.Value
		for _, e := range n.Content {
			all = append(all, p.value(e))
		}
		return listOf(all)
	}
	var number float64
	switch n.ShortTag() {
	case "!!null":
		return structpb.NewNullValue()
	case "!!bool":
		return structpb.NewBoolValue(p.truth(n))
	case "!!int", "!!float":
		if err := n.Decode(&number); err == nil && !math.IsNaN(number) && !math.IsInf(number, 0) {
			return structpb.NewNumberValue(number)
		}
		p.bad(n, "%s: must be a number that JSON has", shown(n))
		return nil
	}
	if !utf8.ValidString(n.Value) {
		p.bad(n, "%s: must be UTF-8", shown(n))
		return nil
	}
	return structpb.NewStringValue(n.Value)
}

// ofDescriptors are fields that envoyproxy/ratelimit takes within rate_limit too, and does not read
// there.
var ofDescriptors = []string{"shadow_mode", "quota_mode", "detailed_metric", "value_to_metric", "share_threshold", "metadata"}

// rule reads a limit. own are the settings that envoyproxy/ratelimit does not have; nil is none.
func (p *parser) rule(path []string, n, own *yaml.Node) *rule {
	r, before := &rule{domain: path[0], path: strings.Join(path[1:], ".")}, len(p.problems)
	p.config.rules = append(p.config.rules, r)
	fields := p.fields(n, append([]string{"requests_per_unit", "unit", "unlimited", "name", "replaces"}, ofDescriptors...)...)
	if fields == nil {
		return r
	}
	for _, name := range ofDescriptors {
		if at := fields[name]; at != nil {
			p.warn(at, "%s is within rate_limit, so it is ignored: must stand beside it", name)
		}
	}
	var ownFields map[string]*yaml.Node
	if own != nil {
		ownFields = p.fields(own, "algorithm", "burst", "max_debt", "also", "count_refused", "fail_mode", "standing", "unit_multiplier")
	}
	r.fields = len(fields) + len(ownFields)
	word := p.text(fields["unit"])
	r.unlimited = p.truth(fields["unlimited"])
	r.answer = p.answer(fields)
	r.answer.Name = p.text(fields["name"])
	unit := r.answer.GetUnit()
	p.multiply(r.answer, ownFields["unit_multiplier"])
	p.list(fields["replaces"], func(n *yaml.Node) {
		name := p.text(p.fields(n, "name")["name"])
		switch name {
		case "":
			p.bad(n, "name is empty: must be the name of another limit")
		case r.answer.GetName():
			p.bad(n, "name is %.64q, the limit's own: must be that of another", name)
		}
		r.replaces, r.fields = append(r.replaces, name), r.fields+1
	})
	switch {
	case r.unlimited && word != "":
		p.bad(fields["unit"], "unit is %.64q and unlimited is true: must have only one of them", word)
	case !r.unlimited && seconds[unit] == 0:
		p.bad(n, "unit is %.64q: must be second, minute, hour, day, week, month or year", word)
	case !r.unlimited:
		r.policy = policyOf(r.answer)
		kind := kindOf(r.answer)
		if ownFields != nil {
			kind += p.own(r, ownFields)
		}
		r.policy.Name = policyName(path, kind)
		if err := r.policy.Validate(); err != nil && len(p.problems) == before {
			p.bad(n, "%s", strings.ReplaceAll(err.Error(), "\n", ", and "))
		}
	}
	return r
}

// multiply reads how many units a period has, if it has several.
func (p *parser) multiply(l *pb.RateLimitResponse_RateLimit, n *yaml.Node) {
	if n == nil {
		return
	}
	l.UnitMultiplier = wrapperspb.UInt32(uint32(p.number(n, 32)))
	if period := periodOf(l); seconds[l.GetUnit()] != 0 && (period < 1 || period > century) {
		p.bad(n, "unit_multiplier is %d: must be 1 or more, and at most 100 years", l.GetUnitMultiplier().GetValue())
	}
}

// kindOf returns the period of a limit as a part of a policy's name, such as minute or 5-minute.
func kindOf(l *pb.RateLimitResponse_RateLimit) string {
	unit := strings.ToLower(l.GetUnit().String())
	if n := l.GetUnitMultiplier().GetValue(); n > 1 {
		return fmt.Sprintf("%d-%s", n, unit)
	}
	return unit
}

// answer reads how many requests a unit has.
func (p *parser) answer(fields map[string]*yaml.Node) *pb.RateLimitResponse_RateLimit {
	unit := pb.RateLimitResponse_RateLimit_Unit_value[strings.ToUpper(p.text(fields["unit"]))]
	return &pb.RateLimitResponse_RateLimit{
		RequestsPerUnit: uint32(p.number(fields["requests_per_unit"], 32)),
		Unit:            pb.RateLimitResponse_RateLimit_Unit(unit),
	}
}

// algorithm reads the name of an algorithm.
func (p *parser) algorithm(n *yaml.Node) tiered.Algorithm {
	text := p.text(n)
	a, err := lua.Parse(text)
	if err != nil {
		p.bad(n, "Algorithm is %.80q: %v", text, err)
	}
	return tiered.Algorithm(a)
}

// own reads the settings that envoyproxy/ratelimit does not have. It returns a mark for the
// policy's name: a policy cannot change these while it runs, so with another of them a rule is a
// new policy.
func (p *parser) own(r *rule, fields map[string]*yaml.Node) (mark string) {
	policy := &r.policy
	if n := fields["algorithm"]; n != nil {
		policy.Algorithm = p.algorithm(n)
		mark = "-" + strings.ReplaceAll(policy.Algorithm.String(), " ", "-")
	}
	policy.Calendar = r.has(lua.Phased)
	ofBucket := func(name string) int64 {
		n := fields[name]
		if n != nil && r.has(lua.Window) {
			p.bad(n, "%s is set, but algorithm is %v: must be token bucket", name, policy.Algorithm)
		}
		return int64(p.number(n, 32))
	}
	policy.Limit.Burst, policy.MaxDebt = ofBucket("burst"), ofBucket("max_debt")
	p.list(fields["also"], func(n *yaml.Node) {
		fields := p.fields(n, "requests_per_unit", "unit", "unit_multiplier")
		if fields == nil {
			return
		}
		limit := p.answer(fields)
		p.multiply(limit, fields["unit_multiplier"])
		if seconds[limit.GetUnit()] == 0 || limit.GetRequestsPerUnit() == 0 {
			p.bad(n, "a limit under also: must have requests_per_unit of 1 or more, and a unit from second to year")
			return
		}
		r.also, r.fields = append(r.also, limit), r.fields+1
		policy.Also = append(policy.Also, limitOf(limit))
		mark += fmt.Sprintf("-%d-%s", limit.GetRequestsPerUnit(), kindOf(limit))
	})
	if n := fields["count_refused"]; n != nil {
		is := p.truth(n)
		r.refusedCount = &is
	}
	if n := fields["fail_mode"]; n != nil {
		if err := policy.FailMode.UnmarshalText([]byte(p.text(n))); err != nil {
			p.bad(n, "%s", strings.TrimPrefix(err.Error(), "tiered: "))
		}
	}
	if n := fields["standing"]; n != nil {
		text := p.text(n)
		part, ok := defaults.Parts[text]
		if !ok {
			p.bad(n, "standing is %q: must be one of %s", text, strings.Join(slices.Sorted(maps.Keys(defaults.Parts)), ", "))
		}
		if policy.Standing = part; part > 0 {
			mark += "-standing"
		}
	}
	return mark
}
