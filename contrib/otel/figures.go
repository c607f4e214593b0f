package otellimit

import (
	"strconv"

	"go.opentelemetry.io/otel/attribute"

	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// figure is a metric of a Group, a policy or a node, which T are the figures of.
type figure[T any] struct {
	name, description string
	unit              string // in UCUM; "" for a state, which is not counted
	kind              kind
	read              func(of T, send func(value float64, attributes ...attribute.KeyValue))
}

type kind int

const (
	counter kind = iota // it only grows
	upDown              // the sum over processes makes sense
	gauge               // it does not
)

// figures are those of a Group.
type figures struct {
	tiered.Stats
	standing bool // a policy has standing shares
}

// number is a figure without attributes of its own.
type number interface {
	~int | ~int64 | ~uint64 | ~float64
}

// only is the metric that has one figure.
func only[T any, N number](kind kind, name, unit, description string, of func(T) N) figure[T] {
	return figure[T]{name, description, unit, kind, func(t T, send func(float64, ...attribute.KeyValue)) {
		send(float64(of(t)))
	}}
}

// shares is a metric of standing shares: there is none without a policy that has them.
func shares(name, unit, description string, of func(tiered.StandingStats) float64) figure[figures] {
	return figure[figures]{name, description, unit, gauge, func(f figures, send func(float64, ...attribute.KeyValue)) {
		if f.standing {
			send(of(f.Standing))
		}
	}}
}

// buckets is how many durations of a histogram were up to the bound "le", in seconds. The bounds are powers of two,
// from 61 µs to 4 s. The one of "+Inf" is the count of all. histogram_quantile of PromQL reads this.
func buckets[T any](name, unit, description string, of func(T) tiered.Histogram) figure[T] {
	return figure[T]{name, description, unit, counter, func(t T, send func(float64, ...attribute.KeyValue)) {
		h, until := of(t), int64(0)
		for i, n := range h.Buckets {
			until += n
			if i%perDouble == 0 && i < len(h.Buckets)-1 {
				send(float64(until), attribute.String("le", strconv.FormatFloat(h.Bound(i).Seconds(), 'g', -1, 64)))
			}
		}
		send(float64(until), attribute.String("le", "+Inf"))
	}}
}

// perDouble is how many buckets of a tiered.Histogram double the bound.
const perDouble = 4

func truth(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
