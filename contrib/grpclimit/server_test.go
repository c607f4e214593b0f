package grpclimit_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	pb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/tiered-limiter/tiered-limiter/contrib/grpclimit"
	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/fatal"
	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/race"
	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/testgroup"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// What a client sees of admitted and refused calls. A unary call is one message, where messages
// count.
func TestUnary(t *testing.T) {
	g, store := group(t)
	rule := perUser(testgroup.NewLimiter(t, g, tiered.Policy{
		Name: "user", Limit: tiered.PerHour(2), FailMode: tiered.FailClosed, Lease: tiered.Lease{Size: tiered.NoLease},
	}))
	rule.Messages = true
	s := server(t, nil, rule)
	impl := &service{}
	c := dial(t, serve(t, impl, s.ServerOptions()...))
	for i, want := range []struct {
		user   string
		code   codes.Code
		limits string
	}{
		{"ann", codes.OK, "2 1 1800 -"},
		{"ann", codes.OK, "2 0 3600 -"},
		{"ann", codes.ResourceExhausted, "2 0 3600 1800000"},
		{"bob", codes.OK, "2 1 1800 -"},
		{"", codes.InvalidArgument, "- - - -"},
		{strings.Repeat("a", 64<<10), codes.OK, "2 1 1800 -"},
		{strings.Repeat("a", 64<<10+1), codes.InvalidArgument, "- - - -"},
	} {
		a := call(as(t, want.user), c)
		limits := a.limits()
		if f := strings.Fields(limits); len(f[3]) == 7 && f[3] > "1790000" { // some ms have passed
			limits = strings.Join(append(f[:3], "1800000"), " ")
		}
		if a.code != want.code || limits != want.limits {
			t.Errorf("call %d: %v with trailers %q, want %v, %q", i, a.status, a.limits(), want.code, want.limits)
		}
		if len(a.header["ratelimit-limit"]) > 0 {
			t.Errorf("call %d: the limit is in the header: gRPC would not retry the call", i)
		}
	}
	if n := impl.calls.Load(); n != 4 {
		t.Errorf("the handler ran %d times, want 4", n)
	}
	store.Fail(errors.New("down"))
	a := call(as(t, "carl"), c)
	if a.code != codes.Unavailable || a.limits() != "- - - 1000" || retryDelay(a.status) != time.Second {
		t.Errorf("fail-closed: %v %q %v", a.status, a.limits(), retryDelay(a.status))
	}
}

// A refusal has the details that clients read, and no key.
func TestDetails(t *testing.T) {
	const user = "ann@example.org"
	for name, show := range map[string]bool{"hidden": false, "shown": true} {
		t.Run(name, func(t *testing.T) {
			g, _ := group(t)
			l := testgroup.NewLimiter(t, g, tiered.Policy{
				Name: "user", Limit: tiered.PerSecond(100).And(tiered.PerHour(1)),
			})
			s := server(t, &grpclimit.Options{ShowKeys: show}, perUser(l))
			c := dial(t, serve(t, &service{}, s.ServerOptions()...))
			if a := call(as(t, user), c); a.code != codes.OK {
				t.Fatal(a.status)
			}
			a := call(as(t, user), c)
			if d := retryDelay(a.status); d <= 59*time.Minute || d > time.Hour || d%time.Millisecond != 0 {
				t.Errorf("RetryInfo says %v, want an hour", d)
			}
			v := quota(a.status)
			if v.GetQuotaId() != "user#2" || v.GetQuotaValue() != 1 || v.GetDescription() != "rate limit of policy user#2" {
				t.Errorf("QuotaFailure is %v", v)
			}
			if shown := v.GetSubject() == user; shown != show {
				t.Errorf("the subject is %q", v.GetSubject())
			}
			if text := a.status.Message(); text != "Rate limit exceeded." {
				t.Errorf("the text is %q", text)
			}
			if !show && strings.Contains(fmt.Sprint(a.status.Proto(), a.trailer), user) {
				t.Errorf("the key is in %v %v", a.status.Proto(), a.trailer)
			}
		})
	}
}

