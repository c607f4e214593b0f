package rls

import (
	"fmt"
	"slices"
	"strings"

	ratelimit "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	"go.yaml.in/yaml/v3"
)

type entry = ratelimit.RateLimitDescriptor_Entry

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
		fields := p.fields(own, "together", "standing")
		if n := fields["together"]; n != nil {
			p.together(root, n)
		}
		if n := fields["standing"]; n != nil {
			p.standing(root, n)
		}
	}
	p.descriptors(&root.node, []string{name}, fields["descriptors"])
	return &root.node, []string{name}
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

// standing reads which part of their limits the rules of a domain share that do not say it. Files of
// one domain may not contradict each other.
func (p *parser) standing(d *domain, n *yaml.Node) {
	part := p.part(n)
	if d.standing != nil && *d.standing != *part {
		p.bad(n, "standing is %v, but %v in another file of the domain: must be the same", *part, *d.standing)
	}
	d.standing = part
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
