package rls

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/tiered-limiter/tiered-limiter/lua"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// Config is a configuration of envoyproxy/ratelimit: domains, and in each a tree of descriptors. It
// never changes.
type Config struct {
	domains  map[string]*domain
	rules    []*rule
	warnings []string
}

// Warnings are about rules that are valid, and that no descriptor or not the intended one can meet,
// each with file, line and column. There are at most 100.
func (c *Config) Warnings() []string { return slices.Clone(c.warnings) }

func (c *Config) warn(text string) {
	if len(c.warnings) < maxProblems {
		c.warnings = append(c.warnings, text)
	}
}

// domain is a tree of descriptors.
type domain struct {
	node
	together *bool    // all descriptors of a request are decided together, or each by itself; nil if the files do not say
	standing *float64 // of the rules that do not say it: Policy.Standing; nil if the files do not say
}

// node is a descriptor of a tree, or the root of a domain.
type node struct {
	key       string
	in        *node            // nil for the root
	valued    bool             // value_to_metric: names of statistics have the value of the descriptor
	children  map[string]*node // by key, or by key_value
	wildcards []wildcard       // among the children, in the order of the file
	rule      *rule            // nil if there is no limit here
	share     string           // with share_threshold: the value that all values of the wildcard count as
}

// wildcard is a child whose value has asterisks: each is any characters, or none.
type wildcard struct {
	parts []string // of key_value, between the asterisks
	child *node
}

// takes reports whether a key_value has the parts one after the other: the first at its beginning,
// and the last at its end.
func (w *wildcard) takes(name string) bool {
	last := len(w.parts) - 1
	rest, ok := strings.CutPrefix(name, w.parts[0])
	if !ok {
		return false
	}
	for _, part := range w.parts[1:last] { // the first place leaves the most for the others
		if _, rest, ok = strings.Cut(rest, part); !ok {
			return false
		}
	}
	return strings.HasSuffix(rest, w.parts[last])
}

// rule is a limit of the configuration. It does not change, but for looked.
type rule struct {
	domain    string
	path      string        // the keys and values of the descriptors, for people
	policy    tiered.Policy // none if unlimited
	answer    *pb.RateLimitResponse_RateLimit
	also      []*pb.RateLimitResponse_RateLimit // further limits, as policy.Limit has them
	unlimited bool
	quota     bool
	metadata  *structpb.Struct // for the answer, if the descriptor is within the limit
	replaces  []string         // names of other rules that do not count if this one does
	names     []namePart       // of statistics, if they have values of descriptors
	fields    int              // that the file has of it

	standing     *float64    // Policy.Standing; nil if the rule does not say
	refusedCount *bool       // hits that are refused count; nil if the file does not say
	looked       atomic.Bool // it was asked with 0 hits: the hits come when they are known
}

// has reports whether the algorithm has a property.
func (r *rule) has(p lua.Property) bool { return lua.Algorithm(r.policy.Algorithm).Has(p) }

// countsRefused reports whether hits that are refused count. They may have been used already, and a
// limit that leaves them out holds nothing. A single hit of a token bucket is not known to be such
// a one: a client that goes on asking would be refused for ever.
func (r *rule) countsRefused(hits int64) bool {
	switch {
	case r.refusedCount != nil:
		return *r.refusedCount
	case r.has(lua.Edges):
		return true
	}
	return hits > 1 || r.looked.Load()
}

// seconds are the lengths of the units, as those of envoyproxy/ratelimit: a month has 30 days, and
// a year 365.
var seconds = map[pb.RateLimitResponse_RateLimit_Unit]int64{
	pb.RateLimitResponse_RateLimit_SECOND: 1,
	pb.RateLimitResponse_RateLimit_MINUTE: 60,
	pb.RateLimitResponse_RateLimit_HOUR:   3600,
	pb.RateLimitResponse_RateLimit_DAY:    24 * 3600,
	pb.RateLimitResponse_RateLimit_WEEK:   7 * 24 * 3600,
	pb.RateLimitResponse_RateLimit_MONTH:  30 * 24 * 3600,
	pb.RateLimitResponse_RateLimit_YEAR:   365 * 24 * 3600,
}