// A key in a status is cut and made UTF-8.
func TestShownKeys(t *testing.T) {
	g, _ := group(t)
	blocked, shown := limiter(t, g, "blocked", tiered.Blocked()), ""
	s := server(t, &grpclimit.Options{ShowKeys: true}, grpclimit.Rule{
		Limiter: blocked, Missing: grpclimit.Refuse,
		Key: grpclimit.KeyFunc(func(context.Context, grpclimit.Call) (string, error) { return shown, nil }),
	})
	for key, want := range map[string]string{
		"ann": "ann", "a\xffb": "a\uFFFDb", strings.Repeat("x", 1<<16): strings.Repeat("x", 256),
		strings.Repeat("x", 255) + "ä": strings.Repeat("x", 255) + "\uFFFD",
	} {
		shown = key
		_, err := s.Unary(t.Context(), nil, &grpc.UnaryServerInfo{}, nil)
		if got := quota(status.Convert(err)).GetSubject(); got != want {
			t.Errorf("%.20q… is %.20q…", key, got)
		}
	}
}

func retryDelay(st *status.Status) time.Duration {
	for _, d := range st.Details() {
		if r, ok := d.(*errdetails.RetryInfo); ok {
			return r.GetRetryDelay().AsDuration()
		}
	}
	return 0
}

func quota(st *status.Status) *errdetails.QuotaFailure_Violation {
	for _, d := range st.Details() {
		if q, ok := d.(*errdetails.QuotaFailure); ok {
			return q.GetViolations()[0]
		}
	}
	return nil
}

// Each reason has its code, its retry and its pushback.
func TestStatuses(t *testing.T) {
	for _, c := range []struct {
		d        tiered.Decision
		code     codes.Code
		retry    time.Duration
		pushback string
	}{
		{tiered.Decision{Allowed: true, Reason: tiered.Granted}, codes.OK, 0, ""},
		{tiered.Decision{Reason: tiered.Limited, RetryAfter: 1500 * time.Microsecond}, codes.ResourceExhausted, 2e6, "2"},
		{tiered.Decision{Reason: tiered.Limited}, codes.ResourceExhausted, 1e6, "1"},
		{
			tiered.Decision{Reason: tiered.Limited, RetryAfter: 1<<63 - 1},
			codes.ResourceExhausted, 9223372036854 * time.Millisecond, "-1",
		},
		{tiered.Decision{Reason: tiered.Limited, RetryAfter: 600 * time.Hour}, codes.ResourceExhausted, 600 * time.Hour, "-1"},
		{tiered.Decision{Reason: tiered.FallbackSpent, RetryAfter: 5e6}, codes.ResourceExhausted, 5e6, "5"},
		{tiered.Decision{Reason: tiered.FallbackSpent}, codes.ResourceExhausted, time.Second, "1000"},
		{tiered.Decision{Reason: tiered.Unavailable}, codes.Unavailable, time.Second, "1000"},
		{tiered.Decision{}, codes.Unavailable, time.Second, "1000"},
		{tiered.Decision{Reason: tiered.ExceedsBurst, Burst: 5}, codes.ResourceExhausted, 0, "-1"},
		{tiered.Decision{Reason: tiered.ExceedsBurst}, codes.ResourceExhausted, 0, "-1"},
		{tiered.Decision{Reason: tiered.InvalidKey}, codes.InvalidArgument, 0, ""},
		{tiered.Decision{Reason: tiered.InvalidCost}, codes.InvalidArgument, 0, ""},
		{tiered.Decision{Reason: tiered.Canceled}, codes.Canceled, 0, ""},
		{tiered.Decision{Reason: tiered.Canceled, Expired: true}, codes.DeadlineExceeded, 0, ""},
	} {
		st := grpclimit.Status(c.d)
		if st.Code() != c.code || grpclimit.Code(c.d) != c.code || retryDelay(st) != c.retry {
			t.Errorf("%v: status %v with retry %v, want %v, %v", c.d.Reason, st, retryDelay(st), c.code, c.retry)
		}
		if exhausted := quota(st) != nil; exhausted != (c.code == codes.ResourceExhausted) {
			t.Errorf("%v: QuotaFailure is %v", c.d.Reason, quota(st))
		}
		if c.d.Allowed {
			continue
		}
		if got := grpclimit.Pushback(c.d); got != c.pushback {
			t.Errorf("%v after %v: pushback %q, want %q", c.d.Reason, c.d.RetryAfter, got, c.pushback)
		}
	}
}

