package measure

import (
	"reflect"
	"strings"
	"time"
)

const (
	microsecond = 1e-6
	millisecond = 1e-3
)

// reader reads a metric of package scenario from a report's Metrics.
type reader struct {
	field int     // of Metrics
	scale float64 // of a unit of the report, in units of an expectation
	fleet bool    // of the whole fleet: unknown for a single limit
}

// readers has one for each of scenario.Metrics, from the tags of Metrics.
var readers = func() map[string]reader {
	all := map[string]reader{}
	for i, t := 0, reflect.TypeFor[Metrics](); i < t.NumField(); i++ {
		tag := t.Field(i).Tag
		name, fleet, _ := strings.Cut(tag.Get("metric"), ",")
		r := reader{i, 1, fleet != ""}
		switch unit := tag.Get("json"); {
		case strings.HasSuffix(unit, "_us"):
			r.scale = microsecond
		case strings.HasSuffix(unit, "_ms"):
			r.scale = millisecond
		}
		if name != "" {
			all[name] = r
		}
	}
	return all
}()

func (r reader) get(m *Metrics) float64 {
	v := reflect.ValueOf(m).Elem().Field(r.field)
	if v.CanInt() {
		return float64(v.Int())
	}
	return v.Float()
}

// Value returns a metric of package scenario in the unit of an expectation. It is −1 if it is unknown, or no metric.
func (m *Metrics) Value(metric string) float64 {
	r, ok := readers[metric]
	if !ok {
		return -1
	}
	v := r.get(m)
	if v < 0 {
		return -1
	}
	return v * r.scale
}

// micros and millis convert d to the units in the names of the fields. A negative d is −1.
func micros(d time.Duration) float64 { return inUnits(d, time.Microsecond) }
func millis(d time.Duration) float64 { return inUnits(d, time.Millisecond) }

func inUnits(d, unit time.Duration) float64 {
	if d < 0 {
		return -1
	}
	return float64(d) / float64(unit)
}

// ratio returns part by whole, −1 if whole is 0.
func ratio(part, whole int64) float64 {
	if whole == 0 {
		return -1
	}
	return float64(part) / float64(whole)
}
