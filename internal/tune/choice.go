package tune

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"github.com/tiered-limiter/tiered-limiter/sim/measure"
	"github.com/tiered-limiter/tiered-limiter/sim/scenario"
)

// Choice is a set of settings. The zero value is what the limiter does by itself.
type Choice struct {
	Mode      string            // local, open, closed; empty is local
	Size      int64             // of a lease: 0 follows demand, -1 leases nothing
	Period    scenario.Duration // 0 is 250ms
	Processes int               // Options.Processes
}

// The axes, as a sweep names them.
const (
	modePath, sizePath, periodPath, processesPath = "fleet.mode", "fleet.size", "fleet.period", "fleet.processes"
)

var paths = []string{modePath, sizePath, periodPath, processesPath}

// values returns a choice by axis.
func (c Choice) values() map[string]string {
	period := c.Period
	if period == 0 {
		period = defaultPeriod
	}
	return map[string]string{
		modePath: c.mode(), sizePath: fmt.Sprint(c.Size), periodPath: period.String(),
		processesPath: fmt.Sprint(c.Processes),
	}
}

const defaultPeriod = scenario.Duration(250 * time.Millisecond)

func (c Choice) mode() string {
	if c.Mode == "" {
		return "local"
	}
	return c.Mode
}

// fleet returns a choice as parameters of a fleet statement.
func (c Choice) fleet() string {
	text := "mode=" + c.mode()
	if c.Size != 0 {
		text += fmt.Sprintf(" size=%d", c.Size)
	}
	if c.Period != 0 {
		text += fmt.Sprintf(" period=%v", c.Period)
	}
	if c.Processes != 0 {
		text += fmt.Sprintf(" processes=%d", c.Processes)
	}
	return text
}

// String is a choice in words.
func (c Choice) String() string {
	var lease string
	switch {
	case c.Size < 0:
		lease = "no leases"
	case c.Size == 0:
		lease = "leases that follow demand"
	default:
		lease = fmt.Sprintf("leases of %d", c.Size)
	}
	if c.Size >= 0 && c.Period != 0 {
		lease += fmt.Sprintf(" for %v", c.Period)
	}
	text := "fail-" + c.mode() + ", " + lease
	if c.Processes > 0 {
		text += fmt.Sprintf(", Processes %d", c.Processes)
	}
	return text
}

// choices returns all that are tried, the plainest first: of equal ones the first is taken.
func (q *Question) choices() (all []Choice) {
	type lease struct {
		size   int64
		period time.Duration
	}
	leases := []lease{{0, 0}, {0, 100 * time.Millisecond}, {0, time.Second}}
	n, burst := int64(q.Processes), q.Limit.Burst
	var sizes []int64
	for _, size := range []int64{burst / (8 * n), burst / (2 * n), 2 * burst / n, burst / 4} {
		if size = min(size, burst/4); size >= 2 && (len(sizes) == 0 || size > sizes[len(sizes)-1]) {
			sizes = append(sizes, size)
		}
	}
	for _, size := range sizes {
		leases = append(leases, lease{size, 0}) // how long it lasts follows from its size
	}
	leases = append(leases, lease{-1, 0})
	for _, l := range leases {
		for _, c := range []Choice{
			{Mode: "local", Processes: q.Processes},
			{Mode: "local"},
			{Mode: "closed"},
			{Mode: "open"},
		} {
			c.Size, c.Period = l.size, scenario.Duration(l.period)
			all = append(all, c)
		}
	}
	return all
}

// Go is a choice as Go: a policy and options that compile where package tiered and time are imported.
func (q *Question) Go(c Choice) string {
	modes := map[string]string{"local": "FailLocal", "open": "FailOpen", "closed": "FailClosed"}
	var b strings.Builder
	fmt.Fprintf(&b, "policy := tiered.Policy{\n\tName:     %q,\n", q.Limit.Name)
	fmt.Fprintf(&b, "\tLimit:    tiered.Limit{Tokens: %d, Per: %s, Burst: %d},\n", q.Limit.Tokens,
		goDuration(time.Duration(q.Limit.Per)), q.Limit.Burst)
	fmt.Fprintf(&b, "\tFailMode: tiered.%s,\n", modes[c.mode()])
	var lease []string
	switch {
	case c.Size < 0:
		lease = append(lease, "Size: tiered.NoLease")
	case c.Size > 0:
		lease = append(lease, fmt.Sprintf("Size: %d", c.Size))
	}
	if c.Period != 0 {
		lease = append(lease, "Period: "+goDuration(time.Duration(c.Period)))
	}
	if len(lease) > 0 {
		fmt.Fprintf(&b, "\tLease:    tiered.Lease{%s},\n", strings.Join(lease, ", "))
	}
	b.WriteString("}\n")
	if c.Processes > 0 {
		fmt.Fprintf(&b, "options := &tiered.Options{Processes: %d} // what you run at least\n", c.Processes)
	} else {
		b.WriteString("options := &tiered.Options{}\n")
	}
	return b.String()
}

// policy returns a choice for a program to read.
func (q *Question) policy(c Choice) *measure.Policy {
	return &measure.Policy{
		Limit: q.Limit, FailMode: c.mode(), LeaseSize: c.Size, Period: cmp.Or(c.Period, defaultPeriod),
		Processes: c.Processes,
	}
}

// goDuration is a duration as an expression of Go.
func goDuration(d time.Duration) string {
	for _, u := range []struct {
		unit time.Duration
		name string
	}{
		{time.Hour, "Hour"},
		{time.Minute, "Minute"},
		{time.Second, "Second"},
		{time.Millisecond, "Millisecond"},
		{time.Microsecond, "Microsecond"},
	} {
		if d%u.unit == 0 && d > 0 {
			if d == u.unit {
				return "time." + u.name
			}
			return fmt.Sprintf("%d * time.%s", d/u.unit, u.name)
		}
	}
	return fmt.Sprintf("%d * time.Nanosecond", d)
}
