package grpclimit_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"

	"github.com/tiered-limiter/tiered-limiter/contrib/grpclimit"
	"github.com/tiered-limiter/tiered-limiter/internal/defaults"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// A key function's error ends the call with InvalidArgument and its text, whatever Missing says.
// Outer interceptors find it.
func TestKeyFunctionsMayRefuse(t *testing.T) {
	odd := errors.New("x-user must be a number, not \xff")
	user := grpclimit.KeyFunc(func(ctx context.Context, _ grpclimit.Call) (string, error) {
		name := strings.Join(metadata.ValueFromIncomingContext(ctx, "x-user"), "")
		if strings.Trim(name, "0123456789") == "" {
			return name, nil
		}
		return "", odd
	})
	const text = "The call does not identify its client: x-user must be a number, not \uFFFD"
	for name, c := range map[string]struct {
		key     grpclimit.Key
		missing grpclimit.Missing
		user    string
		code    codes.Code
		text    string
	}{
		"a key":                     {user, grpclimit.Refuse, "7", codes.OK, ""},
		"no key, refused":           {user, grpclimit.Refuse, "", codes.InvalidArgument, "The call does not identify its client."},
		"no key, exempt":            {user, grpclimit.Exempt, "", codes.OK, ""},
		"an error, refused":         {user, grpclimit.Refuse, "ann", codes.InvalidArgument, text},
		"an error, exempt":          {user, grpclimit.Exempt, "ann", codes.InvalidArgument, text},
		"an error, counts together": {user, grpclimit.Together, "ann", codes.InvalidArgument, text},
		"hashed and joined":         {grpclimit.JoinKeys(grpclimit.Method(), user.Hashed()), grpclimit.Exempt, "ann", codes.InvalidArgument, text},
		"too long": {
			user, grpclimit.Exempt, strings.Repeat("1", defaults.MaxKeyLength+1), codes.InvalidArgument, "The call does not identify its client.",
		},
	} {
		t.Run(name, func(t *testing.T) {
			g, _ := group(t)
			s := server(t, nil, grpclimit.Rule{Limiter: limiter(t, g, "user", tiered.PerHour(10)), Key: c.key, Missing: c.missing})
			var seen error
			outer := func(ctx context.Context, r any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
				answer, err := next(ctx, r)
				seen = err
				return answer, err
			}
			client := dial(t, serve(t, &service{}, grpc.ChainUnaryInterceptor(outer, s.Unary), grpc.StreamInterceptor(s.Stream)))
			if a := call(as(t, c.user), client); a.code != c.code || a.status.Message() != c.text {
				t.Errorf("%v %q, want %v %q", a.code, a.status.Message(), c.code, c.text)
			}
			if errors.Is(seen, odd) != (c.text == text) {
				t.Errorf("an outer interceptor sees %v", seen)
			}
			if _, a := talk(as(t, c.user), t, client, 0); a.code != c.code || a.status.Message() != c.text {
				t.Errorf("a stream: %v, want %v %q", a.status, c.code, c.text)
			}
		})
	}
}
