package metrics

import (
	"errors"
	"reflect"
	"slices"
	"sync"

	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// AllPolicies is the label "policy" of a Reader by [NewTotalsReader].
const AllPolicies = "all"

// NewTotalsReader returns a Reader of one Group that has no series for each policy, because there
// may be thousands. Its series of policies have the label "policy" [AllPolicies]. Counters are the
// sums over all policies, also over those that were removed. So are tokens that are held and calls
// that wait now. Other gauges are the largest of a policy.
//
// Each reading calls each, if it is not nil, with the figures of the policies, by name. They are
// those that it sums.
func NewTotalsReader(g *tiered.Group, each func(map[string]tiered.PolicyStats)) (*Reader, error) {
	if wrong := problem(g); wrong != "" {
		return nil, errors.New("metrics: the Group " + wrong)
	}
	r := newReader(nil, group{source: groupSource{g}})
	r.totals = &totals{each: each}
	return r, nil
}

// totals sums figures of policies.
type totals struct {
	each func(map[string]tiered.PolicyStats)

	mu   sync.Mutex
	left tiered.PolicyStats             // the counters of policies that were removed
	last map[string]tiered.PolicyStats  // of the last reading, without those that have counted nothing
	gone map[counted]tiered.PolicyStats // what of left may come back: a policy can take up its figures
}

// counted is a policy that counts: see [tiered.PolicyStats].Number.
type counted struct {
	name   string
	number int
}

// mostGone bounds the memory for policies that were removed.
const mostGone = 10_000

// of returns the figures of all policies, which the sum has.
func (t *totals) of(policies map[string]tiered.PolicyStats) (sum tiered.PolicyStats) {
	if t.each != nil {
		t.each(policies)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.gone) > mostGone {
		t.gone = nil
	}
	if t.gone == nil {
		t.gone = map[counted]tiered.PolicyStats{}
	}
	for name, p := range t.last {
		if is, ok := policies[name]; !ok || is.Number != p.Number {
			add(&t.left, &p, counter, 1)
			t.gone[counted{name, p.Number}] = p
		}
	}
	clear(t.last)
	if t.last == nil {
		t.last = map[string]tiered.PolicyStats{}
	}
	for name, p := range policies {
		p.Top = nil
		if before, ok := t.gone[counted{name, p.Number}]; ok {
			delete(t.gone, counted{name, p.Number})
			add(&t.left, &before, counter, -1)
		}
		if add(&sum, &p, every, 1) {
			t.last[name] = p
		}
	}
	add(&sum, &t.left, counter, 1)
	return sum
}

// summed is how a figure of a policy is summed.
type summed int

const (
	counter summed = iota
	present        // a sum of what is there now
	largest
	every // all of them
)

// notCounters are the figures of a policy that are not counters.
var notCounters = map[string]summed{
	"Leases.Held": present, "Waiting.Now": present, "Waiting.Longest": largest, "Standing.Outside": largest,
	"Processes.Sharing": largest, "Processes.OtherServices": largest, "Processes.OtherLimits": largest,
}

// policyField is a figure of a policy that is a number.
type policyField struct {
	index []int
	as    summed
}

var policyFields = func() (all []policyField) {
	for _, group := range reflect.VisibleFields(reflect.TypeFor[tiered.PolicyStats]()) {
		if group.Type.Kind() != reflect.Struct {
			continue
		}
		for _, f := range reflect.VisibleFields(group.Type) {
			if f.Type.Kind() == reflect.Int64 { // a time.Duration too
				index := append(slices.Clip(group.Index), f.Index...)
				all = append(all, policyField{index, notCounters[group.Name+"."+f.Name]})
			}
		}
	}
	return all
}()

// add adds figures times sign to a sum, those of one kind or all. It reports whether a counter is
// not 0.
func add(sum, p *tiered.PolicyStats, what summed, sign int64) (counted bool) {
	to, from := reflect.ValueOf(sum).Elem(), reflect.ValueOf(p).Elem()
	for _, f := range policyFields {
		n := from.FieldByIndex(f.index).Int()
		if n == 0 || what != every && f.as != what {
			continue
		}
		switch is := to.FieldByIndex(f.index); f.as {
		case largest:
			is.SetInt(max(is.Int(), n))
		default:
			is.SetInt(is.Int() + sign*n)
			counted = counted || f.as == counter
		}
	}
	s := &sum.RedisTime
	if missing := len(p.RedisTime.Buckets) - len(s.Buckets); missing > 0 {
		s.Buckets = append(slices.Clone(s.Buckets), make([]int64, missing)...)
	}
	for i, n := range p.RedisTime.Buckets {
		s.Buckets[i] += sign * n
	}
	return counted
}
