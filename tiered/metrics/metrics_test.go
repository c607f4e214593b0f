package metrics_test

import (
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"go.uber.org/goleak"

	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/fatal"
	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/testgroup"
	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
	"github.com/tiered-limiter/tiered-limiter/tiered/metrics"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// invented are figures that no Group has.
type invented struct {
	stats    tiered.Stats
	policies []tiered.Policy
}

func (i *invented) Stats() tiered.Stats { return i.stats }
func (i *invented) HasStanding(tiered.Stats) bool {
	return slices.ContainsFunc(i.policies, func(p tiered.Policy) bool { return p.Standing > 0 })
}

// invent returns figures that are not 0 where a figure is the rest of others.
func invent() *invented {
	var p tiered.PolicyStats
	p.Requests.Granted, p.Requests.Limited = 1000, 1000
	var n tiered.NodeStats
	n.Calls.Sent, n.Calls.Failed, n.Outages.Breaker = 1000, 500, "closed"
	return &invented{tiered.Stats{
		Policies: map[string]tiered.PolicyStats{"p": p},
		Nodes:    map[string]tiered.NodeStats{"n": n},
	}, []tiered.Policy{{Name: "p", Standing: 1.0 / 8}}}
}

func (i *invented) reader() *metrics.Reader { return metrics.ReaderOf(i) }

// series returns the value of each series by its name and labels, and of a histogram its sum.
func series(t *testing.T, r *metrics.Reader) map[string]float64 {
	t.Helper()
	all := map[string]float64{}
	for s := range r.Samples() {
		if len(s.Labels) != len(s.Metric.Labels) {
			t.Fatalf("%s: labels %q for %q", s.Metric.Name, s.Labels, s.Metric.Labels)
		}
		name := s.Metric.Name + "{" + strings.Join(s.Labels, ",") + "}"
		if _, ok := all[name]; ok {
			t.Errorf("%s is there twice", name)
		}
		all[name] = s.Value + s.Histogram.Sum.Seconds()
	}
	return all
}

// notExported are the figures that have no series.
var notExported = map[string]string{
	"Recent":                         "events, with keys",
	"Policies":                       "a map: each entry has series",
	"Nodes":                          "a map: each entry has series",
	"AtOnce":                         "a map: each entry has series",
	"PolicyStats.Top":                "keys",
	"PolicyStats.Number":             "a name",
	"NodeStats.Number":               "a name",
	"PolicyStats.Leases.Direct":      "a setting",
	"PolicyStats.Requests.Allowed":   "a sum of others",
	"PolicyStats.Requests.Refused":   "a sum of others",
	"PolicyStats.Requests.OwnLimits": "no figure",
	"NodeStats.Calls.RoundTrip":      "a quantile of RoundTrips",
	"NodeStats.Outages.Settled":      "that of the policies has series",
}

// Every figure of Stats changes a series, or stands in notExported.
func TestEveryFigure(t *testing.T) {
	before := series(t, invent().reader())
	checked := 0
	// check increases the figures of what of points to, one after the other.
	var check func(path string, of func(i *invented, p *tiered.PolicyStats, n *tiered.NodeStats) reflect.Value)
	check = func(path string, of func(i *invented, p *tiered.PolicyStats, n *tiered.NodeStats) reflect.Value) {
		i := invent()
		p, n := i.stats.Policies["p"], i.stats.Nodes["n"]
		v := of(i, &p, &n)
		switch {
		case notExported[path] != "":
			return
		case v.Kind() == reflect.Struct && !v.Type().ConvertibleTo(reflect.TypeFor[metrics.Durations]()):
			for k := range v.NumField() {
				field := strings.TrimPrefix(path+"."+v.Type().Field(k).Name, ".")
				check(field, func(i *invented, p *tiered.PolicyStats, n *tiered.NodeStats) reflect.Value {
					return of(i, p, n).Field(k)
				})
			}
			return
		}
		increase(t, v, path)
		i.stats.Policies["p"], i.stats.Nodes["n"] = p, n
		if reflect.DeepEqual(before, series(t, i.reader())) {
			t.Errorf("%s changes no series", path)
		}
		checked++
	}
	check("", func(i *invented, _ *tiered.PolicyStats, _ *tiered.NodeStats) reflect.Value {
		return reflect.ValueOf(&i.stats).Elem()
	})
	check("PolicyStats", func(_ *invented, p *tiered.PolicyStats, _ *tiered.NodeStats) reflect.Value {
		return reflect.ValueOf(p).Elem()
	})
	check("NodeStats", func(_ *invented, _ *tiered.PolicyStats, n *tiered.NodeStats) reflect.Value {
		return reflect.ValueOf(n).Elem()
	})
	if checked < 65 {
		t.Errorf("only %d figures", checked)
	}
}

// TestEveryFigureOfPlaces is the same for what runs at the same time.
func TestEveryFigureOfPlaces(t *testing.T) {
	of := func(s tiered.AtOnceStats) map[string]float64 {
		i := invent()
		i.stats.AtOnce = map[string]tiered.AtOnceStats{"a": s}
		return series(t, i.reader())
	}
	before := of(tiered.AtOnceStats{})
	for k := range reflect.TypeFor[tiered.AtOnceStats]().NumField() {
		var s tiered.AtOnceStats
		v := reflect.ValueOf(&s).Elem()
		v.Field(k).SetInt(7)
		if reflect.DeepEqual(before, of(s)) {
			t.Errorf("%s changes no series", v.Type().Field(k).Name)
		}
	}
}

func increase(t *testing.T, v reflect.Value, name string) {
	t.Helper()
	if h := reflect.ValueOf(metrics.Durations{Count: 1, Sum: time.Second, Buckets: []int64{1, 0}}); h.Type().ConvertibleTo(v.Type()) {
		v.Set(h.Convert(v.Type()))
		return
	}
	switch x := v.Addr().Interface().(type) {
	case *string:
		*x = "open" // a state of Breaker, and new to the others
	case *bool:
		*x = true
	case *error:
		*x = errRefused
	default:
		switch {
		case v.CanInt():
			v.SetInt(v.Int() + 7)
		case v.CanUint():
			v.SetUint(v.Uint() + 7)
		case v.CanFloat():
			v.SetFloat(v.Float() + 0.5)
		default:
			t.Fatalf("%s is a %v", name, v.Type())
		}
	}
}

// Names and units follow the rules of Prometheus and OpenTelemetry: an exporter makes the names of
// one from the other.
func TestNames(t *testing.T) {
	seen := map[string]bool{}
	unit := regexp.MustCompile(`^(|1|s|\{[a-z_]+\})$`)
	for _, m := range invent().reader().Metrics() {
		base := strings.TrimSuffix(m.Name, "_total")
		if (base != m.Name) != (m.Kind == metrics.Counter) {
			t.Errorf("%s is of kind %v", m.Name, m.Kind)
		}
		if !regexp.MustCompile(`^tiered_[a-z_]+[a-z]$`).MatchString(m.Name) || !unit.MatchString(m.Unit) || m.Help == "" {
			t.Errorf("%+v", m)
		}
		if strings.HasSuffix(base, "_seconds") != (m.Unit == "s") || strings.HasSuffix(base, "_ratio") != (m.Unit == "1") {
			t.Errorf("%s has the unit %q", m.Name, m.Unit)
		}
		base = strings.TrimSuffix(strings.TrimSuffix(base, "_seconds"), "_ratio")
		if seen[base] {
			t.Errorf("two metrics are %s without unit", base)
		}
		seen[base] = true
	}
	if len(seen) < 50 {
		t.Errorf("only %d metrics", len(seen))
	}
}

// Names that no policy can have, and a node might, are valid labels, and two of them stay two
// series.
func TestHostileNames(t *testing.T) {
	long := strings.Repeat("é", 1000)
	names := []string{
		"", "}", "a\nb", "a\\b", `a"b`, "\xff", "\xfe", "\xff\xfe", "a\x00b", "\u2028", long, long + "x",
		strings.Repeat("\xff", 200),
	}
	i := invent()
	for _, name := range names {
		var p tiered.PolicyStats
		var n tiered.NodeStats
		p.Leases.Held, n.Outages.Cause, n.Outages.Breaker = 1, name, name
		i.stats.Policies[name], i.stats.Nodes[name] = p, n
	}
	i.stats.Format, i.stats.Script = "\xff", long
	count := map[string]int{}
	for s := range i.reader().Samples() {
		count[s.Metric.Name]++
		for _, l := range s.Labels {
			if !utf8.ValidString(l) || len(l) > 200 || strings.ContainsAny(l, "\x00\n") {
				t.Errorf("%s: a label is %q", s.Metric.Name, l)
			}
		}
	}
	for _, name := range []string{"tiered_held_tokens", "tiered_outages_total"} {
		if count[name] != len(names)+1 {
			t.Errorf("%d series of %s, want %d", count[name], name, len(names)+1)
		}
	}
	series(t, i.reader()) // none is there twice
}

// A reader that stops gets no more.
func TestStop(t *testing.T) {
	r := invent().reader()
	all := 0
	for range r.Samples() {
		all++
	}
	for n := 1; n <= all; n++ {
		read := 0
		for range r.Samples() {
			if read++; read == n {
				break
			}
		}
		if read != n {
			t.Fatalf("%d read, want %d", read, n)
		}
	}
}

func TestBadInput(t *testing.T) {
	g := newGroup(t, remote.NewMemory())
	if _, err := metrics.NewReader(nil); err == nil || err.Error() != "metrics: the Group is nil: must be set" {
		t.Error(err)
	}
	r, err := metrics.NewReader(new(tiered.Group))
	if err == nil || err.Error() != "metrics: the Group is zero: must be made by tiered.NewGroup" {
		t.Error(err)
	}
	for range r.Samples() {
		t.Errorf("a nil Reader of %d metrics has samples", len(r.Metrics()))
	}
	for _, c := range []struct {
		groups map[string]*tiered.Group
		want   []string
	}{
		{nil, []string{"there are 0 Groups: must be 1 or more"}},
		{map[string]*tiered.Group{"jobs": nil, "": g}, []string{
			`the Group "jobs" is nil: must be set`, `the name of a Group is "": must be 1 to 128 bytes`,
		}},
		{map[string]*tiered.Group{"\xff": g}, []string{`the name of a Group is "\xff": must be 1 to 128 bytes`}},
		{map[string]*tiered.Group{strings.Repeat("x", 129): g}, []string{"must be 1 to 128 bytes of printable UTF-8"}},
	} {
		_, err := metrics.NewGroupsReader(c.groups)
		for _, want := range c.want {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%v, want %s", err, want)
			}
		}
	}
}

