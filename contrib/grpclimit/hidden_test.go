package grpclimit_test

import (
	"strings"
	"testing"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"

	"github.com/tiered-limiter/tiered-limiter/contrib/grpclimit"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// The trailers tell of the limit that is not hidden, also of a call that the hidden one refuses,
// whose status says only when to come back.
func TestHiddenRule(t *testing.T) {
	g, _ := group(t)
	method := grpclimit.Rule{Limiter: limiter(t, g, "method", tiered.PerDay(2)), Key: grpclimit.Method(), Missing: grpclimit.Refuse, Hidden: true}
	s := server(t, nil, perUser(limiter(t, g, "user", tiered.PerDay(9))), method)
	c := dial(t, serve(t, new(service), s.ServerOptions()...))
	for i, want := range []string{"9 8", "9 7", "9 7"} {
		a := call(as(t, "ann"), c)
		if got := a.limits(); !strings.HasPrefix(got, want) {
			t.Errorf("call %d: %q, want %q", i, got, want)
		}
		if refused := a.code == codes.ResourceExhausted; refused != (i == 2) {
			t.Errorf("call %d: %v", i, a.status)
		}
		for _, d := range a.status.Details() {
			if q, ok := d.(*errdetails.QuotaFailure); ok {
				t.Errorf("call %d: %v", i, q)
			}
		}
	}
}