// A call whose context has ended takes nothing, and has the status of the context.
func TestContextEnded(t *testing.T) {
	g, _ := group(t)
	l := limiter(t, g, "user", tiered.PerHour(5))
	s := server(t, nil, perUser(l))
	canceled, cancel := context.WithCancel(from(t, "192.0.2.1:1", "x-user", "ann"))
	cancel()
	late, cancel := context.WithDeadline(from(t, "192.0.2.1:1", "x-user", "ann"), time.Unix(0, 0))
	defer cancel()
	for ctx, want := range map[context.Context]codes.Code{canceled: codes.Canceled, late: codes.DeadlineExceeded} {
		_, err := s.Unary(ctx, nil, &grpc.UnaryServerInfo{FullMethod: "/a/b"}, nil)
		if status.Code(err) != want || !errors.Is(err, ctx.Err()) {
			t.Errorf("%v: want %v", err, want)
		}
	}
	if n := left(l, "ann"); n != 5 {
		t.Errorf("%d tokens are left, want 5", n)
	}
}

// A unix socket has no address.
func TestUnixSocket(t *testing.T) {
	g, _ := group(t)
	s := fatal.Get(grpclimit.ByPeer(limiter(t, g, "ip", tiered.PerHour(5))))(t)
	lis := fatal.Get(net.Listen("unix", filepath.Join(t.TempDir(), "s")))(t)
	c := dial(t, "unix:"+serveOn(t, lis, &service{}, s.ServerOptions()...))
	if a := call(as(t, ""), c); a.code != codes.InvalidArgument {
		t.Errorf("%v, want InvalidArgument", a.status)
	}
}

// A call under two rules takes from both or from none.
func TestAllOrNone(t *testing.T) {
	g, _ := group(t)
	user, all := limiter(t, g, "user", tiered.PerHour(1)), limiter(t, g, "all", tiered.PerHour(10))
	s := server(t, nil, perUser(user), grpclimit.Rule{Limiter: all, Key: grpclimit.Constant("all"), Missing: grpclimit.Refuse})
	c := dial(t, serve(t, &service{}, s.ServerOptions()...))
	for i, want := range []string{"1 0 3600 -", "1 0 3600 3"} {
		if a := call(as(t, "ann"), c); !strings.HasPrefix(a.limits(), want) {
			t.Errorf("call %d: %v %q, want %q", i, a.status, a.limits(), want)
		}
	}
	eventually(t, "one token of all is spent", func() bool { return left(all, "all") == 9 }) // returned within 50 ms
}

// A cost by method, calls that cost nothing, and calls that are skipped.
func TestCosts(t *testing.T) {
	g, _ := group(t)
	l := limiter(t, g, "user", tiered.PerHour(10))
	rule := perUser(l)
	var cost int64
	costs := map[string]int64{pb.TestService_UnaryCall_FullMethodName: 4}
	byMethod := grpclimit.MethodCosts(costs, 1)
	costs[pb.TestService_UnaryCall_FullMethodName] = 100 // is not seen
	rule.Cost = func(ctx context.Context, c grpclimit.Call) int64 {
		if r, ok := c.Request.(*pb.SimpleRequest); ok && r.GetResponseSize() != 0 {
			return int64(r.GetResponseSize())
		}
		return byMethod(ctx, c) * cost
	}
	s := server(t, &grpclimit.Options{Skip: grpclimit.Health}, rule)
	address := serve(t, &service{}, s.ServerOptions()...)
	c := dial(t, address)
	for i, want := range []struct {
		cost int64
		size int32
		code codes.Code
		left int64
	}{
		{1, 0, codes.OK, 6},
		{0, 0, codes.OK, 6},
		{1, 6, codes.OK, 0},
		{1, 11, codes.ResourceExhausted, 0},
		{1, -1, codes.InvalidArgument, 0},
	} {
		cost = want.cost
		_, err := c.UnaryCall(as(t, "ann"), &pb.SimpleRequest{ResponseSize: want.size})
		if status.Code(err) != want.code || left(l, "ann") != want.left {
			t.Errorf("call %d: %v with %d left, want %v, %d", i, err, left(l, "ann"), want.code, want.left)
		}
		cost = 0 // a call that costs nothing is told what is left
		if a, told := call(as(t, "ann"), c), fmt.Sprintf("10 %d ", want.left); a.code != codes.OK || !strings.HasPrefix(a.limits(), told) {
			t.Errorf("after call %d: %v %q, want %q", i, a.status, a.limits(), told)
		}
	}
	if a := call(as(t, "bob"), c); a.code != codes.OK || a.limits() != "- - - -" {
		t.Errorf("a key of which nothing is known: %v %q", a.status, a.limits())
	}
	check := grpclimit.Call{Method: "/grpc.health.v1.Health/Check"}
	if !grpclimit.Health(t.Context(), check) || grpclimit.Health(t.Context(), grpclimit.Call{Method: "/a/Check"}) {
		t.Error("Health is wrong")
	}
}

