package grpcfile_test

import (
	"context"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	pb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/tiered-limiter/tiered-limiter/contrib/grpclimit"
	"github.com/tiered-limiter/tiered-limiter/contrib/grpclimit/grpcfile"
	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/fatal"
	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
	"github.com/tiered-limiter/tiered-limiter/tiered/policyfile"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var silent = slog.New(slog.DiscardHandler)

const head = `version: 1
policies:
  - {name: all, limit: 3/h}
  - {name: users, limit: 5/h}
  - {name: exports, limit: 10/h}
`

// folder is a policy file on disk, and what follows it.
type folder struct {
	path    string
	group   *tiered.Group
	watcher *policyfile.Watcher
}

func follow(t *testing.T, text string) *folder {
	t.Helper()
	f := &folder{path: filepath.Join(t.TempDir(), "policies.yaml")}
	f.write(t, text)
	var err error
	f.group = fatal.Get(tiered.NewGroup(remote.NewMemory(), &tiered.Options{Logger: silent, Budget: 5 * time.Second}))(t)
	t.Cleanup(func() { _ = f.group.Close(context.Background()) })
	if f.watcher, err = policyfile.Watch(f.path, f.group, &policyfile.Options{Logger: silent}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(f.watcher.Close)
	return f
}

func (f *folder) write(t *testing.T, text string) {
	t.Helper()
	fatal.If(t, os.WriteFile(f.path, []byte(text), 0o600))
}

// reload makes text the file that is in force.
func (f *folder) reload(t *testing.T, text string) {
	t.Helper()
	f.write(t, text)
	fatal.If(t, f.watcher.Reload())
}

// service answers everything.
type service struct {
	pb.UnimplementedTestServiceServer
}

func (service) EmptyCall(context.Context, *pb.Empty) (*pb.Empty, error) { return &pb.Empty{}, nil }

func (service) UnaryCall(context.Context, *pb.SimpleRequest) (*pb.SimpleResponse, error) {
	return &pb.SimpleResponse{}, nil
}

func (service) StreamingInputCall(s pb.TestService_StreamingInputCallServer) error {
	return s.SendAndClose(&pb.StreamingInputCallResponse{})
}

// serve starts a server on a real listener, and returns a connection to it.
func serve(t *testing.T, f *folder, o *grpclimit.Options) *grpc.ClientConn {
	t.Helper()
	limits := fatal.Get(grpcfile.New(f.watcher, o))(t)
	server := grpc.NewServer(limits.ServerOptions()...)
	pb.RegisterTestServiceServer(server, service{})
	healthpb.RegisterHealthServer(server, health.NewServer())
	listener := fatal.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	var serving sync.WaitGroup
	serving.Go(func() { _ = server.Serve(listener) })
	t.Cleanup(func() { server.Stop(); serving.Wait() })
	conn := fatal.Get(grpc.NewClient(listener.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials())))(t)
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// as returns a context whose calls come from a user.
func as(t *testing.T, user string) context.Context {
	t.Helper()
	return metadata.AppendToOutgoingContext(t.Context(), "x-user", user, "authorization", "Bearer "+user)
}

// admitted calls until a call is refused, at most 100 times, and returns how many were not.
func admitted(t *testing.T, call func() error) int {
	t.Helper()
	for n := range 100 {
		if err := call(); status.Code(err) == codes.ResourceExhausted {
			return n
		} else if err != nil {
			t.Fatal(err)
		}
	}
	return 100
}

// The most specific rule of a call counts, and each call follows the file as it is then.
func TestRulesOfAFile(t *testing.T) {
	f := follow(t, head)
	conn := serve(t, f, nil)
	client, checks := pb.NewTestServiceClient(conn), healthpb.NewHealthClient(conn)
	unary := func(user string) func() error {
		return func() error { _, err := client.UnaryCall(as(t, user), &pb.SimpleRequest{}); return err }
	}
	empty := func(user string) func() error {
		return func() error { _, err := client.EmptyCall(as(t, user), &pb.Empty{}); return err }
	}
	stream := func() error {
		s, err := client.StreamingInputCall(as(t, "zoe"))
		if err != nil {
			return err
		}
		_, err = s.CloseAndRecv()
		return err
	}
	check := func() error { _, err := checks.Check(as(t, "ann"), &healthpb.HealthCheckRequest{}); return err }
	expect := func(what string, want int, call func() error) {
		t.Helper()
		if n := admitted(t, call); n != want {
			t.Errorf("%s: %d calls admitted, want %d", what, n, want)
		}
	}
	expect("no rules", 100, unary("ann"))

	f.reload(t, head+`grpc:
  - match: /grpc.testing.TestService/
    limits: [{policy: users, key: credential authorization}]
  - match: /grpc.testing.TestService/UnaryCall
    limits: [{policy: exports, key: [metadata x-user, method], cost: 2}, {policy: all, key: ip, cost: 0}]
`)
	expect("a method with a rule of its own", 5, unary("ann"))
	expect("another user", 5, unary("bob"))
	expect("the service", 5, empty("ann"))
	expect("a stream of another user", 5, stream)
	expect("another service", 100, check)

	f.reload(t, head+"grpc: [{match: /, limits: [{policy: all, key: ip}]}]\n")
	expect("all calls", 3, check)
	expect("they share it", 0, unary("ann"))

	f.reload(t, head+`grpc:
  - match: /
    limits: [{policy: all, key: ip}]
  - match: /grpc.testing.TestService/UnaryCall
    limits: []
  - match: /grpc.health.v1.Health/
    limits: []
`)
	expect("a method that nothing limits", 100, unary("ann"))
	expect("a service that nothing limits", 100, check)
	expect("all others", 0, empty("ann"))
	f.reload(t, head+"grpc: [{match: /, limits: [{policy: all, key: ip}]}]\n")

	f.write(t, head+"grpc: [{match: /, limits: [{policy: nobody, key: ip}]}]\n")
	if err := f.watcher.Reload(); err == nil || !strings.Contains(err.Error(), `is "nobody": must be the name of a policy`) {
		t.Error(err)
	}
	expect("after a mistake", 0, unary("ann"))

	f.reload(t, head)
	expect("no rules again", 100, unary("ann"))
}

// Who has a credential is counted by it, and who has none by the network of the address.
func TestByCredentialElseByAddress(t *testing.T) {
	f := follow(t, head+`grpc:
  - match: /
    limits:
      - {policy: users, key: credential authorization, missing: next}
      - {policy: all, key: ip 8 56}
`)
	client := pb.NewTestServiceClient(serve(t, f, nil))
	call := func(ctx context.Context) func() error {
		return func() error { _, err := client.UnaryCall(ctx, &pb.SimpleRequest{}); return err }
	}
	for i, c := range []struct {
		ctx  context.Context
		want int
	}{{as(t, "ann"), 5}, {as(t, "bob"), 5}, {t.Context(), 3}, {metadata.AppendToOutgoingContext(t.Context(), "authorization", " "), 0}} {
		if n := admitted(t, call(c.ctx)); n != c.want {
			t.Errorf("client %d: %d calls admitted, want %d", i, n, c.want)
		}
	}
	l, _ := f.group.Limiter("all")
	if d := l.Peek(t.Context(), "127.0.0.0/8"); d.Remaining != 0 {
		t.Errorf("%d are left of the network, want 0", d.Remaining)
	}
}

// A call without a key, or with metadata that lies, gets what the rule says.
func TestMissingKeys(t *testing.T) {
	f := follow(t, head+`grpc:
  - match: /grpc.testing.TestService/UnaryCall
    limits: [{policy: users, key: metadata x-user}]
  - match: /grpc.testing.TestService/EmptyCall
    limits: [{policy: exports, key: metadata x-user, missing: exempt}]
  - match: /grpc.health.v1.Health/Check
    limits: [{policy: all, key: forwarded-for 10.0.0.0/8}]
`)
	conn := serve(t, f, nil)
	client, checks := pb.NewTestServiceClient(conn), healthpb.NewHealthClient(conn)
	if _, err := client.UnaryCall(t.Context(), &pb.SimpleRequest{}); status.Code(err) != codes.InvalidArgument {
		t.Errorf("without a key: %v", err)
	}
	if _, err := client.EmptyCall(t.Context(), &pb.Empty{}); err != nil {
		t.Errorf("without a key, exempt: %v", err)
	}
	n, i := 0, 0
	n = admitted(t, func() error { // the peer is no trusted proxy: what it claims does not count
		i++
		ctx := metadata.AppendToOutgoingContext(t.Context(), "x-forwarded-for", "192.0.2."+string(rune('0'+i)))
		_, err := checks.Check(ctx, &healthpb.HealthCheckRequest{})
		return err
	})
	if n != 3 {
		t.Errorf("%d calls with forged addresses, want 3", n)
	}
}

// Reloads while calls are made: each call meets the rules of one file or of the other.
func TestReloadsUnderCalls(t *testing.T) {
	rule := func(policy string) string {
		return "version: 1\npolicies: [{name: " + policy + ", limit: blocked}]\ngrpc: [{match: /, limits: [{policy: " + policy +
			", key: method}]}]\n"
	}
	f := follow(t, rule("a"))
	client := pb.NewTestServiceClient(serve(t, f, &grpclimit.Options{Logger: silent}))
	done := make(chan struct{})
	var callers sync.WaitGroup
	for range 4 {
		callers.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
				}
				_, err := client.EmptyCall(t.Context(), &pb.Empty{})
				if code := status.Code(err); code != codes.ResourceExhausted && code != codes.InvalidArgument {
					t.Errorf("a call is not refused: %v", err)
					return
				}
			}
		})
	}
	for i := range 30 {
		f.reload(t, rule(string(rune('a'+i%2))))
	}
	close(done)
	callers.Wait()
}