// Each Group has a label with its name.
func TestSeveralGroups(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		policy := tiered.Policy{Name: "api", Limit: tiered.PerHour(10)}
		byName := map[string]*tiered.Group{
			"users": newGroup(t, remote.NewMemory(), policy), "jobs": newGroup(t, remote.NewMemory(), policy),
		}
		r := fatal.Get(metrics.NewGroupsReader(byName))(t)
		for name, n := range map[string]int64{"users": 3, "jobs": 4} {
			testgroup.Of(t, byName[name], "api").AllowN(t.Context(), "key-ann", n)
		}
		got := series(t, r)
		for name, want := range map[string]float64{"users": 3, "jobs": 4} {
			if n := got["tiered_requested_tokens_total{"+name+",api,granted}"]; n != want {
				t.Errorf("%s: %v tokens, want %v", name, n, want)
			}
		}
		for _, m := range r.Metrics() {
			if m.Labels[0] != "group" {
				t.Errorf("%s has the labels %q", m.Name, m.Labels)
			}
		}
	})
}

// Tokens that come back lower no counter, and what Redis granted is still accounted for. A reload
// is counted. The breaker's changes are those of an outage with one failed probe at least.
func TestGroup(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := remote.NewMemory()
		g := newGroup(t, store, tiered.Policy{Name: "api", Limit: tiered.PerSecond(100)})
		r := fatal.Get(metrics.NewReader(g))(t)
		before := series(t, r)
		for range 20 {
			reservation := testgroup.Of(t, g, "api").ReserveN(t.Context(), "key-ann", 5)
			after := series(t, r)
			reservation.Cancel()
			time.Sleep(100 * time.Millisecond)
			for _, name := range slices.Sorted(maps.Keys(after)) {
				if strings.Contains(name, "_total{") && before[name] > after[name] {
					t.Errorf("%s falls from %v to %v", name, before[name], after[name])
				}
			}
			before = after
		}
		got := series(t, r)
		if n := got["tiered_refunded_tokens_total{api}"]; n != 100 {
			t.Errorf("%v tokens were given back, want 100", n)
		}
		if n := got["tiered_requested_tokens_total{api,granted}"]; n != 100 {
			t.Errorf("%v tokens were requested and granted, want 100", n)
		}
		g.CountReload(nil)
		g.CountReload(errRefused)
		ask := func() {
			for range 300 {
				testgroup.Of(t, g, "api").Allow(t.Context(), "key-bob")
				time.Sleep(10 * time.Millisecond)
			}
		}
		store.Fail(errRefused)
		ask()
		store.Fail(nil)
		ask()
		got = series(t, r)
		for name, want := range map[string]float64{
			"tiered_config_reloads_total{applied}": 1, "tiered_config_reloads_total{failed}": 1,
			"tiered_config_last_reload_successful{}": 0,
			"tiered_outages_total{memory}":           1, "tiered_breaker_changes_total{memory,closed}": 1,
			"tiered_breaker_changes_total{memory,open}": got["tiered_breaker_changes_total{memory,probing}"],
		} {
			if got[name] != want {
				t.Errorf("%s is %v, want %v", name, got[name], want)
			}
		}
		if n := got["tiered_breaker_changes_total{memory,open}"]; n < 2 {
			t.Errorf("the breaker opened %v times, want 2 or more", n)
		}
	})
}

