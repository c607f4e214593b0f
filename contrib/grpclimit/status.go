package grpclimit

import (
	"errors"
	"math"
	"strings"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/protoadapt"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/tiered-limiter/tiered-limiter/internal/rules"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// Error is a refused call. It is what an interceptor returns, so that outer interceptors find it by
// errors.As. The status that gRPC sends for it has its code, a line of text and details, and
// contains no key unless [Options.ShowKeys] is set.
type Error struct {
	tiered.Decision // its Policy and Key are those that refused

	Method string // the full name of the method

	status *status.Status
	cause  error
	atOnce bool            // all places of the key are taken
	hidden bool            // the policy that refused is
	told   tiered.Decision // what trailers tell of: nothing if it is zero
	retry  time.Duration   // until a retry makes sense; 0 if it never does
}

// Error returns the status as text. It contains no key.
func (e *Error) Error() string { return e.status.String() }

// GRPCStatus returns the status of the call. Package status uses it.
func (e *Error) GRPCStatus() *status.Status { return e.status }

// Unwrap returns the *[tiered.LimitedError], the error of the context or that of the function of
// [KeyFunc], if there is one. So errors.Is finds [tiered.ErrLimited] and its like, context.Canceled
// and context.DeadlineExceeded.
func (e *Error) Unwrap() error { return e.cause }

// Code returns the status code for a Decision: OK if it allows. Otherwise it is ResourceExhausted
// if a limit refused, InvalidArgument if the key or the cost is not valid, DeadlineExceeded or
// Canceled if the call's context ended, and Unavailable if the client cannot help it.
func Code(d tiered.Decision) codes.Code {
	if d.Allowed {
		return codes.OK
	}
	switch d.Reason {
	case tiered.Limited, tiered.FallbackSpent, tiered.ExceedsBurst:
		return codes.ResourceExhausted
	case tiered.InvalidKey, tiered.InvalidCost:
		return codes.InvalidArgument
	case tiered.Canceled:
		if d.Expired {
			return codes.DeadlineExceeded
		}
		return codes.Canceled
	}
	return codes.Unavailable
}

// Status returns the status for a Decision: OK if it allows, and otherwise [Code], a line of text,
// RetryInfo if a later retry may be admitted, and QuotaFailure if a rate limit refused. It is for
// handlers that ask a Limiter themselves.
func Status(d tiered.Decision) *status.Status {
	if d.Allowed {
		return status.New(codes.OK, "")
	}
	return newError(request{}, d, nil).status
}

// newError returns the refusal that d is.
func newError(r request, d tiered.Decision, cause error) *Error {
	e := &Error{Decision: d, Method: r.call.Method, cause: cause, told: d}
	if after, ok := retryAfter(&d); ok {
		e.retry = milliseconds(after)
	}
	e.describe("")
	return e
}

// panicked returns the refusal of a call whose rules have panicked.
func panicked(r request) *Error {
	return &Error{Method: r.call.Method, status: status.New(codes.Internal, "The server failed to count the call.")}
}

// describe makes the status. The subject is that of QuotaFailure.
func (e *Error) describe(subject string) {
	st := status.New(Code(e.Decision), e.text())
	var details []protoadapt.MessageV1
	if e.retry > 0 {
		details = append(details, &errdetails.RetryInfo{RetryDelay: durationpb.New(e.retry)})
	}
	if st.Code() == codes.ResourceExhausted && !e.hidden && !e.atOnce {
		name := rules.LimitName(e.Policy, int(e.LimitNumber))
		details = append(details, &errdetails.QuotaFailure{Violations: []*errdetails.QuotaFailure_Violation{{
			Subject: subject, Description: "rate limit of policy " + name, QuotaId: name, QuotaValue: e.Burst,
		}}})
	}
	if full, err := st.WithDetails(details...); err == nil { // an error is a text that is not UTF-8
		st = full
	}
	e.status = st
}

// text describes the refusal in a sentence. It repeats neither the key, which may be a secret or
// another client's, nor the name of a policy, which is nothing to most clients.
func (e *Error) text() string {
	if e.atOnce {
		return "Too many calls at the same time."
	}
	switch e.Reason {
	case tiered.Limited, tiered.FallbackSpent:
		return "Rate limit exceeded."
	case tiered.ExceedsBurst:
		if e.Burst == 0 {
			return "Calls are not accepted."
		}
		return "The call costs more than the rate limit ever allows at once."
	case tiered.InvalidKey:
		if limited := new(tiered.LimitedError); e.cause != nil && !errors.As(e.cause, &limited) { // it is of the key's function
			return "The call does not identify its client: " + strings.ToValidUTF8(e.cause.Error(), "\uFFFD")
		}
		return "The call does not identify its client."
	case tiered.InvalidCost:
		return "The call has a cost that is not valid."
	case tiered.Canceled:
		if e.Expired {
			return "The deadline passed before the call was admitted."
		}
		return "The call was canceled before it was admitted."
	}
	return "The service cannot accept the call now. Try again later."
}

// maxSubject is the longest key in a status, in bytes: statuses travel in header fields, which
// peers bound.
const maxSubject = 256

// subjectOf returns a key as a text of Protocol Buffers, which must be UTF-8.
func subjectOf(key string) string {
	if len(key) > maxSubject {
		key = key[:maxSubject]
	}
	return strings.ToValidUTF8(key, "\uFFFD")
}

// retryUnavailable is the time after which to retry while Redis does not answer: it is tried again
// every half to one second.
const retryUnavailable = time.Second

// retryAfter returns when a retry makes sense. It reports false if it never does, or if nobody will
// retry.
func retryAfter(d *tiered.Decision) (time.Duration, bool) {
	switch d.Reason {
	case tiered.ExceedsBurst, tiered.InvalidKey, tiered.InvalidCost, tiered.Canceled:
		return 0, false
	case tiered.Limited:
		return d.RetryAfter, true
	case tiered.FallbackSpent:
		if d.RetryAfter > 0 { // otherwise the fallback never admits the cost, and Redis has to come back first
			return d.RetryAfter, true
		}
	}
	return retryUnavailable, true
}

// milliseconds returns d in whole milliseconds, rounded up and at least 1.
func milliseconds(d time.Duration) time.Duration {
	whole := d.Truncate(time.Millisecond)
	if whole < d && whole <= math.MaxInt64-time.Millisecond { // otherwise the next one is no Duration
		whole += time.Millisecond
	}
	return max(whole, time.Millisecond)
}