// Tokens of calls that do not count come back, and costs that are known afterwards are corrected.
func TestSettled(t *testing.T) {
	g, _ := group(t)
	settled := ""
	settle := func(ctx context.Context, n int64) error { return grpclimit.Settle(ctx, map[string]int64{settled: n}) }
	for i, c := range []struct {
		name   string
		o      grpclimit.Options
		actual func(context.Context, grpclimit.Call, grpclimit.End) int64
		unary  func(context.Context, *pb.SimpleRequest) (*pb.SimpleResponse, error)
		less   int64 // than the cost of 10
		left   int64
	}{
		{
			name: "Actual of a call that took nothing", less: 10, left: 97,
			actual: func(context.Context, grpclimit.Call, grpclimit.End) int64 { return 3 },
		},
		{
			name: "Settle of a call that took nothing", less: 10, left: 80, o: grpclimit.Options{Settle: true},
			unary: func(ctx context.Context, _ *pb.SimpleRequest) (*pb.SimpleResponse, error) {
				return &pb.SimpleResponse{}, settle(ctx, 20)
			},
			actual: func(context.Context, grpclimit.Call, grpclimit.End) int64 { return 1 },
		},
		{
			name: "Actual of a call that took nothing and does not count", less: 10, left: 100,
			o:      grpclimit.Options{Counts: func(codes.Code) bool { return false }},
			actual: func(context.Context, grpclimit.Call, grpclimit.End) int64 { return 3 },
		},
		{
			name: "an error that does not count", left: 100,
			o:     grpclimit.Options{Counts: func(c codes.Code) bool { return c != codes.NotFound }},
			unary: func(context.Context, *pb.SimpleRequest) (*pb.SimpleResponse, error) { return nil, errNotFound },
		},
		{
			name: "the context's error", left: 100,
			o: grpclimit.Options{Counts: func(c codes.Code) bool { return c != codes.DeadlineExceeded }},
			unary: func(context.Context, *pb.SimpleRequest) (*pb.SimpleResponse, error) {
				return nil, context.DeadlineExceeded
			},
		},
		{
			name: "an error that counts", left: 90,
			o:     grpclimit.Options{Counts: func(codes.Code) bool { return true }},
			unary: func(context.Context, *pb.SimpleRequest) (*pb.SimpleResponse, error) { return nil, errNotFound },
		},
		{
			name: "Actual", left: 97,
			unary: func(context.Context, *pb.SimpleRequest) (*pb.SimpleResponse, error) {
				return &pb.SimpleResponse{Username: "abc"}, nil
			},
			actual: func(_ context.Context, _ grpclimit.Call, e grpclimit.End) int64 {
				return int64(len(e.Response.(*pb.SimpleResponse).GetUsername()))
			},
		},
		{
			name: "Actual that panics", left: 90,
			actual: func(context.Context, grpclimit.Call, grpclimit.End) int64 { panic("ann") },
		},
		{
			name: "Counts that panics", left: 90,
			o: grpclimit.Options{Counts: func(codes.Code) bool { panic("ann") }},
		},
		{
			name: "Settle before Actual", left: 80, o: grpclimit.Options{Settle: true},
			unary: func(ctx context.Context, _ *pb.SimpleRequest) (*pb.SimpleResponse, error) {
				if grpclimit.Settle(ctx, map[string]int64{"rows": 2}) == nil || grpclimit.Settle(ctx, nil) == nil {
					t.Error("a policy without a rule is accepted, or none")
				}
				return &pb.SimpleResponse{}, settle(ctx, 20)
			},
			actual: func(context.Context, grpclimit.Call, grpclimit.End) int64 { return 1 },
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			settled = fmt.Sprint("p", i)
			l := limiter(t, g, settled, tiered.PerDay(100))
			rule := perUser(l)
			rule.Cost = func(context.Context, grpclimit.Call) int64 { return 10 - c.less }
			rule.Actual = c.actual
			c.o.Logger = quiet
			s := server(t, &c.o, rule)
			client := dial(t, serve(t, &service{unary: c.unary}, s.ServerOptions()...))
			call(as(t, "ann"), client)
			eventually(t, fmt.Sprint(c.left, " are left"), func() bool { return left(l, "ann") == c.left })
		})
	}
	if settle(t.Context(), 1) == nil {
		t.Error("Settle accepts a context without a call")
	}
}

