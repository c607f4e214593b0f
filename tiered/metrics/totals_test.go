package metrics_test

import (
	"reflect"
	"testing"
	"time"

	"github.com/tiered-limiter/tiered-limiter/tiered"
	"github.com/tiered-limiter/tiered-limiter/tiered/metrics"
)

// The totals have every figure of a policy: the sum, or the largest.
func TestTotalsOfEveryFigure(t *testing.T) {
	var p tiered.PolicyStats
	checked := 0
	check := func(name string, of func(*tiered.PolicyStats) reflect.Value) {
		p = tiered.PolicyStats{}
		increase(t, of(&p), name)
		sum := new(metrics.Totals).Of(map[string]tiered.PolicyStats{"a": p, "b": p})
		want := reflect.New(of(&p).Type()).Elem()
		switch h := reflect.TypeFor[metrics.Durations](); {
		case want.Type().ConvertibleTo(h):
			want.Set(reflect.ValueOf(metrics.Durations{Count: 2, Sum: 2 * time.Second, Buckets: []int64{2, 0}}))
		default:
			n := of(&p).Int() * 2
			if metrics.IsLargest(name) {
				n /= 2
			}
			want.SetInt(n)
		}
		if got := of(&sum); !reflect.DeepEqual(got.Interface(), want.Interface()) {
			t.Errorf("%s is %v in the totals, want %v", name, got, want)
		}
		checked++
	}
	for _, group := range reflect.VisibleFields(reflect.TypeFor[tiered.PolicyStats]()) {
		of := func(p *tiered.PolicyStats) reflect.Value { return reflect.ValueOf(p).Elem().FieldByIndex(group.Index) }
		switch group.Name {
		case "Top", "Number":
			continue
		case "RedisTime":
			check(group.Name, of)
			continue
		}
		for _, f := range reflect.VisibleFields(group.Type) {
			if f.Type.Kind() == reflect.Bool {
				continue
			}
			check(group.Name+"."+f.Name, func(p *tiered.PolicyStats) reflect.Value { return of(p).FieldByIndex(f.Index) })
		}
	}
	if checked < 40 {
		t.Errorf("only %d figures", checked)
	}
}

// Counters of the totals never fall when policies are removed, and count nothing twice when one
// comes back, with its figures or without.
func TestTotalsOfRemovedPolicies(t *testing.T) {
	number := 0
	counted := func(n int64) tiered.PolicyStats {
		var p tiered.PolicyStats
		p.Number = number
		p.Leases.Spent, p.Leases.Held, p.Requests.Granted, p.Requests.Allowed, p.Processes.Sharing = n, 5, n, n, 3
		p.RedisTime.Buckets = []int64{n, 0}
		return p
	}
	anew := func(n int64) tiered.PolicyStats {
		number++
		defer func() { number-- }()
		return counted(n)
	}
	total := new(metrics.Totals)
	for i, step := range []struct {
		policies map[string]tiered.PolicyStats
		want     int64
		held     int64
	}{
		{map[string]tiered.PolicyStats{"a": counted(100), "b": counted(10)}, 110, 10},
		{map[string]tiered.PolicyStats{"b": counted(20)}, 120, 5},
		{map[string]tiered.PolicyStats{"b": counted(20), "a": anew(0)}, 120, 10},
		{map[string]tiered.PolicyStats{"a": anew(7)}, 127, 5},
		{map[string]tiered.PolicyStats{"a": anew(7), "b": counted(25)}, 132, 10}, // with its figures
		{map[string]tiered.PolicyStats{"a": anew(7), "b": anew(30)}, 162, 10},    // between two readings
		{map[string]tiered.PolicyStats{"a": anew(9), "b": counted(31)}, 170, 10}, // the other way
		{nil, 170, 0},
		{nil, 170, 0},
		{map[string]tiered.PolicyStats{"c": counted(1)}, 171, 5},
	} {
		sum := total.Of(step.policies)
		if sum.Leases.Spent != step.want || sum.Requests.Granted != step.want || sum.RedisTime.Buckets[0] != step.want || sum.Leases.Held != step.held {
			t.Errorf("step %d: %d spent, %d requests, %v waits, %d held; want %d and %d", i, sum.Leases.Spent, sum.Requests.Granted,
				sum.RedisTime.Buckets, sum.Leases.Held, step.want, step.held)
		}
	}
	for i := range 3 * metrics.MostGone {
		total.Of(map[string]tiered.PolicyStats{string(rune(i)) + "x": counted(1)})
	}
	if n := total.Gone(); n > metrics.MostGone+1 {
		t.Errorf("%d policies that are gone are remembered", n)
	}
}

// A Reader of totals has the metrics of any other, with one policy.
func TestTotalsReader(t *testing.T) {
	i := invent()
	var q tiered.PolicyStats
	q.Requests.Granted = 7
	i.stats.Policies["q"] = q
	passed := 0
	got := series(t, metrics.TotalsReaderOf(i, func(all map[string]tiered.PolicyStats) { passed += len(all) }))
	if n := got["tiered_decisions_total{all,local,granted}"]; n != 1007 || passed != 2 {
		t.Errorf("%v requests, want 1007; %d policies were passed on, want 2", n, passed)
	}
	delete(i.stats.Policies, "q")
	if n := len(series(t, i.reader())); n != len(got) {
		t.Errorf("%d series of a policy, %d of the totals", n, len(got))
	}
	if _, err := metrics.NewTotalsReader(nil, nil); err == nil {
		t.Error("a nil Group is accepted")
	}
}
