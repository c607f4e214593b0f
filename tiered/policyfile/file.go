package policyfile

import (
	"cmp"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/tiered-limiter/tiered-limiter/internal/inside"
	"github.com/tiered-limiter/tiered-limiter/internal/strictyaml"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// MaxSize is the size of the largest file, in bytes.
const MaxSize = 4 << 20

// Version is the version of the format.
const Version = "1"

// File is what a file says.
type File struct {
	Policies []tiered.Policy // all valid
	HTTP     []Route
	GRPC     []Method

	details []details // of the policies
}

// details are what a file says of a policy, and a [tiered.Policy] does not.
type details struct {
	keys  []keyLimit
	plans bool                  // it has some, or they could not be read
	at    map[string]*yaml.Node // the places of its fields by their names in Policy, and of itself by ""

	// could are the policies with one limit for all keys that it could be: with those of single keys, and for fields that
	// could not be read.
	could []tiered.Policy
}

// Load reads a file. Errors name all that is wrong, each with file, line and column.
func Load(path string) (*File, error) {
	data, _, err := read(path)
	if err != nil {
		return nil, err
	}
	return Parse(path, data)
}

// read reads a file of up to MaxSize bytes, and when it was written.
func read(path string) (data []byte, written time.Time, err error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, written, fmt.Errorf("policyfile: %w", err)
	}
	defer func() { _ = f.Close() }()
	if data, err = io.ReadAll(io.LimitReader(f, MaxSize+1)); err != nil {
		return nil, written, fmt.Errorf("policyfile: %w", err)
	}
	if info, err := f.Stat(); err == nil {
		written = info.ModTime()
	}
	return data, written, nil
}

// Parse reads the content of a file, YAML or JSON. name is for errors.
func Parse(name string, data []byte) (*File, error) {
	root, err := strictyaml.Document(name, data, MaxSize, "a version and policies")
	if err != nil {
		return nil, fmt.Errorf("policyfile: %w", err)
	}
	r := &reader{Reader: strictyaml.Reader{Name: name}, file: new(File)}
	r.readFile(root)
	r.Sort()
	if err := r.Err(); err != nil {
		return nil, err
	}
	return r.file, nil
}

// readFile reads the whole file.
func (r *reader) readFile(n *yaml.Node) {
	f := r.file
	var matches []*yaml.Node  // of f.HTTP
	r.mapping("", n, []field{ // the rules after the policies that they name
		{"version", func(path string, n *yaml.Node) {
			if text, ok := r.Text(path, n); ok && text != Version {
				r.Bad(n, "%s is %s: must be %s", path, strictyaml.Quote(text), Version)
			}
		}},
		{"policies", func(path string, n *yaml.Node) {
			names := map[string]int{}
			r.list(path, n, func(path string, n *yaml.Node) {
				p, d := r.readPolicy(path, n)
				if line := names[p.Name]; p.Name != "" && line > 0 {
					r.Bad(n, "%s: name is %s: the policy in line %d has that name", path, strictyaml.Quote(p.Name), line)
				}
				names[p.Name] = n.Line
				f.Policies, f.details = append(f.Policies, p), append(f.details, d)
			})
		}},
		{"http", func(path string, n *yaml.Node) {
			r.list(path, n, func(path string, n *yaml.Node) {
				route, match := r.route(path, n)
				f.HTTP, matches = append(f.HTTP, route), append(matches, match)
			})
		}},
		{"grpc", func(path string, n *yaml.Node) { f.GRPC = r.methods(path, n) }},
	}, need{"version", "must be " + Version}, need{"policies", "must be a list"})
	r.patterns(matches, f.HTTP)
}

// readPolicy reads a policy.
func (r *reader) readPolicy(path string, n *yaml.Node) (p tiered.Policy, d details) {
	nodes, unread := map[string]*yaml.Node{}, map[string]bool{} // by the name of the field in Policy
	set := func(name, of string, read func(path string, n *yaml.Node)) field {
		return field{name, func(path string, n *yaml.Node) {
			before := r.Mistakes()
			read(path, n)
			nodes[of] = n
			unread[of] = unread[of] || r.Mistakes() > before
		}}
	}
	var keys []keyLimit
	r.mapping(path, n, []field{
		set("name", "Name", into(r, &p.Name, text)),
		set("limit", "Limit", into(r, &p.Limit, tiered.ParseLimit)),
		set("plans", "Plans", func(path string, n *yaml.Node) {
			r.Pairs(path, n, func(key, value *yaml.Node) {
				path := strictyaml.Within(path, key.Value)
				if l, ok := parsed(r, path, value, tiered.ParseLimit); ok {
					if p.Plans == nil {
						p.Plans = map[string]tiered.Limit{}
					}
					p.Plans[key.Value], nodes[fmt.Sprintf("Plans[%.80q]", key.Value)] = l, value
				}
			})
		}),
		set("also", "Also", func(path string, n *yaml.Node) {
			r.list(path, n, func(path string, n *yaml.Node) {
				l, _ := parsed(r, path, n, tiered.ParseLimit)
				p.Also = append(p.Also, l)
			})
		}),
		set("algorithm", "Algorithm", into(r, &p.Algorithm, algorithm)),
		set("calendar", "Calendar", into(r, &p.Calendar, boolean)),
		set("fail_mode", "FailMode", into(r, &p.FailMode, word(failModes))),
		set("standing", "Standing", into(r, &p.Standing, word(standings))),
		set("shadow", "Shadow", into(r, &p.Shadow, boolean)),
		set("max_debt", "MaxDebt", into(r, &p.MaxDebt, whole)),
		{"lease", func(path string, n *yaml.Node) {
			r.mapping(path, n, []field{
				set("size", "Lease.Size", into(r, &p.Lease.Size, leaseSize)),
				set("period", "Lease.Period", into(r, &p.Lease.Period, duration)),
			})
		}},
		set("keys", "PerKey", func(path string, n *yaml.Node) { keys = append(keys, r.limits(path, n, false)...) }),
		set("prefixes", "PerKey", func(path string, n *yaml.Node) { keys = append(keys, r.limits(path, n, true)...) }),
	})
	if len(keys) > 0 {
		p.PerKey = perKey(keys)
	}
	if n.Kind == yaml.MappingNode {
		r.judge(path, n, p, keys, nodes, unread)
	}
	return p, details{keys, len(p.Plans) > 0 || unread["Plans"], placesOf(n, nodes), couldBe(p, keys, unread)}
}

