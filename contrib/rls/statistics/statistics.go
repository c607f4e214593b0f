// Package statistics counts what envoyproxy/ratelimit counts, under the names that it has for
// statsd: ratelimit.service.rate_limit, the domain, what the descriptor is, and what is counted.
// Dashboards and alerts go on when the service is another one. How the counts get out of the
// process is not its matter.
package statistics

import (
	"crypto/sha256"
	"encoding/hex"
	"log/slog"
	"maps"
	"math"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unicode"
)

// Options are the options of Counters. A nil *Options, and each zero field, means the default.
type Options struct {
	// Most is how many rules are counted, and besides how many names with a value of a descriptor,
	// which clients may choose: 0 means 1000, and a negative number none. Those that come first are
	// counted. Hits of a further value count for the rule as if it had no names with values.
	Most int

	// NearLimitRatio is the part of a limit from which on hits are near it: 0 means 0.8.
	NearLimitRatio float32

	// Local counts over_limit_with_local_cache. A process always knows of some keys that they are
	// over their limit; a mapping for Prometheus that counts on there being none has these twice.
	Local bool

	// Took, if not nil, is told how long each call took. It must not block.
	Took func(m Method, t time.Duration)

	// Logger is told once that there are more names than Most. Nil means [slog.Default].
	Logger *slog.Logger
}

// Counters are the counts of a process. A nil *Counters counts nothing. All methods may be called
// concurrently.
type Counters struct {
	options Options
	full    sync.Once
	rest    Counts // of rules that are too many

	// Of calls and of the process.
	calls                     [methods]atomic.Uint64
	shadowedCall              atomic.Uint64
	redisErrors, otherErrors  atomic.Uint64
	loadSuccesses, loadErrors atomic.Uint64

	mu      sync.RWMutex
	rules   map[string]*Counts // by the name of a rule, which is of its configuration
	values  map[string]*Counts // by a name that has values of a descriptor
	unknown map[string]*atomic.Uint64
	order   []*Counts
}

// Method is a method of gRPC whose calls are counted.
type Method int

// The methods. Others are not counted: a client may ask for any name.
const (
	ShouldRateLimit Method = iota
	Check                  // of health
	methods
)

var methodNames = [methods]string{"ShouldRateLimit", "Check"}

// String returns the name without that of the service.
func (m Method) String() string { return methodNames[m] }

// What is counted of a rule.
const (
	total = iota
	over
	near
	overLocal
	within
	shadow
	kinds
)

var kindNames = [kinds]string{"total_hits", "over_limit", "near_limit", "over_limit_with_local_cache", "within_limit", "shadow_mode"}

// Counts are of one name.
type Counts struct {
	name string // ready for statsd, without what is counted
	n    [kinds]atomic.Uint64
}

// New returns Counters.
func New(o *Options) *Counters {
	c := &Counters{rules: map[string]*Counts{}, values: map[string]*Counts{}, unknown: map[string]*atomic.Uint64{}}
	if o != nil {
		c.options = *o
	}
	if c.options.Most == 0 {
		c.options.Most = 1000
	}
	if c.options.NearLimitRatio == 0 {
		c.options.NearLimitRatio = 0.8
	}
	if c.options.Logger == nil {
		c.options.Logger = slog.Default()
	}
	return c
}

// Rule returns the Counts of a rule, by its domain and path. Rules that are too many have the same
// ones, which nobody sees.
func (c *Counters) Rule(name string) *Counts {
	c.mu.Lock()
	defer c.mu.Unlock()
	if is := c.add(c.rules, string(shorten([]byte(name)))); is != nil {
		return is
	}
	return &c.rest
}

