package rls

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
)

// String lists the limits, one in a line: where it is in the file, the limit, what is special about
// it, and the name of the policy that [tiered.Group.Stats] and the metrics know it by.
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

func limitText(l *pb.RateLimitResponse_RateLimit) string {
	return fmt.Sprintf("%d per %s", l.GetRequestsPerUnit(), perText(l.GetUnit(), l.GetUnitMultiplier().GetValue()))
}

// String describes the rule in a line.
func (r *rule) String() string {
	if r.unlimited {
		return "unlimited"
	}
	text := limitText(r.answer)
	for _, l := range r.also {
		text += " and " + limitText(l)
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
