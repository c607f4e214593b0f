package policyfile

import (
	"cmp"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/tiered-limiter/tiered-limiter/internal/misspelled"
	"github.com/tiered-limiter/tiered-limiter/internal/strictyaml"
	"github.com/tiered-limiter/tiered-limiter/tiered/httplimit"
)

// Limit is one policy by which a request or a call is counted, or has a place while it runs, or
// both.
type Limit struct {
	Policy  string            // the name of a policy in the file; it may be empty beside AtOnce
	AtOnce  string            // the name of a policy of what runs at the same time, or empty
	Key     []Key             // what it counts for: of several, all together
	Missing httplimit.Missing // what happens without a key
	Cost    int64             // tokens, 0 or more
	Plan    Key               // where the name of the request's plan is; zero is nowhere
	Hidden  bool              // clients are not told of it, see httplimit.Rule
}

// Key is a part of what a request or a call counts for.
type Key struct {
	Kind    string         // the first word, such as "ip" or "header"
	Name    string         // of a header, a metadata field, a cookie, a parameter of the query or a part of the path
	Proxies []netip.Prefix // that are trusted
	Hops    int            // proxies that are trusted, 1 … 32

	IPv4, IPv6 int // the bits by which an address is counted; both 0 are 32 and 64
}

// argument is what a word for a key is followed by, as errors show it.
type argument string

const (
	noArgument     argument = ""
	aName          argument = " NAME"
	theProxies     argument = " PROXIES"
	nameAndProxies argument = " NAME PROXIES"
	aNumber        argument = " N"
)

// finder is what a word for a key stands for.
type finder struct {
	needs   argument
	address bool                    // it is the address of a client: the bits by which it is counted may follow
	hash    bool                    // it is a hash
	key     func(Key) httplimit.Key // of a request; nil if the word is for gRPC only, or for plans
}

// words are those by which a rule says where something of a request is found.
type words struct{ keys, plans map[string]finder }

// limitsOf reads the limits of a route or of a method, which has these words. check says what is
// wrong with a key.
func (r *reader) limitsOf(path string, n *yaml.Node, w words, check func(Key) error) (all []Limit) {
	type use struct{ field, name string }
	lines := map[use]int{}
	r.list(path, n, func(path string, n *yaml.Node) {
		l := r.limitOf(path, n, w, check)
		once := func(field string, of func(Limit) string) {
			name := of(l)
			first := slices.IndexFunc(all, func(o Limit) bool { return of(o) == name })
			if first >= 0 && name != "" && slices.ContainsFunc(all[first:], func(o Limit) bool { return o.Missing != httplimit.Next }) {
				r.Bad(n, "%s: %s is %s, as in line %d: must be another policy", path, field, strictyaml.Quote(name), lines[use{field, name}])
			}
			lines[use{field, name}] = n.Line
		}
		once("policy", func(l Limit) string { return l.Policy })
		once("at_once", func(l Limit) string { return l.AtOnce })
		all = append(all, l)
	})
	if last := len(all) - 1; last >= 0 && all[last].Missing == httplimit.Next {
		r.Bad(n.Content[last], "%s[%d].missing is next: must be another word, because no limit follows", path, last)
	}
	return all
}

