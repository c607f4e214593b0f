package picture

import (
	"math"
	"slices"
)

// scale turns values into pixels from the top (of an axis that goes up) or a part of a width. The zero value is not
// usable.
type scale struct {
	from, to float64
	log      bool
	zero     bool // of a logarithmic scale: its foot is 0
}

// scaleOf returns a scale from 0 to a round number above all values, or a logarithmic one when asked for: between
// round numbers, with a foot for 0 below when it is among the values. Values that are not known do not count.
func scaleOf(log bool, series ...[]float64) scale {
	values := slices.Concat(series...)
	low, high := extent(values)
	switch {
	case high == 0:
		return scale{from: 0, to: 1}
	case !log:
		step := niceAbove(high/4, linearSteps)
		return scale{from: 0, to: step * math.Ceil(high/step-1e-9)}
	}
	s := scale{from: niceBelow(low), to: niceAbove(high, logSteps), log: true}
	if s.from >= s.to {
		s.to = s.from * 10
	}
	if slices.Contains(values, 0) {
		s.from, s.zero = s.from/10, true
	}
	return s
}

// smallest is below everything that is worth a place of its own on a scale: less is drawn as 0.
const smallest = 1e-9

// extent is the least and the largest value above 0; the largest is 0 when there is none.
func extent(values []float64) (low, high float64) {
	low = math.Inf(1)
	for _, v := range values {
		if known(v) && v > smallest {
			low, high = min(low, v), max(high, v)
		}
	}
	return low, high
}

// wide reports whether values differ so much that only a logarithmic scale shows them all.
func wide(values []float64) bool {
	low, high := extent(values)
	return high/low > 20
}

// at is where v lies between from (0) and to (1). What lies outside lies on the edge.
func (s scale) at(v float64) float64 {
	part := (v - s.from) / (s.to - s.from)
	if s.log {
		part = 0
		if v > 0 {
			part = math.Log(v/s.from) / math.Log(s.to/s.from)
		}
	}
	return min(max(part, 0), 1)
}

// ticks are about five values on the scale, round ones.
func (s scale) ticks() (values []float64) {
	if s.log {
		from := s.from
		if s.zero {
			values, from = append(values, 0), from*10
		}
		decades := math.Log10(s.to / from)
		every := max(1, int(math.Ceil(decades/5)))
		for d := int(math.Floor(math.Log10(from) + 1e-9)); ; d++ {
			for _, m := range logSteps {
				v := m * math.Pow(10, float64(d))
				switch {
				case v > s.to*(1+1e-9):
					return values
				case v >= from*(1-1e-9) && (decades <= 2 || m == 1 && d%every == 0):
					values = append(values, v)
				}
			}
		}
	}
	step := niceAbove((s.to-s.from)/4, linearSteps)
	for i := 0.0; s.from+i*step <= s.to*(1+1e-9); i++ {
		values = append(values, s.from+i*step)
	}
	return values
}

// The round numbers of a decade.
var (
	logSteps    = []float64{1, 2, 5}
	linearSteps = []float64{1, 2, 2.5, 5}
)

// powerBelow returns the greatest power of ten that is at most v.
func powerBelow(v float64) float64 { return math.Pow(10, math.Floor(math.Log10(v)+1e-9)) }

// niceBelow returns the greatest of logSteps times a power of ten that is at most v.
func niceBelow(v float64) float64 {
	power := powerBelow(v)
	nice := power
	for _, m := range logSteps {
		if m*power <= v*(1+1e-9) {
			nice = m * power
		}
	}
	return nice
}

// niceAbove returns the least of some steps times a power of ten that is at least v.
func niceAbove(v float64, steps []float64) float64 {
	power := powerBelow(v)
	for _, m := range steps {
		if m*power >= v*(1-1e-9) {
			return m * power
		}
	}
	return 10 * power
}

// timeSteps are distances of ticks on an axis of time, in seconds.
var timeSteps = []float64{
	.001, .002, .005, .01, .02, .05, .1, .2, .5, 1, 2, 5, 10, 15, 20, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200,
	10800, 21600, 43200,
}

// timeTicks are at most seven round times from 0 to total, in seconds.
func timeTicks(total float64) (values []float64) {
	i := slices.IndexFunc(timeSteps, func(step float64) bool { return total/step <= 6+1e-9 })
	step := total
	if i >= 0 {
		step = timeSteps[i]
	}
	for t := 0.0; t <= total*(1+1e-9); t += step {
		values = append(values, t)
	}
	return values
}