// Value returns the Counts of a name that has values of a descriptor. It is nil if there are too
// many. It may write into name, and allocates only for one that is new.
func (c *Counters) Value(name []byte) *Counts {
	name = shorten(name)
	c.mu.RLock()
	is, isFull := c.values[string(name)], len(c.values) >= c.options.Most
	c.mu.RUnlock()
	if is != nil || isFull {
		if is == nil {
			c.tell()
		}
		return is
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.add(c.values, string(name))
}

func (c *Counters) add(to map[string]*Counts, name string) *Counts {
	is := to[name]
	switch {
	case is != nil:
	case len(to) >= c.options.Most:
		c.tell()
	default:
		is = &Counts{name: Name(name)}
		to[name] = is
		c.order = append(c.order, is)
	}
	return is
}

func (c *Counters) tell() {
	if c.options.Most < 0 {
		return
	}
	c.full.Do(func() {
		c.options.Logger.Warn("there are more names of statistics than TIERED_METRIC_RULES: the others have no series",
			"TIERED_METRIC_RULES", c.options.Most)
	})
}

// Hit is what was decided about a descriptor.
type Hit struct {
	Hits   uint64 // that it asked for
	Limit  uint64 // requests per unit
	Left   uint64 // if it is within the limit: what is left then; otherwise what was left before
	Over   bool
	Shadow bool // it is admitted though it is over the limit
	Local  bool // the process knew that it is over the limit
}

// Add counts for a name. A nil *Counts counts nothing.
func (c *Counters) Add(to *Counts, h Hit) {
	if to == nil || h.Hits == 0 {
		return
	}
	count := func(kind int, n uint64) {
		if n > 0 {
			to.n[kind].Add(n)
		}
	}
	count(total, h.Hits)
	nearFrom := uint64(math.Floor(float64(float32(h.Limit) * c.options.NearLimitRatio)))
	if !h.Over {
		count(within, h.Hits)
		if used := h.Limit - min(h.Left, h.Limit); used > nearFrom {
			count(near, min(h.Hits, used-nearFrom))
		}
		return
	}
	left := min(h.Left, h.Limit, h.Hits)
	beyond := h.Hits - left
	count(over, beyond)
	if left > 0 {
		count(near, min(left, h.Limit-min(nearFrom, h.Limit)))
	}
	if h.Local && c.options.Local && left == 0 {
		count(overLocal, beyond)
	}
	if h.Shadow {
		count(shadow, beyond)
	}
}

// UnknownDomain counts descriptors of a domain that is not configured.
func (c *Counters) UnknownDomain(domain string, descriptors int) {
	if c == nil {
		return
	}
	domain = string(shorten([]byte(domain)))
	c.mu.RLock()
	n := c.unknown[domain]
	isFull := len(c.unknown) >= c.options.Most
	c.mu.RUnlock()
	if n == nil && isFull {
		c.tell()
		return
	}
	if n == nil {
		c.mu.Lock()
		if n = c.unknown[domain]; n == nil {
			n = new(atomic.Uint64)
			c.unknown[domain] = n
		}
		c.mu.Unlock()
	}
	n.Add(uint64(descriptors))
}

// ShadowedCall counts a call that is admitted because all are.
func (c *Counters) ShadowedCall() {
	if c != nil {
		c.shadowedCall.Add(1)
	}
}

// Failed counts a call that is answered with an error: because of Redis, or of what is asked.
func (c *Counters) Failed(byRedis bool) {
	switch {
	case c == nil:
	case byRedis:
		c.redisErrors.Add(1)
	default:
		c.otherErrors.Add(1)
	}
}

// Loaded counts a configuration that was read, and is used if err is nil.
func (c *Counters) Loaded(err error) {
	switch {
	case c == nil:
	case err != nil:
		c.loadErrors.Add(1)
	default:
		c.loadSuccesses.Add(1)
	}
}

// Call counts a call of gRPC.
func (c *Counters) Call(m Method, took time.Duration) {
	if c == nil || m < 0 || m >= methods {
		return
	}
	c.calls[m].Add(1)
	if c.options.Took != nil {
		c.options.Took(m, took)
	}
}

// Totals calls f with the name and the value of each counter that is no rule's and is not 0.
func (c *Counters) Totals(f func(name string, value uint64)) {
	for m := range methods {
		if n := c.calls[m].Load(); n > 0 {
			f("ratelimit_server."+m.String()+".total_requests", n)
		}
	}
	for _, one := range []struct {
		name string
		n    *atomic.Uint64
	}{
		{"global_shadow_mode", &c.shadowedCall},
		{"call.should_rate_limit.redis_error", &c.redisErrors},
		{"call.should_rate_limit.service_error", &c.otherErrors},
		{"config_load_success", &c.loadSuccesses},
		{"config_load_error", &c.loadErrors},
	} {
		if n := one.n.Load(); n > 0 {
			f("ratelimit.service."+one.name, n)
		}
	}
	c.mu.RLock()
	unknown := maps.Clone(c.unknown) // f may take long, and nobody may wait for it
	c.mu.RUnlock()
	for domain, n := range unknown {
		f(ofRules+Name(domain)+".domain_not_found", n.Load())
	}
}

// All returns the Counts of all names. Those that come later are behind those that were there.
func (c *Counters) All() []*Counts {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.order[:len(c.order):len(c.order)]
}

const ofRules = "ratelimit.service.rate_limit."

// Kinds is how many counters Counts have.
const Kinds = kinds

// Value returns the value of a counter.
func (n *Counts) Value(kind int) uint64 { return n.n[kind].Load() }

// Name returns the name of a counter.
func (n *Counts) Name(kind int) string { return ofRules + n.name + "." + kindNames[kind] }

// longest is the longest part of a name, in bytes. The longest of Envoy Gateway have some 700.
const longest = 2048

// shorten makes a name that is too long end in a part of its SHA-256, in place.
func shorten(name []byte) []byte {
	if len(name) <= longest {
		return name
	}
	sum := sha256.Sum256(name)
	return hex.AppendEncode(append(name[:longest-1-2*8], '-'), sum[:8])
}

var addresses = regexp.MustCompile(`\d{1,3}\.\d{1,3}\.\d{1,3}\.\d{1,3}`)

// Name returns a name for statsd. As in envoyproxy/ratelimit it has no colon, no bar and no dots in
// IPv4 addresses. Neither has it what is no text: a client may choose values.
func Name(text string) string {
	plain := strings.Map(func(r rune) rune {
		if r == ':' || r == '|' || r == unicode.ReplacementChar || unicode.IsControl(r) {
			return '_'
		}
		return r
	}, strings.ToValidUTF8(text, "_"))
	return addresses.ReplaceAllStringFunc(plain, func(a string) string { return strings.ReplaceAll(a, ".", "_") })
}
