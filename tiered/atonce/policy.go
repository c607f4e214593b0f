package atonce

import (
	"errors"
	"fmt"
	"maps"
	"regexp"
	"time"

	"github.com/tiered-limiter/tiered-limiter/lua"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// MostPlaces is the largest number of places of a key.
const MostPlaces = lua.MostPlaces

// DefaultLife is Policy.Life if that is 0.
const DefaultLife = 10 * time.Second

// Policy says how many places each key has. A request that runs has one of them, or more.
type Policy struct {
	Name   string // identifies the policy in Redis: 1 to 64 of A–Z a–z 0–9 _ . -
	Places int    // of each key, in all processes together: 1 … 2²⁰; required

	// PerKey, if not nil, returns the places of a single key, instead of Places: 1 … 2²⁰. Anything
	// else, and a panic, means Places. It is called for each request, concurrently, so it must look
	// into memory. It cannot be used with Plans.
	PerKey func(key string) int

	// Plans are up to 1000 further numbers of places by the name of a plan. [Use.WithPlan] says
	// which one a request has. Requests without a plan, or with an unknown one, go by Places.
	Plans map[string]int

	// FailMode decides while Redis does not answer, and a process has no spare place. FailLocal,
	// the default, lets Places / N requests of a key run in this process, at least one, for the N
	// processes that Redis counted last, or Options.Processes if that is more. FailOpen lets all
	// run, FailClosed none more. What runs then is told to Redis afterwards, and counts.
	FailMode tiered.FailMode

	// Life is how long the places of a process that is silent, because it was killed or stands
	// still, are kept from others: 1 s … 1 h; 0 means 10 s.
	Life time.Duration

	// MaxRun is the longest that a place is held: 1 s … 24 h, and 0, the default, is no bound. Then
	// it is lost (see [Place.Lost]) and given to others. It helps if a Release was forgotten. It is
	// not needed for a process that dies.
	MaxRun time.Duration

	// Refused and Lost, if not nil, are called for each request that was refused, and for each
	// place that was lost. They run on the goroutine of the request or on one of the Limiter, so
	// they must not block.
	Refused func(key string, err error)
	Lost    func(key string, places int)
}

var policyName = regexp.MustCompile(`^[A-Za-z0-9_.-]{1,64}$`)

// Validate reports everything that is wrong with p.
func (p Policy) Validate() error {
	var wrong []error
	bad := func(field string, value any, rule string) {
		wrong = append(wrong, fmt.Errorf("atonce: Policy.%s is %v: must be %s", field, value, rule))
	}
	if !policyName.MatchString(p.Name) {
		bad("Name", fmt.Sprintf("%.80q", p.Name), "1 to 64 of A-Z a-z 0-9 _ . -")
	}
	if !legal(p.Places) {
		bad("Places", p.Places, "1 to 2^20")
	}
	if p.PerKey != nil && p.Plans != nil {
		bad("PerKey", "set", "nil if Plans is set")
	}
	if len(p.Plans) > 1000 {
		bad("Plans", fmt.Sprint(len(p.Plans), " plans"), "up to 1000")
	}
	for name, places := range p.Plans {
		if len(name) < 1 || len(name) > 64 {
			bad("Plans", fmt.Sprintf("a plan named %.80q", name), "named by 1 to 64 bytes")
		} else if !legal(places) {
			bad(fmt.Sprintf("Plans[%q]", name), places, "1 to 2^20")
		}
	}
	if p.FailMode > tiered.FailClosed {
		bad("FailMode", uint(p.FailMode), "FailLocal, FailOpen or FailClosed")
	}
	if p.Life != 0 && (p.Life < time.Second || p.Life > time.Hour) {
		bad("Life", p.Life, "1s to 1h, or 0 for 10s")
	}
	if p.MaxRun != 0 && (p.MaxRun < time.Second || p.MaxRun > 24*time.Hour) {
		bad("MaxRun", p.MaxRun, "1s to 24h, or 0 for no bound")
	}
	return errors.Join(wrong...)
}

func legal(places int) bool { return places >= 1 && places <= MostPlaces }

// filled is p with its defaults, and maps of its own.
func (p Policy) filled() *Policy {
	p.Plans = maps.Clone(p.Plans)
	if p.Life == 0 {
		p.Life = DefaultLife
	}
	return &p
}

// places returns the places of a key for a request of a plan.
func (p *Policy) places(key, plan string) (places int) {
	if n, ok := p.Plans[plan]; ok {
		return n
	}
	if p.PerKey == nil {
		return p.Places
	}
	defer func() {
		if recover() != nil || !legal(places) {
			places = p.Places
		}
	}()
	return p.PerKey(key)
}

// period is the time after which a process states again what it has: a second, or a third of a life
// if that is less.
func (p *Policy) period() time.Duration { return min(time.Second, p.Life/3) }
