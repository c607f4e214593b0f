package policyfile

import (
	"fmt"
	"regexp"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/tiered-limiter/tiered-limiter/internal/strictyaml"
)

// Method says which limits hold for gRPC calls. contrib/grpclimit applies them. Of several the most
// specific one counts: that of the method, then that of its service, then "/".
type Method struct {
	Match  string  // "/package.Service/Method", or "/package.Service/" for a service, or "/" for all calls
	Limits []Limit // empty: the calls are not limited

	Exceptions // by the address of the client
}

// grpcWords are those for the keys of calls and for where a plan's name is.
var grpcWords = words{
	keys: map[string]finder{
		"ip": {address: true}, "method": {}, "metadata": {needs: aName}, "credential": {needs: aName, hash: true},
		"forwarded-for": {needs: theProxies, address: true}, "tls-subject": {}, "spiffe-id": {},
	},
	plans: map[string]finder{"metadata": {needs: aName}},
}

var (
	methods = regexp.MustCompile(`^/([\w.]+/(\w+)?)?$`)

	// metadataName is a name of a metadata field, of any case.
	metadataName = regexp.MustCompile(`^[A-Za-z0-9_.-]+$`)
)

// methods reads the rules for gRPC.
func (r *reader) methods(path string, n *yaml.Node) (all []Method) {
	lines := map[string]int{}
	r.list(path, n, func(path string, n *yaml.Node) {
		var m Method
		exceptions, end := r.exceptions(&m.Exceptions, grpcWords, func(Key) error { return nil })
		r.mapping(path, n, append([]field{
			{"match", func(path string, n *yaml.Node) {
				m.Match, _ = parsed(r, path, n, method)
				if line := lines[m.Match]; line > 0 && m.Match != "" {
					r.Bad(n, "%s is %s, as in line %d: must be another one", path, strictyaml.Quote(m.Match), line)
				}
				lines[m.Match] = n.Line
			}},
			{"limits", func(path string, n *yaml.Node) { m.Limits = r.limitsOf(path, n, grpcWords, metadataKey) }},
			r.planOfAll(grpcWords, metadataKey, &m.Limits),
		}, exceptions...), need{"match", needsMatch}, need{"limits", needsLimits})
		end(path, m.Limits)
		all = append(all, m)
	})
	return all
}

// metadataKey says what is wrong with a key.
func metadataKey(k Key) error {
	if k.Name != "" && !isMetadata(k.Name) {
		return fmt.Errorf("the field is %s: must have only a-z, 0-9, -, _ and ., and not begin with grpc-", strictyaml.Quote(k.Name))
	}
	return nil
}

// method reads what calls a rule is for.
func method(text string) (string, error) {
	if !methods.MatchString(text) {
		return text, fmt.Errorf("is %s: must be /package.Service/Method, /package.Service/ or /", strictyaml.Quote(text))
	}
	return text, nil
}

func isMetadata(name string) bool {
	return metadataName.MatchString(name) && !strings.HasPrefix(strings.ToLower(name), "grpc-")
}