// algorithm reads the name of an algorithm, in which a hyphen may stand for the space.
func algorithm(text string) (tiered.Algorithm, error) {
	var names []string
	for a := tiered.TokenBucket; a <= tiered.SlidingWindow; a++ {
		name := a.String()
		if text == name || text == strings.Replace(name, " ", "-", 1) {
			return a, nil
		}
		names = append(names, name)
	}
	return 0, fmt.Errorf("is %s: must be one of %s", strictyaml.Quote(text), strings.Join(names, ", "))
}

// leaseSize reads the size of a lease.
func leaseSize(text string) (int64, error) {
	if text == "none" {
		return tiered.NoLease, nil
	}
	return whole(text)
}

// judge reports what is wrong with a policy in itself. Fields with a mistake are unread from then on.
func (r *reader) judge(
	path string, n *yaml.Node, p tiered.Policy, keys []keyLimit, nodes map[string]*yaml.Node, unread map[string]bool,
) {
	faults := wrong(standIns(p, unread), tiered.Policy.Validate)
	for _, f := range slices.DeleteFunc(faults, func(f fault) bool { return unread[f.field] }) {
		r.Bad(cmp.Or(nodes[f.place], nodes[f.field], n), "%s: %s", path, plain(f.err))
		unread[f.field] = true // what depends on it is judged without it
	}
	for _, k := range keys {
		all := standIns(p, unread)
		if unread["Limit"] { // it may be as this one is
			for _, q := range all {
				q.Limit = k.limit
				all = append(all, q)
			}
		}
		all = slices.DeleteFunc(all, func(p tiered.Policy) bool { return p.Validate() != nil })
		for _, f := range wrong(all, func(p tiered.Policy) error { return inside.CheckLimit(p, k.limit) }) {
			r.Bad(k.node, "%s: the limit of this key: %s", path, plain(f.err))
		}
	}
}

// couldBe returns the policies with one limit for all keys that a policy could be, the largest first.
func couldBe(p tiered.Policy, keys []keyLimit, unread map[string]bool) (all []tiered.Policy) {
	p.PerKey = nil
	for _, q := range standIns(p, unread) {
		all = append(all, q)
		for _, k := range keys {
			q.Limit = k.limit
			all = append(all, q)
		}
	}
	if unread["PerKey"] || unread["Plans"] {
		p.Limit, p.Also, p.Plans = tiered.Unlimited(), nil, nil
		all = append(all, p)
	}
	burst := func(l tiered.Limit) int64 { return cmp.Or(l.Burst, l.Tokens) }
	slices.SortStableFunc(all, func(a, b tiered.Policy) int { return cmp.Compare(burst(b.Limit), burst(a.Limit)) })
	return slices.DeleteFunc(all, func(p tiered.Policy) bool { return p.Validate() != nil })
}

// placesOf returns where nodes are, without what they say.
func placesOf(whole *yaml.Node, fields map[string]*yaml.Node) map[string]*yaml.Node {
	at := map[string]*yaml.Node{"": {Line: whole.Line, Column: whole.Column}}
	for name, n := range fields {
		at[name] = &yaml.Node{Line: n.Line, Column: n.Column}
	}
	return at
}

// keyLimit is the limit of a key, or of all keys that begin with it.
type keyLimit struct {
	key    string
	prefix bool
	limit  tiered.Limit
	node   *yaml.Node
}

// limits reads the limits of single keys or of prefixes. Keys are those of clients, which no line of a log contains.
func (r *reader) limits(path string, n *yaml.Node, prefix bool) (all []keyLimit) {
	r.Keys(path, n, func(key, value *yaml.Node) {
		if key.Value == "" || len(key.Value) > inside.MaxKeyLength {
			r.Bad(key, "%s: a key has %d bytes: must have 1 to %d", path, len(key.Value), inside.MaxKeyLength)
			return
		}
		if l, ok := parsed(r, path, value, tiered.ParseLimit); ok {
			all = append(all, keyLimit{key.Value, prefix, l, value})
		}
	})
	return all
}

// perKey returns a [tiered.Policy].PerKey: the limit of the key itself counts, or else that of its longest prefix.
func perKey(all []keyLimit) func(string) tiered.Limit {
	keys, prefixes, longest := map[string]tiered.Limit{}, map[string]tiered.Limit{}, 0
	for _, k := range all {
		if k.prefix {
			prefixes[k.key], longest = k.limit, max(longest, len(k.key))
		} else {
			keys[k.key] = k.limit
		}
	}
	return func(key string) tiered.Limit {
		if l, ok := keys[key]; ok {
			return l
		}
		for n := min(longest, len(key)); n > 0; n-- {
			if l, ok := prefixes[key[:n]]; ok {
				return l
			}
		}
		return tiered.Limit{} // the policy's
	}
}