// century is the longest period of a policy, in seconds.
const century = 100 * 365 * 24 * 3600

// perText tells a period to people, such as "minute" or "5 minutes".
func perText(unit pb.RateLimitResponse_RateLimit_Unit, multiplier uint32) string {
	word := strings.ToLower(unit.String())
	if multiplier <= 1 {
		return word
	}
	return fmt.Sprintf("%d %ss", multiplier, word)
}

// periodOf returns the seconds of a limit's period, 0 if its unit is unknown.
func periodOf(l *pb.RateLimitResponse_RateLimit) int64 {
	if m := l.GetUnitMultiplier(); m != nil {
		return int64(m.GetValue()) * seconds[l.GetUnit()]
	}
	return seconds[l.GetUnit()]
}

// limitOf returns the limit. 0 requests are a limit that nobody is within.
func limitOf(l *pb.RateLimitResponse_RateLimit) tiered.Limit {
	n := l.GetRequestsPerUnit()
	if n == 0 {
		return tiered.Blocked()
	}
	return tiered.Limit{Tokens: int64(n), Per: time.Duration(periodOf(l)) * time.Second}
}

// policyOf returns a policy with a limit that counts as envoyproxy/ratelimit does.
func policyOf(l *pb.RateLimitResponse_RateLimit) tiered.Policy {
	p := tiered.Policy{Limit: limitOf(l), Algorithm: tiered.FixedWindow, Calendar: true}
	if l.GetRequestsPerUnit() == 0 { // a policy with windows has to have a limit; a key may be blocked
		p.Limit = tiered.Limit{Tokens: 1, Per: time.Duration(periodOf(l)) * time.Second}
		p.PerKey = func(string) tiered.Limit { return tiered.Blocked() }
	}
	return p
}

// policyName returns a name for a policy, from its path in the configuration: the domain and the
// descriptors. Two paths or kinds never have the same name. A policy cannot change its unit, its
// algorithm or its further limits while it runs, so these are in the kind: with another unit, a
// rule is a new policy.
func policyName(path []string, kind string) string {
	name := strings.Join(path, ".")
	if plain := name + "." + kind; len(plain) <= 64 && !slices.ContainsFunc(path, hasOther) {
		return plain
	}
	sum := sha256.Sum256([]byte(join(append(slices.Clip(path), kind))))
	name = strings.Map(func(r rune) rune {
		if r != '.' && isOther(r) {
			return '_'
		}
		return r
	}, name)
	return fmt.Sprintf("%.40s-%x", name, sum[:8])
}

// isOther reports whether a part of a plain name may not contain r. A dot stands between two parts.
func isOther(r rune) bool {
	return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && r != '_' && r != '-'
}

func hasOther(part string) bool { return strings.ContainsFunc(part, isOther) }

// Policies returns the policies of the configuration, for [tiered.Group.SetPolicies].
func (c *Config) Policies() (all []tiered.Policy) { return c.policies(0) }

// policies returns the policies, with standing shares of a part where the files do not say which
// and a rule can have them.
func (c *Config) policies(part float64) (all []tiered.Policy) {
	for _, r := range c.rules {
		if r.unlimited {
			continue
		}
		p, standing := r.policy, r.standing
		if standing == nil && c.domains[r.domain] != nil { // nil in a broken file
			standing = c.domains[r.domain].standing
		}
		if standing == nil {
			standing = &part
		}
		if p.Standing = *standing; p.Standing > 0 && r.standing == nil && p.Validate() != nil {
			p.Standing = 0
		}
		all = append(all, p)
	}
	return all
}

// Lacks returns how many rules of another configuration are not in this one, or have fewer fields
// here: it may be half written.
func (c *Config) Lacks(other *Config) (n int) {
	if other == nil {
		return 0
	}
	type place struct{ domain, path string }
	has := make(map[place]int, len(c.rules))
	for _, r := range c.rules {
		has[place{r.domain, r.path}] = r.fields
	}
	for _, r := range other.rules {
		if has[place{r.domain, r.path}] < r.fields {
			n++
		}
	}
	return n
}