func TestBadArguments(t *testing.T) {
	if _, err := grpcfile.New(nil, nil); err == nil || err.Error() != "grpcfile: the Watcher is nil: must be set" {
		t.Error(err)
	}
	if _, err := grpcfile.New(new(policyfile.Watcher), nil); err == nil {
		t.Error("a zero Watcher is accepted")
	}
	for _, text := range []string{head, "version: 1\npolicies: []\n"} { // no rules yet, and no policies
		f := follow(t, text)
		_, err := grpcfile.New(f.watcher, &grpclimit.Options{Jitter: -1})
		if err == nil || !strings.Contains(err.Error(), "Options.Jitter is -1ns: must be 0 to 1h") {
			t.Errorf("%q: %v", text, err)
		}
	}
}

// One plan serves all limits of a rule, whether the file says where it is or a function does.
func TestOnePlanForAllLimits(t *testing.T) {
	const text = `version: 1
policies:
  - {name: minute, limit: 9/min, plans: {pro: 90/min}}
  - {name: month, limit: 5/month, algorithm: fixed window, plans: {pro: 50/month}}
  - {name: all, limit: 1000/s burst 10000}
grpc:
  - match: /
    limits: [{policy: minute, key: metadata x-user}, {policy: month, key: metadata x-user}, {policy: all, key: method}]
`
	byContext := &grpclimit.Options{Plan: func(ctx context.Context, _ grpclimit.Call) string {
		return strings.Join(metadata.ValueFromIncomingContext(ctx, "x-plan"), "")
	}}
	for file, o := range map[string]*grpclimit.Options{text + "    plan: metadata X-Plan\n": nil, text: byContext} {
		f := follow(t, file)
		client := pb.NewTestServiceClient(serve(t, f, o))
		for plan, want := range map[string]int{"": 5, "pro": 50} {
			n := admitted(t, func() error {
				_, err := client.EmptyCall(metadata.AppendToOutgoingContext(t.Context(), "x-user", "of "+plan, "x-plan", plan), &pb.Empty{})
				return err
			})
			if n != want {
				t.Errorf("plan %q: %d calls admitted, want %d", plan, n, want)
			}
		}
	}
}

