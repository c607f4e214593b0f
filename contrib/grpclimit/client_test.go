package grpclimit_test

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	pb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/status"

	"github.com/tiered-limiter/tiered-limiter/contrib/grpclimit"
	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/fatal"
	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/testgroup"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

func newClient(t testing.TB, o *grpclimit.ClientOptions, rules ...grpclimit.Rule) *grpclimit.Client {
	t.Helper()
	c := fatal.Get(grpclimit.NewClient(rules, o))(t)
	return c
}

// A call over the limit fails before it is sent, with an error that says why.
func TestClientFails(t *testing.T) {
	g, store := group(t)
	impl := &service{}
	l := testgroup.NewLimiter(t, g, tiered.Policy{Name: "up", Limit: tiered.PerHour(1), FailMode: tiered.FailClosed})
	rule := perUser(l) // of outgoing metadata
	rule.Skip = func(ctx context.Context, _ grpclimit.Call) bool { return ctx.Value(skipped{}) != nil }
	c := dial(t, serve(t, impl), newClient(t, nil, rule).DialOptions()...)
	for i, want := range []codes.Code{codes.OK, codes.ResourceExhausted} {
		_, err := c.UnaryCall(as(t, "ann"), &pb.SimpleRequest{})
		if status.Code(err) != want {
			t.Errorf("call %d: %v, want %v", i, err, want)
		}
		if i == 0 {
			continue
		}
		var refused *grpclimit.Error
		if !errors.As(err, &refused) || refused.Key != "ann" || refused.RetryAfter < 59*time.Minute ||
			!errors.Is(err, tiered.ErrLimited) || strings.Contains(err.Error(), "ann") {
			t.Errorf("the error is %v", err)
		}
		if d := retryDelay(status.Convert(err)); d < 59*time.Minute {
			t.Errorf("RetryInfo says %v", d)
		}
	}
	if a := call(context.WithValue(as(t, "ann"), skipped{}, true), c); a.code != codes.OK {
		t.Errorf("skipped: %v", a.status)
	}
	if _, err := c.FullDuplexCall(as(t, "ann")); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("a stream: %v, want ResourceExhausted", err)
	}
	if a := call(as(t, ""), c); a.code != codes.InvalidArgument {
		t.Errorf("without a key: %v", a.status)
	}
	store.Fail(errors.New("down"))
	if a := call(as(t, "bob"), c); a.code != codes.Unavailable {
		t.Errorf("fail-closed: %v", a.status)
	}
	if n := impl.calls.Load(); n != 2 {
		t.Errorf("the server got %d calls, want 2", n)
	}
}

type skipped struct{}