// The counters of a policy that was not there begin anew, as after a restart: they do not stand
// still until they are as high as before.
func TestCounterThatComesBack(t *testing.T) {
	figures := func(admitted int64) *invented {
		var p tiered.PolicyStats
		p.Leases.Spent = admitted
		return &invented{stats: tiered.Stats{Policies: map[string]tiered.PolicyStats{"p": p}}}
	}
	source := figures(900)
	r := metrics.ReaderOf(source)
	read := func(stats *invented) (sum float64) {
		source.stats = stats.stats
		for s := range r.Samples() {
			if s.Metric.Kind == metrics.Counter && slices.Contains(s.Labels, "p") {
				sum += s.Value
			}
		}
		return sum
	}
	full := read(figures(900))
	if lower := read(figures(890)); lower != full || full == 0 {
		t.Errorf("the counters sum to %v, and then to %v: none may fall", full, lower)
	}
	read(&invented{}) // a mistake in the configuration: the policy is gone
	if again := read(figures(300)); again >= full || again == 0 {
		t.Errorf("the counters sum to %v after the policy came back, and were at %v before", again, full)
	}
}

// A policy that begins anew between two readings begins at 0, as after a restart: its counters do
// not stand still until the new ones have overtaken the old.
func TestPolicyThatBeginsAnewBetweenReadings(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := tiered.Policy{Name: "api", Limit: tiered.PerMinute(100_000)}
		g := newGroup(t, remote.NewMemory(), p)
		use := func(n int) {
			for range n {
				testgroup.Of(t, g, "api").Allow(t.Context(), "ann")
			}
		}
		readers := map[string]*metrics.Reader{
			"{api,remote,granted}":   fatal.Get(metrics.NewReader(g))(t),
			"{g,api,remote,granted}": fatal.Get(metrics.NewGroupsReader(map[string]*tiered.Group{"g": g}))(t),
		}
		totals := fatal.Get(metrics.NewTotalsReader(g, nil))(t)
		read := func() (all [3]float64) {
			i := 0
			for _, labels := range slices.Sorted(maps.Keys(readers)) {
				all[i] = series(t, readers[labels])["tiered_decisions_total"+labels]
				i++
			}
			all[2] = series(t, totals)["tiered_decisions_total{all,remote,granted}"]
			return all
		}
		use(900)
		if got := read(); got != [3]float64{900, 900, 900} {
			t.Errorf("at first %v", got)
		}
		fatal.If(t, g.SetPolicies(nil))
		p.Algorithm = tiered.SlidingWindow
		fatal.If(t, g.SetPolicies([]tiered.Policy{p}))
		use(500)
		before := read()
		if use(300); before != [3]float64{500, 500, 1400} {
			t.Errorf("the policy began anew, and has %v", before)
		}
		after := read()
		for i := range after {
			if after[i] != before[i]+300 {
				t.Errorf("300 decisions: from %v to %v", before, after)
			}
		}
	})
}

// So does a node that left its Cluster and came back. One that stays never falls: its figures are
// no snapshot.
func TestNodeThatBeginsAnewBetweenReadings(t *testing.T) {
	i := invent()
	r := i.reader()
	for step, c := range []struct {
		number int
		is     int64
		want   float64
	}{{0, 1000, 1000}, {0, 998, 1000}, {1, 30, 30}, {1, 29, 30}, {1, 31, 31}} {
		var n tiered.NodeStats
		n.Number, n.Calls.Late = c.number, c.is
		i.stats.Nodes["n"] = n
		if got := series(t, r)["tiered_late_calls_total{n}"]; got != c.want {
			t.Errorf("step %d: %v, want %v", step, got, c.want)
		}
	}
}