var errNotFound = status.Error(codes.NotFound, "no such thing")

// Jitter adds to the retry, Denied replaces the status, Prefix and Omit change the trailers.
func TestOptions(t *testing.T) {
	g, _ := group(t)
	l := limiter(t, g, "user", tiered.PerHour(1))
	l.Allow(t.Context(), "ann")
	for name, c := range map[string]struct {
		o     grpclimit.Options
		check func(answer) bool
	}{
		"jitter": {
			grpclimit.Options{Jitter: time.Hour, Random: func() float64 { return 0.5 }},
			func(a answer) bool {
				d := retryDelay(a.status)
				return d > 89*time.Minute && fmt.Sprint(d.Milliseconds()) == a.trailer[fieldPushback][0]
			},
		},
		"random panics": {
			grpclimit.Options{Jitter: time.Hour, Random: func() float64 { panic(1) }},
			func(a answer) bool { return retryDelay(a.status) > 59*time.Minute },
		},
		"denied": {
			grpclimit.Options{Denied: func(_ context.Context, e *grpclimit.Error) *status.Status {
				return status.New(codes.PermissionDenied, e.Key+e.Method)
			}},
			func(a answer) bool {
				return a.code == codes.PermissionDenied && a.status.Message() == "ann/grpc.testing.TestService/UnaryCall" &&
					len(a.trailer[fieldPushback]) == 1
			},
		},
		"denied says OK": {
			grpclimit.Options{Denied: func(context.Context, *grpclimit.Error) *status.Status { return status.New(codes.OK, "") }},
			func(a answer) bool { return a.code == codes.ResourceExhausted },
		},
		"denied says nothing": {
			grpclimit.Options{Denied: func(context.Context, *grpclimit.Error) *status.Status { return nil }},
			func(a answer) bool { return a.code == codes.ResourceExhausted },
		},
		"denied panics": {
			grpclimit.Options{Denied: func(context.Context, *grpclimit.Error) *status.Status { panic("ann") }},
			func(a answer) bool { return a.code == codes.ResourceExhausted },
		},
		"prefix": {grpclimit.Options{Prefix: "x-limit"}, func(a answer) bool { return len(a.trailer["x-limit-remaining"]) == 1 }},
		"omit": {grpclimit.Options{Omit: true}, func(a answer) bool {
			return len(a.trailer["ratelimit-limit"]) == 0 && len(a.trailer[fieldPushback]) == 1
		}},
	} {
		c.o.Logger = quiet
		client := dial(t, serve(t, &service{}, server(t, &c.o, perUser(l)).ServerOptions()...))
		if a := call(as(t, "ann"), client); !c.check(a) {
			t.Errorf("%s: %v %v", name, a.status, a.trailer)
		}
	}
}

