package grpclimit_test

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	pb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/tiered-limiter/tiered-limiter/contrib/grpclimit"
	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/fatal"
	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/testgroup"
	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// finder returns a function that finds the key of a call, and reports whether it has one: a blocked
// policy refuses the call by its key.
func finder(t testing.TB) func(context.Context, testing.TB, grpclimit.Key, grpclimit.Call) (string, bool) {
	t.Helper()
	g, _ := group(t)
	blocked := limiter(t, g, "blocked", tiered.Blocked())
	return func(ctx context.Context, t testing.TB, k grpclimit.Key, c grpclimit.Call) (string, bool) {
		t.Helper()
		s := server(t, nil, grpclimit.Rule{Limiter: blocked, Key: k, Missing: grpclimit.Refuse})
		_, err := s.Unary(ctx, c.Request, &grpc.UnaryServerInfo{FullMethod: c.Method}, nil)
		var refused *grpclimit.Error
		if !errors.As(err, &refused) {
			t.Fatalf("a call of a blocked key: %v", err)
		}
		return refused.Key, refused.Reason != tiered.InvalidKey
	}
}

// fieldPushback is the trailer that tells the retry policy of a client when to come again (gRFC
// A6).
const fieldPushback = "grpc-retry-pushback-ms"

// group returns a Group over a Memory, closed at the end of the test.
func group(t testing.TB) (*tiered.Group, *remote.Memory) {
	t.Helper()
	store := remote.NewMemory()
	return testgroup.New(t, store, &tiered.Options{Logger: quiet, Budget: 5 * time.Second}), store
}

func limiter(t testing.TB, g *tiered.Group, name string, l tiered.Limit) *tiered.Limiter {
	t.Helper()
	return testgroup.NewLimiter(t, g, tiered.Policy{Name: name, Limit: l})
}

// perUser is the usual rule.
func perUser(l *tiered.Limiter) grpclimit.Rule {
	return grpclimit.Rule{Limiter: l, Key: grpclimit.Metadata("x-user"), Missing: grpclimit.Refuse}
}

func server(t testing.TB, o *grpclimit.Options, rules ...grpclimit.Rule) *grpclimit.Server {
	t.Helper()
	s := fatal.Get(grpclimit.New(rules, o))(t)
	return s
}

// service is a gRPC service whose methods answer nothing unless a test sets what they do.
type service struct {
	pb.UnimplementedTestServiceServer
	calls  atomic.Int64 // of handlers
	unary  func(context.Context, *pb.SimpleRequest) (*pb.SimpleResponse, error)
	duplex func(pb.TestService_FullDuplexCallServer) error
}

func (s *service) UnaryCall(ctx context.Context, r *pb.SimpleRequest) (*pb.SimpleResponse, error) {
	s.calls.Add(1)
	if s.unary != nil {
		return s.unary(ctx, r)
	}
	return &pb.SimpleResponse{}, nil
}

// FullDuplexCall answers each message by another, unless a test wants something else.
func (s *service) FullDuplexCall(stream pb.TestService_FullDuplexCallServer) error {
	s.calls.Add(1)
	if s.duplex != nil {
		return s.duplex(stream)
	}
	for {
		if _, err := stream.Recv(); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		if err := stream.Send(&pb.StreamingOutputCallResponse{}); err != nil {
			return err
		}
	}
}

// serve starts a server on a real listener, and ends it with the test. It returns its address.
func serve(t testing.TB, impl *service, o ...grpc.ServerOption) string {
	t.Helper()
	lis := fatal.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	return serveOn(t, lis, impl, o...)
}

func serveOn(t testing.TB, lis net.Listener, impl *service, o ...grpc.ServerOption) string {
	t.Helper()
	s := grpc.NewServer(o...)
	pb.RegisterTestServiceServer(s, impl)
	done := make(chan error, 1)
	go func() { done <- s.Serve(lis) }()
	t.Cleanup(func() {
		s.Stop()
		if err := <-done; err != nil && !errors.Is(err, grpc.ErrServerStopped) { // it may not have begun
			t.Errorf("Serve: %v", err)
		}
	})
	return lis.Addr().String()
}

// dial returns a client of a server, closed before that.
func dial(t testing.TB, address string, o ...grpc.DialOption) pb.TestServiceClient {
	t.Helper()
	o = append([]grpc.DialOption{grpc.WithTransportCredentials(insecure.NewCredentials())}, o...)
	conn := fatal.Get(grpc.NewClient(address, o...))(t)
	t.Cleanup(func() { _ = conn.Close() })
	return pb.NewTestServiceClient(conn)
}

// as returns a context with metadata, which ends after a minute.
func as(t testing.TB, user string, more ...string) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	if user != "" {
		more = append(more, "x-user", user)
	}
	return metadata.AppendToOutgoingContext(ctx, more...)
}

// answer is what a client sees of a unary call.
type answer struct {
	code            codes.Code
	status          *status.Status
	header, trailer metadata.MD
}

func call(ctx context.Context, c pb.TestServiceClient) answer {
	var a answer
	_, err := c.UnaryCall(ctx, &pb.SimpleRequest{}, grpc.Header(&a.header), grpc.Trailer(&a.trailer))
	a.status, _ = status.FromError(err)
	a.code = a.status.Code()
	return a
}

// limits returns the trailers that state the limit, as "limit remaining reset pushback".
func (a answer) limits() string {
	var all []string
	for _, name := range []string{"ratelimit-limit", "ratelimit-remaining", "ratelimit-reset", fieldPushback} {
		v := a.trailer[name]
		if len(v) == 0 {
			v = []string{"-"}
		}
		all = append(all, strings.Join(v, "+"))
	}
	return strings.Join(all, " ")
}

// left asks how many tokens a key has, without taking any.
func left(l *tiered.Limiter, key string) int64 {
	return l.Peek(context.Background(), key).Remaining
}

// from returns the context of a call to a server from an address, with metadata.
func from(t testing.TB, address string, kv ...string) context.Context {
	t.Helper()
	var a net.Addr = &net.UnixAddr{Name: address, Net: "unix"}
	if tcp, err := net.ResolveTCPAddr("tcp", address); err == nil {
		a = tcp
	}
	ctx := peer.NewContext(t.Context(), &peer.Peer{Addr: a})
	return metadata.NewIncomingContext(ctx, metadata.Pairs(kv...))
}

// eventually waits until ok, for what a server does after its client has seen the end of a call.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(10 * time.Second); !ok(); <-tick.C {
		if time.Now().After(end) {
			t.Fatalf("not within 10 s: %s", what)
		}
	}
}
