package grpclimit

import (
	"math"
	"strconv"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"

	"github.com/tiered-limiter/tiered-limiter/internal/rules"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// fieldPushback tells the retry policy of a gRPC client how many milliseconds to wait, or not to
// retry if it is negative (gRFC A6).
const fieldPushback = "grpc-retry-pushback-ms"

// longestPushback is what every client reads: some parse 32 bits, which is 25 days.
const longestPushback = math.MaxInt32 * time.Millisecond

// addPushback adds the trailer for a refusal. It needs to be alone: a client with two of them does
// not retry.
func addPushback(md metadata.MD, e *Error) {
	switch {
	case e.retry > 0 && e.retry <= longestPushback:
		md.Set(fieldPushback, strconv.FormatInt(e.retry.Milliseconds(), 10))
	case e.retry > 0 || e.status.Code() == codes.ResourceExhausted:
		md.Set(fieldPushback, "-1")
	}
}

// addLimit adds the trailers that state what is known of the limit, if d is not nil.
func (s *Server) addLimit(md metadata.MD, d *tiered.Decision) {
	if s.o.Omit || d == nil || !rules.Counted(d) {
		return
	}
	md.Set(s.o.Prefix+"-limit", strconv.FormatInt(max(d.Burst, 0), 10))
	md.Set(s.o.Prefix+"-remaining", strconv.FormatInt(max(d.Remaining, 0), 10))
	md.Set(s.o.Prefix+"-reset", strconv.FormatInt(seconds(d.ResetAfter), 10))
}

// seconds returns d in whole seconds, rounded up.
func seconds(d time.Duration) int64 {
	s := int64(d / time.Second)
	if d%time.Second > 0 {
		s++
	}
	return max(s, 0)
}