func (r *reader) limitOf(path string, n *yaml.Node, w words, check func(Key) error) Limit {
	l := Limit{Missing: httplimit.Refuse, Cost: 1}
	counts, enters := false, false
	key := func(path string, n *yaml.Node) {
		k, _ := parsed(r, path, n, oneOf(w.keys, check))
		l.Key = append(l.Key, k)
	}
	r.mapping(path, n, []field{
		{"policy", func(path string, n *yaml.Node) {
			counts = true
			if l.Policy, _ = r.Text(path, n); r.policy(l.Policy) < 0 {
				r.noPolicy(path, n, l.Policy, "policies", "at_once")
			}
		}},
		{"at_once", func(path string, n *yaml.Node) {
			enters = true
			if l.AtOnce, _ = r.Text(path, n); r.atOnce(l.AtOnce) < 0 {
				r.noPolicy(path, n, l.AtOnce, "at_once", "policies")
			}
		}},
		{"key", func(path string, n *yaml.Node) {
			if n.Kind != yaml.SequenceNode {
				key(path, n)
				r.meetable(path, n, w, l)
				return
			}
			if len(n.Content) == 0 {
				r.Bad(n, "%s is an empty list: must have one key at least", path)
			}
			r.list(path, n, key)
		}},
		{"plan", func(path string, n *yaml.Node) {
			l.Plan, _ = parsed(r, path, n, oneOf(w.plans, check))
			i, j := r.policy(l.Policy), r.atOnce(l.AtOnce)
			none := i >= 0 && len(r.file.read[i].Plans) == 0 && !r.file.read[i].unread["Plans"]
			if noPlaces := j >= 0 && len(r.file.AtOnce[j].Plans) == 0; (none || !counts) && (noPlaces || !enters) {
				r.Bad(n, "%s is %s: policy %s must have plans", path, strictyaml.Quote(n.Value), strictyaml.Quote(cmp.Or(l.Policy, l.AtOnce)))
			}
		}},
		{"missing", func(path string, n *yaml.Node) { l.Missing, _ = parsed(r, path, n, word(missings)) }},
		{"hidden", func(path string, n *yaml.Node) {
			if l.Hidden, _ = parsed(r, path, n, boolean); l.Hidden && enters && !counts {
				r.Bad(n, "%s is true without policy: must be left out, because no field tells of places", path)
			}
		}},
		{"cost", func(path string, n *yaml.Node) {
			switch l.Cost, _ = parsed(r, path, n, whole); {
			case enters && !counts:
				r.Bad(n, "%s is there without policy: must be left out, because a place is no token", path)
			case l.Cost < 0:
				r.Bad(n, "%s is %d: must be at least 0", path, l.Cost)
			case l.Cost > 0:
				r.affordable(path, n, l)
			}
		}},
	}, need{"key", "must be what is counted, such as ip"})
	if n.Kind == yaml.MappingNode && !counts && !enters {
		r.Bad(n, "%s is missing: must be the name of a policy in this file, or at_once must be there", strictyaml.Within(path, "policy"))
	}
	return l
}

// hasPlans reports whether a policy of a limit has plans, or may be meant to.
func (r *reader) hasPlans(l *Limit) bool {
	i, j := r.policy(l.Policy), r.atOnce(l.AtOnce)
	return i >= 0 && (len(r.file.read[i].Plans) > 0 || r.file.read[i].unread["Plans"]) ||
		j >= 0 && len(r.file.AtOnce[j].Plans) > 0
}

// planOfAll returns the field that says where the name of the plan is for all limits of a rule that
// do not say it, and whose policies have plans. It is to be read after the limits.
func (r *reader) planOfAll(w words, check func(Key) error, all *[]Limit) field {
	return field{"plan", func(path string, n *yaml.Node) {
		plan, ok := parsed(r, path, n, oneOf(w.plans, check))
		used := false
		for i := range *all {
			if l := &(*all)[i]; l.Plan.Kind == "" && r.hasPlans(l) {
				l.Plan, used = plan, true
			}
		}
		if ok && !used {
			r.Bad(n, "%s is %s: a policy of its limits must have plans, and its limit no plan of its own", path, strictyaml.Quote(n.Value))
		}
	}}
}

// noPolicy reports the name of a policy that a list of the file has not.
func (r *reader) noPolicy(path string, n *yaml.Node, name, list, other string) {
	names := map[string][]string{}
	for _, p := range r.file.Policies {
		names["policies"] = append(names["policies"], p.Name)
	}
	for _, p := range r.file.AtOnce {
		names["at_once"] = append(names["at_once"], p.Name)
	}
	hint, near := "", misspelled.Meant(name, names[list])
	switch {
	case near != "":
		hint = ", such as " + strictyaml.Quote(near)
	case slices.Contains(names[other], name):
		hint = ", and that is the name of one under " + other
	}
	what := map[string]string{"policies": "a policy in this file", "at_once": "a policy under at_once in this file"}[list]
	r.Bad(n, "%s is %s: must be the name of %s%s", path, strictyaml.Quote(name), what, hint)
}

// meetable reports a key that is a hash, if the policy has limits of keys that are none: no request
// would have such a limit, not even one that is blocked.
func (r *reader) meetable(path string, n *yaml.Node, w words, l Limit) {
	i := r.policy(l.Policy)
	if i < 0 || !w.keys[l.Key[0].Kind].hash {
		return
	}
	for _, k := range r.file.read[i].keys {
		if sum, err := base64.RawURLEncoding.DecodeString(k.key); k.prefix || err != nil || len(sum) != sha256.Size {
			r.Bad(n, "%s is %s: must be another key, or policy %s must have no keys and prefixes but hashes, because that key is a hash",
				path, strictyaml.Quote(n.Value), strictyaml.Quote(l.Policy))
			return
		}
	}
}

