package rls

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// String lists the limits, one in a line: where it is in the file, the limit, what is special about it, and the name of
// the policy that [tiered.Group.Stats] and the metrics know it by.
func (c *Config) String() string {
	var b strings.Builder
	for _, name := range c.Domains() {
		d := c.domains[name]
		if d.together != nil && *d.together {
			fmt.Fprintf(&b, "%s: all descriptors of a request together\n", name)
		}
		d.write(&b, name)
	}
	return b.String()
}

func (n *node) write(b *strings.Builder, path string) {
	if r := n.rule; r != nil {
		fmt.Fprintf(b, "%s: %s\n", path, r)
	}
	for _, name := range slices.Sorted(maps.Keys(n.children)) {
		n.children[name].write(b, path+"."+name)
	}
}

// String describes the rule in a line.
func (r *rule) String() string {
	if r.unlimited {
		return "unlimited"
	}
	text := fmt.Sprintf("%d per %s", r.answer.GetRequestsPerUnit(), strings.ToLower(r.answer.GetUnit().String()))
	for _, l := range r.also {
		text += fmt.Sprintf(" and %d per %s", l.GetRequestsPerUnit(), strings.ToLower(l.GetUnit().String()))
	}
	text += fmt.Sprintf(", %v, %v", r.policy.Algorithm, r.policy.FailMode)
	for _, mark := range []struct {
		is   bool
		word string
	}{{r.policy.Shadow, "shadow mode"}, {r.quota, "quota mode"}} {
		if mark.is {
			text += ", " + mark.word
		}
	}
	return text + ", policy " + r.policy.Name
}