// A shadowed and an unlimited policy state no limit.
func TestNoLimitToState(t *testing.T) {
	g, _ := group(t)
	for _, p := range []tiered.Policy{
		{Name: "shadow", Limit: tiered.PerHour(1), Shadow: true},
		{Name: "unlimited", Limit: tiered.Unlimited()},
	} {
		c := dial(t, serve(t, &service{}, server(t, nil, perUser(testgroup.NewLimiter(t, g, p))).ServerOptions()...))
		for range 2 {
			if a := call(as(t, "ann"), c); a.code != codes.OK || a.limits() != "- - - -" {
				t.Errorf("%s: %v %q", p.Name, a.status, a.limits())
			}
		}
	}
}

// What go-grpc-middleware v2.3.4 does with its Limiter, in package interceptors/ratelimit.
func rateLimitMiddleware(l interface{ Limit(context.Context) error }) (
	grpc.UnaryServerInterceptor, grpc.StreamServerInterceptor,
) {
	refuse := func(method string, err error) error {
		return status.Errorf(codes.ResourceExhausted,
			"%s is rejected by grpc_ratelimit middleware, please retry later. %s", method, err)
	}
	return func(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
			if err := l.Limit(ctx); err != nil {
				return nil, refuse(info.FullMethod, err)
			}
			return handler(ctx, req)
		}, func(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
			if err := l.Limit(ss.Context()); err != nil {
				return refuse(info.FullMethod, err)
			}
			return handler(srv, ss)
		}
}

// A Server is a Limiter of go-grpc-middleware. Trailers survive its interceptor.
func TestMiddlewareLimiter(t *testing.T) {
	g, _ := group(t)
	l := limiter(t, g, "method", tiered.PerHour(1))
	s := server(t, nil, grpclimit.Rule{Limiter: l, Key: grpclimit.JoinKeys(grpclimit.PeerIP(), grpclimit.Method()), Missing: grpclimit.Refuse})
	unary, stream := rateLimitMiddleware(s)
	c := dial(t, serve(t, &service{}, grpc.UnaryInterceptor(unary), grpc.StreamInterceptor(stream)))
	if a := call(as(t, ""), c); a.code != codes.OK || a.limits() != "1 0 3600 -" {
		t.Errorf("%v %q", a.status, a.limits())
	}
	if a := call(as(t, ""), c); a.code != codes.ResourceExhausted || len(a.trailer[fieldPushback]) != 1 {
		t.Errorf("%v %v", a.status, a.trailer)
	}
	for _, want := range []error{io.EOF, status.Error(codes.ResourceExhausted, "")} {
		st := fatal.Get(c.FullDuplexCall(as(t, "")))(t)
		_ = st.CloseSend()
		if _, err := st.Recv(); status.Code(err) != status.Code(want) {
			t.Errorf("%v, want %v", err, want)
		}
	}
}

// A thousand plans cost an admitted call no allocation.
func TestAllocationsWithPlans(t *testing.T) {
	if race.On {
		t.Skip("allocations are counted without the race detector")
	}
	many := map[string]tiered.Limit{}
	for i := range 1000 {
		many[strconv.Itoa(i)] = tiered.PerSecond(1e9)
	}
	least := func(plans map[string]tiered.Limit) float64 {
		g, _ := group(t)
		l := testgroup.NewLimiter(t, g, tiered.Policy{Name: "p", Limit: tiered.PerSecond(1e9), Plans: plans})
		s := server(t, nil, perUser(l))
		ctx := metadata.NewIncomingContext(t.Context(), metadata.Pairs("x-user", "ann"))
		ask := func() {
			if _, err := s.Unary(ctx, nil, &grpc.UnaryServerInfo{}, func(context.Context, any) (any, error) { return nil, nil }); err != nil {
				t.Fatal(err)
			}
		}
		ask()
		n := math.Inf(1) // without those of a call that renews the lease
		for range 10 {
			n = min(n, testing.AllocsPerRun(100, ask))
		}
		return n
	}
	if without, with := least(nil), least(many); with > without {
		t.Errorf("%v allocations, without plans %v", with, without)
	}
}
