package picture

import (
	"math"
	"slices"
)

// scale turns values into pixels from the top (of an axis that goes up) or a part of a width. The zero value is not usable.
type scale struct {
	from, to float64
	log      bool
}

// scaleOf returns a scale from 0 to a round number above all values, or a logarithmic one when asked for: from a power of
// ten to a power of ten. Values that are not known do not count.
func scaleOf(log bool, series ...[]float64) scale {
	low, high := math.Inf(1), 0.0
	for _, v := range slices.Concat(series...) {
		if known(v) && v > 0 {
			low, high = min(low, v), max(high, v)
		}
	}
	switch {
	case high == 0:
		return scale{0, 1, false}
	case !log:
		step := niceStep(high / 4)
		return scale{0, step * math.Ceil(high/step-1e-9), false}
	}
	s := scale{math.Pow(10, math.Floor(math.Log10(low)+1e-9)), math.Pow(10, math.Ceil(math.Log10(high)-1e-9)), true}
	if s.from == s.to {
		s.to *= 10
	}
	return s
}

// wide reports whether values differ so much that only a logarithmic scale shows them all.
func wide(values []float64) bool {
	low, high := math.Inf(1), 0.0
	for _, v := range values {
		if !known(v) {
			continue
		}
		low, high = min(low, v), max(high, v)
	}
	return low > 0 && high/low > 30
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
		decades := math.Round(math.Log10(s.to / s.from))
		every := math.Ceil(decades / 5)
		for d := 0.0; d <= decades; d += every {
			values = append(values, s.from*math.Pow(10, d))
		}
		return values
	}
	step := niceStep((s.to - s.from) / 4)
	for i := 0.0; s.from+i*step <= s.to*(1+1e-9); i++ {
		values = append(values, s.from+i*step)
	}
	return values
}

// niceStep is the smallest of 1, 2, 2.5, 5 times a power of ten that is at least v.
func niceStep(v float64) float64 {
	power := math.Pow(10, math.Floor(math.Log10(v)))
	for _, m := range []float64{1, 2, 2.5, 5} {
		if m*power >= v*(1-1e-9) {
			return m * power
		}
	}
	return 10 * power
}

// timeSteps are distances of ticks on an axis of time, in seconds.
var timeSteps = []float64{
	.001, .002, .005, .01, .02, .05, .1, .2, .5, 1, 2, 5, 10, 15, 20, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200,
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