// affordable reports a cost that no key of the policy ever has.
func (r *reader) affordable(path string, n *yaml.Node, l Limit) {
	var err error
	for _, p := range r.file.read {
		if p.Name != l.Policy {
			continue
		}
		for _, q := range p.could {
			wrong := q.CheckCost(l.Cost)
			if wrong == nil {
				return
			}
			err = cmp.Or(err, wrong) // of the largest limit
		}
	}
	if err != nil {
		r.Bad(n, "%s: %s (policy %s)", path, plain(err), strictyaml.Quote(l.Policy))
	}
}

// oneOf returns what reads what a request counts for: one of the words, and what that needs. check
// says what is wrong with it.
func oneOf(words map[string]finder, check func(Key) error) func(string) (Key, error) {
	return func(text string) (Key, error) {
		k, err := parseKey(text, words)
		if err == nil {
			err = check(k)
		}
		return k, err
	}
}

func parseKey(text string, words map[string]finder) (k Key, err error) {
	kind, args := "", strings.Fields(text)
	if len(args) > 0 {
		kind, args = args[0], args[1:]
	}
	f, ok := words[kind]
	if !ok {
		return k, wrongKey(text, words)
	}
	k.Kind = kind
	if f.needs == aName || f.needs == nameAndProxies {
		if len(args) == 0 {
			return k, wrongKey(text, words)
		}
		k.Name, args = args[0], args[1:]
	}
	if f.address {
		if args, err = k.bits(args, f.needs); err != nil {
			return k, err
		}
	}
	switch hasProxies := f.needs == theProxies || f.needs == nameAndProxies; {
	case f.needs == aNumber:
		k.Hops, err = parseHops(args)
	case hasProxies != (len(args) > 0):
		return k, wrongKey(text, words)
	case hasProxies:
		k.Proxies, err = parseProxies(args)
	}
	return k, err
}

// bits reads what may follow an address: two numbers, the bits of IPv4 and of IPv6 by which it is
// counted. It returns what stands before them.
func (k *Key) bits(args []string, needs argument) ([]string, error) {
	before := max(len(args)-2, 0)
	if needs == noArgument {
		before = 0
	}
	var bits []int
	for _, text := range args[before:] {
		if n, err := strconv.Atoi(text); err == nil {
			bits = append(bits, n)
		}
	}
	switch {
	case len(bits) == 2 && len(args) == before+2 && 1 <= bits[0] && bits[0] <= 32 && 1 <= bits[1] && bits[1] <= 128:
		k.IPv4, k.IPv6 = bits[0], bits[1]
		return args[:before], nil
	case len(bits) == 2, needs == noArgument && len(args) > 0:
		return nil, fmt.Errorf("the bits %s: must be 1 to 32 of IPv4 and 1 to 128 of IPv6, as in 32 56",
			strictyaml.Quote(strings.Join(args[before:], " ")))
	}
	return args, nil
}

func wrongKey(text string, words map[string]finder) error {
	var all []string
	for _, w := range slices.Sorted(maps.Keys(words)) {
		all = append(all, w+string(words[w].needs))
	}
	last := len(all) - 1
	if last == 0 {
		return fmt.Errorf("is %s: must be %s", strictyaml.Quote(text), all[0])
	}
	return fmt.Errorf("is %s: must be %s or %s", strictyaml.Quote(text), strings.Join(all[:last], ", "), all[last])
}

func parseProxies(args []string) (all []netip.Prefix, err error) {
	for _, text := range args {
		prefix, err := netip.ParsePrefix(text)
		if err != nil {
			return nil, fmt.Errorf("the proxy %s: must be a prefix such as 10.0.0.0/8", strictyaml.Quote(text))
		}
		all = append(all, prefix)
	}
	return all, nil
}

func parseHops(args []string) (int, error) {
	if len(args) == 1 {
		if n, err := strconv.Atoi(args[0]); err == nil && n >= 1 && n <= 32 {
			return n, nil
		}
	}
	return 0, fmt.Errorf("hops %s: must be a number from 1 to 32", strictyaml.Quote(strings.Join(args, " ")))
}
