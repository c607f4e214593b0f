package engine

import (
	"encoding/json"
	"math"
	"time"
	"unique"

	"github.com/tiered-limiter/tiered-limiter/internal/calendar"
	"github.com/tiered-limiter/tiered-limiter/local"
	"github.com/tiered-limiter/tiered-limiter/lua"
)

// Limit is a tiered.Limit, which says what its fields mean.
type Limit struct {
	Tokens    int64
	Per       time.Duration
	Burst     int64
	Precision time.Duration
	Calendar  calendar.Period
	Also      Further
}

// Further are the limits that a Limit has beside its own numbers. The zero value is none. Two are
// equal if their limits are, so a Limit can be compared, and be the key of a map.
type Further struct{ all unique.Handle[further] }

type further struct {
	n     int // also of more than there may be
	alone [lua.MostLimits - 1]alone
}

// MarshalBinary lets gob send a limit, which it does field by field.
func (f Further) MarshalBinary() ([]byte, error) {
	if f == (Further{}) {
		return nil, nil
	}
	all := f.all.Value()
	return json.Marshal(all.alone[:min(all.n, len(all.alone))])
}

// UnmarshalBinary reads what MarshalBinary writes.
func (f *Further) UnmarshalBinary(b []byte) error {
	if *f = (Further{}); len(b) == 0 {
		return nil
	}
	var all []alone
	if err := json.Unmarshal(b, &all); err != nil {
		return err
	}
	sent := further{n: len(all)}
	copy(sent.alone[:], all)
	f.all = unique.Make(sent)
	return nil
}

// alone is a Limit without further ones.
type alone struct {
	Tokens    int64
	Per       time.Duration
	Burst     int64
	Precision time.Duration
	Calendar  calendar.Period
}

// And returns l with further limits behind its own.
func (l Limit) And(more ...Limit) Limit {
	var all further
	for i, m := range append([]Limit{l}, more...) {
		each := m.Each()
		if i == 0 {
			each = each[1:]
		}
		for _, x := range each {
			if all.n < len(all.alone) {
				all.alone[all.n] = alone{x.Tokens, x.Per, x.Burst, x.Precision, x.Calendar}
			}
			all.n++
		}
		all.n += m.Len() - len(m.Each())
	}
	if all.n > 0 {
		l.Also.all = unique.Make(all)
	}
	return l
}

// Len returns the number of limits.
func (l Limit) Len() int {
	if l.Also == (Further{}) {
		return 1
	}
	return 1 + l.Also.all.Value().n
}

// Each returns the limits, each as one without further ones: the most that there may be, if there
// are more.
func (l Limit) Each() []Limit {
	also := l.Also
	l.Also = Further{}
	if also == (Further{}) {
		return []Limit{l}
	}
	f := also.all.Value()
	all := []Limit{l}
	for _, x := range f.alone[:min(f.n, len(f.alone))] {
		all = append(all, Limit{x.Tokens, x.Per, x.Burst, x.Precision, x.Calendar, Further{}})
	}
	return all
}

// The limits that are none.
var (
	Unlimited = Limit{Tokens: math.MaxInt64, Burst: math.MaxInt64}
	Blocked   = Limit{Tokens: math.MinInt64, Burst: math.MinInt64}
)

// MaxTokens is the most that a request may cost. Levels are doubles; beyond this, small refills
// would be lost.
const MaxTokens = lua.MostTokens

// Rule returns whether l is Unlimited, Blocked, or a limit.
func (l Limit) Rule() local.Rule {
	switch l {
	case Unlimited:
		return local.Unlimited
	case Blocked:
		return local.Blocked
	}
	return local.ByLimit
}

// Most returns the most tokens that l admits at once: of several limits, the one that admits fewest
// decides.
func (l Limit) Most() int64 {
	if l.Also != (Further{}) {
		each := l.Each()
		return each[smallest(each)-1].Most()
	}
	if l.Burst == 0 {
		return l.Tokens
	}
	return l.Burst
}

// smallest returns the number of the limit with the smallest burst, from 1.
func smallest(limits []Limit) (which uint8) {
	for i, l := range limits {
		if i == 0 || l.Most() < limits[which-1].Most() {
			which = uint8(i + 1)
		}
	}
	return which
}

// Longest is Per, or the longest that a period of the calendar lasts.
func (l Limit) Longest() time.Duration {
	if l.Calendar.IsZero() {
		return l.Per
	}
	return l.Calendar.Longest()
}

// NanosPerToken returns the time in ns in which one token is refilled.
func (l Limit) NanosPerToken() float64 { return float64(l.Longest()) / float64(l.Tokens) }

// ResetAfter returns how long the refill of the missing tokens takes, or the longest duration.
func ResetAfter(missing int64, nanosPerToken float64) time.Duration {
	d := float64(missing) * nanosPerToken
	if d >= math.MaxInt64 {
		return math.MaxInt64
	}
	return time.Duration(d)
}