// A call waits for its turn, until its context ends.
func TestClientWaits(t *testing.T) {
	g, _ := group(t)
	paced := fatal.Get(grpclimit.Pace(limiter(t, g, "up", tiered.Every(20*time.Millisecond)), "upstream"))(t)
	address := serve(t, &service{})
	c := dial(t, address, paced.DialOptions()...)
	begin := time.Now()
	for range 4 {
		if a := call(as(t, ""), c); a.code != codes.OK {
			t.Error(a.status)
		}
	}
	if answered, a := talk(as(t, ""), t, c, 2); answered != 2 {
		t.Errorf("%d answers, %v", answered, a.status)
	}
	if d := time.Since(begin); d < 70*time.Millisecond {
		t.Errorf("it took %v, want 80 ms at least", d)
	}

	slow := limiter(t, g, "slow", tiered.PerHour(1))
	slow.Allow(t.Context(), "upstream")
	c = dial(t, address, newClient(t, &grpclimit.ClientOptions{Wait: true},
		grpclimit.Rule{Limiter: slow, Key: grpclimit.Constant("upstream"), Missing: grpclimit.Refuse}).DialOptions()...)
	_, err := c.UnaryCall(as(t, ""), &pb.SimpleRequest{})
	if status.Code(err) != codes.ResourceExhausted || !errors.Is(err, context.DeadlineExceeded) ||
		!errors.Is(err, tiered.ErrLimited) {
		t.Errorf("tokens that cannot come in time: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	stop := time.AfterFunc(10*time.Millisecond, cancel)
	defer stop.Stop()
	if _, err := c.UnaryCall(ctx, &pb.SimpleRequest{}); status.Code(err) != codes.Canceled {
		t.Errorf("canceled while it waited: %v", err)
	}
}

// Messages of a stream count where they are sent. A refusal ends the stream, and leaves nothing
// behind (goleak).
func TestClientMessages(t *testing.T) {
	g, _ := group(t)
	rule := grpclimit.Rule{Limiter: limiter(t, g, "up", tiered.PerHour(3)), Key: grpclimit.Method(), Missing: grpclimit.Refuse, Messages: true}
	c := dial(t, serve(t, &service{}), newClient(t, nil, rule).DialOptions()...)
	st := fatal.Get(c.FullDuplexCall(as(t, "")))(t)
	sent, err := 0, error(nil)
	for ; err == nil && sent < 10; sent++ {
		if err = st.Send(&pb.StreamingOutputCallRequest{}); err == nil {
			_, err = st.Recv()
		}
	}
	if sent != 4 || status.Code(err) != codes.ResourceExhausted {
		t.Errorf("message %d: %v, want ResourceExhausted for the fourth", sent, err)
	}
	eventually(t, "the stream has ended", func() bool { return st.Context().Err() != nil })
	if _, err := st.Recv(); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("Recv: %v, want ResourceExhausted", err)
	}
	if err := st.Send(&pb.StreamingOutputCallRequest{}); err == nil {
		t.Error("a message was sent on an ended stream")
	}
}

// A stream that ends by itself has no refusal. The context that was made for it ends too: otherwise
// a long context of the caller would keep all of them.
func TestClientStreamEnds(t *testing.T) {
	g, _ := group(t)
	rule := grpclimit.Rule{Limiter: limiter(t, g, "up", tiered.PerHour(3)), Key: grpclimit.Method(), Missing: grpclimit.Refuse, Messages: true}
	var made context.Context
	o := append(newClient(t, &grpclimit.ClientOptions{Wait: true}, rule).DialOptions(), grpc.WithChainStreamInterceptor(func(
		ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, stream grpc.Streamer,
		o ...grpc.CallOption,
	) (grpc.ClientStream, error) {
		made = ctx
		return stream(ctx, desc, cc, method, o...)
	}))
	c := dial(t, serve(t, &service{duplex: func(pb.TestService_FullDuplexCallServer) error { return errNotFound }}), o...)
	if _, a := talk(as(t, ""), t, c, 3); a.code != codes.NotFound {
		t.Errorf("%v, want NotFound", a.status)
	}
	eventually(t, "the stream's context has ended", func() bool { return made.Err() != nil })
}

// A function of the user that panics in a client fails the call.
func TestClientPanics(t *testing.T) {
	g, _ := group(t)
	rule := perUser(limiter(t, g, "up", tiered.PerHour(3)))
	rule.Key = grpclimit.KeyFunc(func(context.Context, grpclimit.Call) (string, error) { panic("ann") })
	var lines strings.Builder
	logger := slog.New(slog.NewTextHandler(&lines, nil))
	c := dial(t, serve(t, &service{}), newClient(t, &grpclimit.ClientOptions{Logger: logger}, rule).DialOptions()...)
	if a := call(as(t, "ann"), c); a.code != codes.Internal {
		t.Error(a.status)
	}
	if _, err := c.FullDuplexCall(as(t, "ann")); status.Code(err) != codes.Internal {
		t.Error(err)
	}
	if s := lines.String(); strings.Count(s, "\n") != 1 || strings.Contains(s, "ann") {
		t.Errorf("logged %q", s)
	}
}

// Constructors name field, value and rule of all that is wrong, at once.
func TestMistakes(t *testing.T) {
	g, _ := group(t)
	l := limiter(t, g, "user", tiered.PerHour(3))
	good := perUser(l)
	with := func(change func(*grpclimit.Rule)) []grpclimit.Rule {
		r := good
		change(&r)
		return []grpclimit.Rule{r}
	}
	plans := testgroup.NewLimiter(t, g, tiered.Policy{Name: "plans", Limit: tiered.PerDay(1), Plans: map[string]tiered.Limit{"pro": tiered.PerDay(9)}})
	cost := func(context.Context, grpclimit.Call, grpclimit.End) int64 { return 1 }
	plan := func(context.Context, grpclimit.Call) string { return "" }
	for _, c := range []struct {
		rules  []grpclimit.Rule
		o      *grpclimit.Options
		client bool
		want   []string
	}{
		{nil, nil, false, []string{"rules is empty: must have one at least"}},
		{nil, nil, true, []string{"rules is empty: must have one at least"}},
		{make([]grpclimit.Rule, 1), nil, false, []string{
			"rules[0].Limiter is nil: must be set", "rules[0].Key is zero: must be set", "rules[0].Missing is 0: must be Refuse",
		}},
		{[]grpclimit.Rule{good, good}, nil, false, []string{`rules[1].Limiter has policy "user", as rules[0] has`}},
		{with(func(r *grpclimit.Rule) { r.Missing = 9 }), nil, false, []string{"rules[0].Missing is 9: must be"}},
		{with(func(r *grpclimit.Rule) { r.Limiter = new(tiered.Limiter) }), nil, true, []string{"rules[0].Limiter is zero: must be made by"}},
		{
			with(func(r *grpclimit.Rule) { r.Key = grpclimit.KeyFunc(nil) }), nil, false,
			[]string{"rules[0].Key is KeyFunc(nil): must be a function"},
		},
		{
			with(func(r *grpclimit.Rule) { r.Key = grpclimit.Metadata("x user") }), nil, false,
			[]string{`is Metadata("x user"): must have only a-z`},
		},
		{with(func(r *grpclimit.Rule) { r.Key = grpclimit.Metadata("") }), nil, false, []string{`is Metadata(""): must not be empty`}},
		{with(func(r *grpclimit.Rule) { r.Key = grpclimit.Metadata("grpc-x") }), nil, false, []string{"must not begin with grpc-"}},
		{with(func(r *grpclimit.Rule) { r.Key = grpclimit.Credential(":authority") }), nil, false, []string{`is Credential(":authority"): must`}},
		{with(func(r *grpclimit.Rule) { r.Key = grpclimit.Constant("") }), nil, false, []string{"is Constant with 0 bytes: must be 1 to 65536"}},
		{with(func(r *grpclimit.Rule) { r.Key = grpclimit.JoinKeys() }), nil, false, []string{"is JoinKeys(): must have one key"}},
		{with(func(r *grpclimit.Rule) { r.Key = grpclimit.JoinKeys(grpclimit.Key{}) }), nil, false, []string{"is JoinKeys with key 0 zero: must be set"}},
		{
			with(func(r *grpclimit.Rule) { r.Key = grpclimit.JoinKeys(grpclimit.KeyFunc(nil)).Hashed() }), nil, false,
			[]string{"with key 0 that is KeyFunc(nil)"},
		},
		{with(func(r *grpclimit.Rule) { r.Key = grpclimit.ForwardedFor() }), nil, false, []string{"is ForwardedFor(): must have the prefix"}},
		{
			with(func(r *grpclimit.Rule) { r.Key = grpclimit.ForwardedFor(netip.Prefix{}) }), nil, false,
			[]string{"with proxy 0 invalid Prefix: must"},
		},
		{with(func(r *grpclimit.Rule) { r.Key = grpclimit.ForwardedFor().Prefix(1, 1) }), nil, false, []string{"is ForwardedFor(): must"}},
		{with(func(r *grpclimit.Rule) { r.Key = grpclimit.PeerIP().Prefix(33, 64) }), nil, false, []string{"is Prefix(33, 64): must be 1 to 32"}},
		{
			with(func(r *grpclimit.Rule) { r.Key = grpclimit.Method().Prefix(24, 64) }), nil, false,
			[]string{"is Prefix(24, 64) of a key that is no"},
		},
		{
			with(func(r *grpclimit.Rule) { r.Actual, r.Messages = cost, true }), nil, false,
			[]string{"rules[0].Actual is set: must be nil if"},
		},
		{with(func(r *grpclimit.Rule) { r.Actual = cost }), nil, true, []string{"rules[0].Actual is set: must be nil for a client"}},
		{
			with(func(r *grpclimit.Rule) { r.Key = grpclimit.JoinKeys(grpclimit.Method(), grpclimit.PeerIP()) }), nil, true,
			[]string{"rules[0].Key is of the client of"},
		},
		{with(func(r *grpclimit.Rule) { r.Key = grpclimit.TLSSubject().Hashed() }), nil, true, []string{"rules[0].Key is of the client of"}},
		{with(func(r *grpclimit.Rule) { r.Plan, r.Limiter = plan, plans }), &grpclimit.Options{Plan: plan}, false, []string{
			"Options.Plan is set, and no policy of the rules without Plan has Plans",
		}},
		{
			[]grpclimit.Rule{good},
			&grpclimit.Options{Prefix: "Rate Limit", Jitter: -1},
			false,
			[]string{`Options.Prefix is "Rate Limit": must have only a-z`, "Options.Jitter is -1ns: must be 0 to 1h"},
		},
		{[]grpclimit.Rule{good}, &grpclimit.Options{Jitter: 2 * time.Hour}, false, []string{"Options.Jitter is 2h0m0s: must"}},
	} {
		var err error
		if c.client {
			_, err = grpclimit.NewClient(c.rules, nil)
		} else {
			_, err = grpclimit.New(c.rules, c.o)
		}
		if err == nil {
			t.Errorf("accepted, want %q", c.want)
			continue
		}
		for _, want := range c.want {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("the error is %q, want %q", err, want)
			}
		}
		if n := strings.Count(err.Error(), "\n") + 1; n != len(c.want) {
			t.Errorf("%d errors, want %d: %v", n, len(c.want), err)
		}
	}
	for name, f := range map[string]func() error{
		"ByPeer":     func() error { _, err := grpclimit.ByPeer(nil); return err },
		"ByMetadata": func() error { _, err := grpclimit.ByMetadata(nil, "x"); return err },
		"Pace":       func() error { _, err := grpclimit.Pace(nil, "x"); return err },
	} {
		if err := f(); err == nil || !strings.Contains(err.Error(), "rules[0].Limiter is nil: must be set") {
			t.Errorf("%s(nil): %v", name, err)
		}
	}
	fatal.Get(grpclimit.ByMetadata(l, "x-user"))(t)
}
