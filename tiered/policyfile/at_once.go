package policyfile

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/tiered-limiter/tiered-limiter/internal/strictyaml"
	"github.com/tiered-limiter/tiered-limiter/tiered/atonce"
)

// numberOfPlaces reads a number of places.
func numberOfPlaces(text string) (int, error) {
	n, err := whole(text)
	if err != nil || n != int64(int(n)) {
		return 0, fmt.Errorf("is %s: must be 1 to %d", strictyaml.Quote(text), atonce.MostPlaces)
	}
	return int(n), nil
}

// readAtOnce reads a policy of what runs at the same time.
func (r *reader) readAtOnce(path string, n *yaml.Node) (p atonce.Policy) {
	before := r.Mistakes()
	r.mapping(path, n, []field{
		{"name", func(path string, n *yaml.Node) { p.Name, _ = parsed(r, path, n, text) }},
		{"places", func(path string, n *yaml.Node) { p.Places, _ = parsed(r, path, n, numberOfPlaces) }},
		{"plans", func(path string, n *yaml.Node) {
			p.Plans = map[string]int{}
			r.Pairs(path, n, func(key, value *yaml.Node) {
				p.Plans[key.Value], _ = parsed(r, strictyaml.Within(path, key.Value), value, numberOfPlaces)
			})
		}},
		{"fail_mode", func(path string, n *yaml.Node) { p.FailMode, _ = parsed(r, path, n, word(failModes)) }},
		{"life", func(path string, n *yaml.Node) { p.Life, _ = parsed(r, path, n, duration) }},
		{"max_run", func(path string, n *yaml.Node) { p.MaxRun, _ = parsed(r, path, n, duration) }},
	}, need{"name", "must be 1 to 64 of A-Z a-z 0-9 _ . -"}, need{"places", "must be 1 to 2^20"})
	if n.Kind == yaml.MappingNode && r.Mistakes() == before {
		for _, err := range split(p.Validate()) {
			r.Bad(n, "%s: %s", path, strings.TrimPrefix(err.Error(), "atonce: "))
		}
	}
	return p
}

// atOnceText is a policy as a file has it, with all that it does not say.
func atOnceText(p atonce.Policy) *yaml.Node {
	life := p.Life
	if life == 0 {
		life = atonce.DefaultLife
	}
	plans := yamlMap()
	for _, name := range slices.Sorted(maps.Keys(p.Plans)) {
		plans.Content = append(plans.Content, yamlText(name), yamlValue(p.Plans[name]))
	}
	n := yamlMap("name", yamlText(p.Name), "places", yamlValue(p.Places), "fail_mode", yamlFor(failModes)(p.FailMode), "life", yamlValue(life))
	if len(plans.Content) > 0 {
		n.Content = append(n.Content, yamlWord("plans"), plans)
	}
	if p.MaxRun > 0 {
		n.Content = append(n.Content, yamlWord("max_run"), yamlValue(p.MaxRun))
	}
	return n
}