// A call goes by the plan whose name is in its metadata.
func TestPlanInTheMetadata(t *testing.T) {
	f := follow(t, `version: 1
policies:
  - name: users
    limit: 3/h
    plans: {pro: 7/h, staff: unlimited}
grpc:
  - match: /
    limits: [{policy: users, key: metadata x-user, plan: metadata X-Plan}]
`)
	client := pb.NewTestServiceClient(serve(t, f, nil))
	for plan, want := range map[string]int{"": 3, "pro": 7, " pro ": 7, "gold": 3, "staff": 100} {
		n := admitted(t, func() error {
			_, err := client.EmptyCall(metadata.AppendToOutgoingContext(t.Context(), "x-user", "of "+plan, "x-plan", plan), &pb.Empty{})
			return err
		})
		if n != want {
			t.Errorf("plan %q: %d calls admitted, want %d", plan, n, want)
		}
	}
	if n := f.group.Stats().Policies["users"].Faults.UnknownPlans; n != 4 {
		t.Errorf("%d unknown plans, want 4", n)
	}
}

// A call has the limit of the range of its client's address, as x-forwarded-for of a trusted proxy
// has it.
func TestRangesOfAddresses(t *testing.T) {
	f := follow(t, `version: 1
policies:
  - {name: users, limit: 3/h}
  - {name: partners, limit: 7/h}
  - {name: blocked, limit: blocked}
grpc:
  - match: /
    limits: [{policy: users, key: metadata x-user}]
    address: forwarded-for 127.0.0.0/8
    ranges:
      10.0.0.0/8: unlimited
      198.51.100.7: blocked
      2001:db8::/32: partners
`)
	client := pb.NewTestServiceClient(serve(t, f, nil))
	for from, want := range map[string]int{"192.0.2.1": 3, "10.1.2.3": 100, "198.51.100.7": 0, "2001:db8::9": 7, "": 3} {
		for what, ask := range map[string]func(context.Context) error{
			"a call": func(ctx context.Context) error { _, err := client.EmptyCall(ctx, &pb.Empty{}); return err },
			"a stream": func(ctx context.Context) error {
				s, err := client.StreamingInputCall(ctx)
				if err == nil {
					_, err = s.CloseAndRecv()
				}
				return err
			},
		} {
			n := admitted(t, func() error {
				ctx := metadata.AppendToOutgoingContext(t.Context(), "x-user", what+from)
				if from != "" {
					ctx = metadata.AppendToOutgoingContext(ctx, "x-forwarded-for", from)
				}
				return ask(ctx)
			})
			if n != want && !(from == "2001:db8::9" && n == 0) { // both share the address
				t.Errorf("%s from %q: %d admitted, want %d", what, from, n, want)
			}
		}
	}
	if n := f.group.Stats().Policies["blocked"].Requests.Blocked; n != 2 {
		t.Errorf("%d counted as blocked, want 2", n)
	}
}

