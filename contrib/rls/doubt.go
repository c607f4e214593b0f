package rls

import (
	"net/netip"
	"regexp"
	"strings"

	"go.yaml.in/yaml/v3"
)

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
