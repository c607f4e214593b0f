package otellimit

import (
	"context"
	"errors"
	"strings"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// The events of a span.
const (
	refusedEvent = "ratelimit.refused"
	waitEvent    = "ratelimit.wait"
)

// shortWait is the longest wait of an admitted caller that is no event: a round trip to Redis takes
// 0.2 to 2 ms.
const shortWait = 2 * time.Millisecond

// Record adds the event "ratelimit.refused" to the span of ctx if d is a refusal. It has the
// policy, the reason and the tier as attributes, and the limit and the time until a retry makes
// sense if there are. It never has the key.
//
// It is what Options.Refused of httplimit and of grpclimit wants. It does nothing, and allocates
// nothing, if d admits or if the span is not recording. The request's span keeps its status:
// whether a refusal is an error is for the service to say.
func Record(ctx context.Context, d tiered.Decision) {
	if span := trace.SpanFromContext(ctx); !d.Allowed && span.IsRecording() {
		span.AddEvent(refusedEvent, trace.WithAttributes(refusal(&d)...))
	}
}

// refusal returns the attributes of a refusal.
func refusal(d *tiered.Decision) []attribute.KeyValue {
	all := []attribute.KeyValue{
		policyKey.String(strings.ToValidUTF8(d.Policy, "?")), reasonKey.String(d.Reason.String()), tierKey.String(d.Tier.String()),
	}
	if d.LimitNumber > 0 {
		all = append(all, attribute.Int("ratelimit.limit_number", int(d.LimitNumber)))
	}
	if d.RetryAfter > 0 {
		all = append(all, attribute.Float64("ratelimit.retry_after", d.RetryAfter.Seconds()))
	}
	return all
}

// WaitN is l.WaitN, and adds the event "ratelimit.wait" to the span of ctx when the wait has ended.
// The event has the policy and the seconds as attributes. If the tokens were not taken, it also has
// the reason. There is no event for a wait of up to 2 ms that ends with the tokens, and none if the
// span is not recording. Then WaitN costs nothing more than l.WaitN.
func WaitN(ctx context.Context, l *tiered.Limiter, key string, n int64) error {
	if !trace.SpanFromContext(ctx).IsRecording() {
		return l.WaitN(ctx, key, n)
	}
	return wait(ctx, func() error { return l.WaitN(ctx, key, n) }, policyKey.String(l.Policy().Name))
}

// Wait is u.Wait, and adds the event of [WaitN]. It has the policy that refused last, and none if
// the tokens were taken.
func Wait(ctx context.Context, u tiered.Use) error {
	if !trace.SpanFromContext(ctx).IsRecording() {
		return u.Wait(ctx)
	}
	return wait(ctx, func() error { return u.Wait(ctx) })
}

// wait waits, and adds the event. policy is what the event has if the error names none.
func wait(ctx context.Context, tokens func() error, policy ...attribute.KeyValue) error {
	start := time.Now()
	err := tokens()
	took := time.Since(start)
	if err == nil && took <= shortWait {
		return nil
	}
	all := []attribute.KeyValue{attribute.Float64("ratelimit.wait.duration", took.Seconds())}
	var limited *tiered.LimitedError
	switch {
	case errors.As(err, &limited):
		all = append(all, refusal(&limited.Decision)...)
	case err != nil:
		all = append(append(all, policy...), reasonKey.String(tiered.Canceled.String()))
	default:
		all = append(all, policy...)
	}
	trace.SpanFromContext(ctx).AddEvent(waitEvent, trace.WithAttributes(all...))
	return err
}