// A rule may name a policy of what runs at the same time, alone or beside one with tokens.
func TestAtOnce(t *testing.T) {
	const text = head + `at_once: [{name: running, places: 1}]
grpc:
  - match: /a.B/
    limits: [{at_once: running, key: metadata x-user}]
  - match: /
    limits: [{policy: all, at_once: running, key: metadata x-user}]
`
	f := follow(t, text)
	s := fatal.Get(grpcfile.New(f.watcher, nil))(t)
	ctx := metadata.NewIncomingContext(t.Context(), metadata.Pairs("x-user", "ann"))
	call := func(method string, during func()) codes.Code {
		_, err := s.Unary(ctx, nil, &grpc.UnaryServerInfo{FullMethod: method}, func(context.Context, any) (any, error) {
			during()
			return nil, nil
		})
		return status.Code(err)
	}
	nothing := func() {}
	for _, outer := range []string{"/a.B/C", "/x.Y/Z"} {
		for _, inner := range []string{"/a.B/C", "/x.Y/Z"} {
			if code := call(outer, func() {
				if code := call(inner, nothing); code != codes.ResourceExhausted {
					t.Errorf("%s beside %s: %v", inner, outer, code)
				}
			}); code != codes.OK {
				t.Errorf("%s: %v", outer, code)
			}
		}
	}
	call("/x.Y/Z", nothing)
	if code := call("/x.Y/Z", nothing); code != codes.ResourceExhausted { // the fourth token
		t.Errorf("over the rate limit: %v", code)
	}
	f.reload(t, strings.Replace(text, "places: 1", "places: 2", 1))
	if call("/a.B/C", func() {
		if code := call("/a.B/C", nothing); code != codes.OK {
			t.Errorf("after a reload: %v", code)
		}
	}) != codes.OK {
		t.Error("after a reload")
	}
}

// The plan of the options is that of places too.
func TestPlanOfPlaces(t *testing.T) {
	const text = head + `at_once: [{name: running, places: 1, plans: {pro: 3}}]
grpc:
  - match: /
    limits: [{at_once: running, key: metadata x-user}]
`
	s := fatal.Get(grpcfile.New(follow(t, text).watcher, &grpclimit.Options{
		Plan: func(context.Context, grpclimit.Call) string { return "pro" },
	}))(t)
	ctx := metadata.NewIncomingContext(t.Context(), metadata.Pairs("x-user", "ann"))
	running := 0
	var handler grpc.UnaryHandler
	call := func() { _, _ = s.Unary(ctx, nil, &grpc.UnaryServerInfo{FullMethod: "/a.B/C"}, handler) }
	handler = func(context.Context, any) (any, error) {
		running++
		call()
		return nil, nil
	}
	if call(); running != 3 {
		t.Errorf("%d ran, want 3", running)
	}
}
