package otellimit

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	"github.com/tiered-limiter/tiered-limiter/tiered"
	"github.com/tiered-limiter/tiered-limiter/tiered/httplimit"
)

// The events of a span.
const (
	refusedEvent = "ratelimit.refused"
	waitEvent    = "ratelimit.wait"
)

// shortWait is the longest wait of an admitted caller that is no event: a round trip to Redis takes 0.2 to 2 ms.
const shortWait = 2 * time.Millisecond

// Record adds the event "ratelimit.refused" to the span of ctx if d is a refusal. It has the policy, the reason and
// the tier as attributes, and the limit and the time until a retry makes sense if there are. It never has the key.
//
// It does nothing, and allocates nothing, if d admits or if the span is not recording. The request's span keeps its
// status: whether a refusal is an error is for the service to say.
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

// WaitN is l.WaitN, and adds the event "ratelimit.wait" to the span of ctx when the wait has ended. The event has the
// policy and the seconds as attributes. If the tokens were not taken, it also has the reason. There is no event for a
// wait of up to 2 ms that ends with the tokens, and none if the span is not recording. Then WaitN costs nothing more
// than l.WaitN.
func WaitN(ctx context.Context, l *tiered.Limiter, key string, n int64) error {
	span := trace.SpanFromContext(ctx)
	if !span.IsRecording() {
		return l.WaitN(ctx, key, n)
	}
	start := time.Now()
	err := l.WaitN(ctx, key, n)
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
		all = append(all, policyKey.String(l.Policy().Name), reasonKey.String(tiered.Canceled.String()))
	default:
		all = append(all, policyKey.String(l.Policy().Name))
	}
	span.AddEvent(waitEvent, trace.WithAttributes(all...))
	return err
}

// Denied is for the field Denied of [httplimit.Options]: it calls [Record] and then answer. nil writes the line of text
// that the middleware writes without Denied. With a Denied, Options.Problem has no effect.
func Denied(answer func(http.ResponseWriter, *http.Request, httplimit.Refusal)) func(
	http.ResponseWriter, *http.Request, httplimit.Refusal,
) {
	return func(w http.ResponseWriter, r *http.Request, refusal httplimit.Refusal) {
		Record(r.Context(), refusal.Decision)
		if answer != nil {
			answer(w, r, refusal)
			return
		}
		httplimit.WriteRefusal(&bodyWriter{w, http.Header{}}, refusal.Decision)
	}
}

// bodyWriter drops the header fields of the limit, because the middleware has set its own.
type bodyWriter struct {
	http.ResponseWriter
	dropped http.Header
}

// Header implements http.ResponseWriter.
func (w *bodyWriter) Header() http.Header { return w.dropped }

// WriteHeader implements http.ResponseWriter.
func (w *bodyWriter) WriteHeader(status int) {
	for _, name := range []string{"Content-Type", "X-Content-Type-Options"} {
		w.ResponseWriter.Header()[name] = w.dropped[name]
	}
	w.ResponseWriter.WriteHeader(status)
}
