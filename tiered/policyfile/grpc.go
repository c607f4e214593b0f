package policyfile

import (
	"fmt"
	"regexp"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/tiered-limiter/tiered-limiter/internal/strictyaml"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// Method says which limits hold for gRPC calls. contrib/grpclimit applies them. Of several the most specific one
// counts: that of the method, then that of its service, then "/".
type Method struct {
	Match  string  // "/package.Service/Method", or "/package.Service/" for a service, or "/" for all calls
	Limits []Limit // empty: the calls are not limited

	Exceptions // by the address of the client
}

// grpcKeys are the words for keys of calls.
var grpcKeys = map[string]argument{
	"ip": noArgument, "method": noArgument, "metadata": aName, "credential": aName, "forwarded-for": theProxies, "tls-subject": noArgument,
	"spiffe-id": noArgument,
}

// grpcAddresses are the words for addresses of clients.
var grpcAddresses = map[string]argument{"ip": noArgument, "forwarded-for": theProxies}

// grpcPlans are the words for where a plan's name is found.
var grpcPlans = map[string]argument{"metadata": aName}

var (
	methods = regexp.MustCompile(`^/([\w.]+/(\w+)?)?$`)

	// metadataName is a name of a metadata field, of any case.
	metadataName = regexp.MustCompile(`^[A-Za-z0-9_.-]+$`)
)

// methods reads the rules for gRPC.
func (r *reader) methods(path string, n *yaml.Node, policies []tiered.Policy) (all []Method) {
	lines := map[string]int{}
	r.list(path, n, func(path string, n *yaml.Node) {
		var m Method
		exceptions, end := r.exceptions(&m.Exceptions, policies, grpcAddresses, func(Key) error { return nil })
		r.mapping(path, n, append([]field{
			{"match", func(path string, n *yaml.Node) {
				m.Match, _ = parsed(r, path, n, func(text string) (string, error) {
					if !methods.MatchString(text) {
						return text, fmt.Errorf("is %s: must be /package.Service/Method, /package.Service/ or /", strictyaml.Quote(text))
					}
					return text, nil
				})
				if line := lines[m.Match]; line > 0 && m.Match != "" {
					r.Bad(n, "%s is %s, as in line %d: must be another one", path, strictyaml.Quote(m.Match), line)
				}
				lines[m.Match] = n.Line
			}},
			{"limits", func(path string, n *yaml.Node) {
				m.Limits = r.limitsOf(path, n, policies, words{grpcKeys, grpcPlans}, func(k Key) error {
					if k.Name != "" && !isMetadata(k.Name) {
						return fmt.Errorf("the field is %s: must have only a-z, 0-9, -, _ and ., and not begin with grpc-",
							strictyaml.Quote(k.Name))
					}
					return nil
				})
			}},
		}, exceptions...), need{"match", needsMatch}, need{"limits", needsLimits})
		end(path, m.Limits)
		all = append(all, m)
	})
	return all
}

func isMetadata(name string) bool {
	return metadataName.MatchString(name) && !strings.HasPrefix(strings.ToLower(name), "grpc-")
}