// Domains returns the names of the domains, in order.
func (c *Config) Domains() []string { return slices.Sorted(maps.Keys(c.domains)) }

// File is a file of a configuration.
type File struct {
	Name string // for messages
	Text []byte

	// Merge adds the descriptors to those of an earlier file with the same domain. Otherwise that
	// is a mistake.
	Merge bool

	place   func(line int) string // of a resource; nil for a file
	ignored []string              // what a resource has that is not known here
}

// What a directory may have is bounded.
const (
	maxFile  = 10 << 20 // bytes of a file: some 100 000 descriptors
	maxFiles = 1000
)

// Load reads the configuration in all files of a directory and of the directories in it, as
// envoyproxy/ratelimit does. It leaves out names that begin with a dot: a ConfigMap has its files
// twice, once in a directory ..data.
func Load(dir string) (*Config, error) {
	files, err := Read(dir)
	if err != nil {
		return nil, err
	}
	return Parse(files...)
}

// Read reads the files that [Load] parses.
func Read(dir string) ([]File, error) {
	dir, err := filepath.EvalSymlinks(dir) // WalkDir does not follow a link
	if err != nil {
		return nil, fmt.Errorf("rls: %w", err)
	}
	var files []File
	err = filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case path != dir && strings.HasPrefix(e.Name(), "."):
			if e.IsDir() {
				return filepath.SkipDir
			}
			return nil
		case e.IsDir():
			return nil
		case len(files) == maxFiles:
			return fmt.Errorf("%s has more than %d files: must have fewer", dir, maxFiles)
		}
		info, err := os.Stat(path) // follows links, as a ConfigMap has
		switch {
		case err != nil:
			return err
		case !info.Mode().IsRegular():
			return fmt.Errorf("%s is %v: must be a file", path, info.Mode().Type())
		case info.Size() > maxFile:
			return fmt.Errorf("%s has %d bytes: must have at most %d", path, info.Size(), maxFile)
		}
		text, err := os.ReadFile(path)
		files = append(files, File{Name: path, Text: text})
		return err
	})
	if err == nil && files == nil {
		err = fmt.Errorf("%s has no file: must have one at least", dir)
	}
	if err != nil {
		return nil, fmt.Errorf("rls: %w", err)
	}
	return files, nil
}

// Parse reads a configuration. The error names all that is wrong, with file, line and column. Two
// files may not have the same domain, unless the second one has File.Merge.
func Parse(files ...File) (*Config, error) {
	c := &Config{domains: map[string]*domain{}}
	var problems []error
	for _, f := range files {
		p := parser{config: c, file: f.Name, place: f.place, merges: f.Merge}
		p.parse(f.Text)
		for _, text := range f.ignored {
			c.warn(f.Name + ": " + text)
		}
		problems = append(problems, p.problems...)
	}
	if problems != nil {
		return nil, errors.Join(problems...)
	}
	return c, nil
}

// find returns the node of a descriptor, and the values of its entries that a key is made of,
// appended to values. It is nil if there is none. A rule counts only for the last entry. A nil
// domain has no rules.
func (d *domain) find(entries []*entry, values []string) (*node, []string) {
	if d == nil {
		return nil, values
	}
	at := &d.node
	for i, e := range entries {
		value := e.GetValue()
		next := at.children[e.GetKey()+"_"+value]
		if next == nil {
			if name := e.GetKey() + "_" + value; len(at.wildcards) > 0 {
				for i := range at.wildcards {
					if at.wildcards[i].takes(name) {
						next = at.wildcards[i].child
						break
					}
				}
			}
			if next != nil && next.share != "" {
				value = next.share
			}
		}
		if next == nil {
			next = at.children[e.GetKey()]
		}
		if next == nil {
			return nil, values
		}
		values = append(values, value)
		if i == len(entries)-1 {
			return next, values
		}
		at = next
	}
	return nil, values
}

// clamp returns n as the 32 bits that the protocol has.
func clamp(n int64) uint32 { return uint32(min(max(n, 0), math.MaxUint32)) }
