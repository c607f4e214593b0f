package grpclimit_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	pb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/tiered-limiter/tiered-limiter/contrib/grpclimit"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

var quiet = slog.New(slog.DiscardHandler)

// talk sends messages to a stream. It waits for the answer to each before it sends the next. It
// returns how many were answered, and the end.
func talk(ctx context.Context, t *testing.T, c pb.TestServiceClient, messages int) (int, answer) {
	t.Helper()
	st, err := c.FullDuplexCall(ctx)
	if err != nil {
		s, _ := status.FromError(err)
		return 0, answer{code: s.Code(), status: s}
	}
	answered := 0
	for range messages {
		if err = st.Send(&pb.StreamingOutputCallRequest{}); err != nil {
			break
		}
		if _, err = st.Recv(); err != nil {
			break
		}
		answered++
	}
	if err == nil {
		_ = st.CloseSend()
	}
	if err == nil || errors.Is(err, io.EOF) { // Recv knows how the stream ended
		_, err = st.Recv()
	}
	if errors.Is(err, io.EOF) {
		err = nil
	}
	s, _ := status.FromError(err)
	return answered, answer{code: s.Code(), status: s, trailer: st.Trailer()}
}

// A stream counts as one call, or each of its messages counts.
func TestStream(t *testing.T) {
	for name, c := range map[string]struct {
		limit    int64
		messages bool
		handler  func(pb.TestService_FullDuplexCallServer) error
		answered []int // by stream
		code     codes.Code
		limits   string // of the last
	}{
		"calls":    {2, false, nil, []int{5, 5, 0}, codes.ResourceExhausted, "2 0 3600 1"},
		"messages": {7, true, nil, []int{5, 2}, codes.ResourceExhausted, "7 0 3600 "},
		"the handler answers by a status of its own": {
			1, true, func(st pb.TestService_FullDuplexCallServer) error {
				for {
					if _, err := st.Recv(); errors.Is(err, io.EOF) {
						return nil
					} else if err != nil {
						if _, again := st.Recv(); again == nil {
							return errors.New("a refused stream is read on")
						}
						return status.Error(codes.Internal, "cannot read")
					}
					_ = st.Send(&pb.StreamingOutputCallResponse{})
				}
			},
			[]int{1, 0},
			codes.ResourceExhausted, "1 0 3600 ",
		},
		"the handler is content": {
			1, true, func(st pb.TestService_FullDuplexCallServer) error {
				for {
					if _, err := st.Recv(); err != nil {
						return nil
					}
					_ = st.Send(&pb.StreamingOutputCallResponse{})
				}
			},
			[]int{1, 0},
			codes.OK, "1 0 3600 ",
		},
	} {
		t.Run(name, func(t *testing.T) {
			g, _ := group(t)
			rule := perUser(limiter(t, g, "user", tiered.PerHour(c.limit)))
			rule.Messages = c.messages
			s := server(t, nil, rule)
			client := dial(t, serve(t, &service{duplex: c.handler}, s.ServerOptions()...))
			for i, want := range c.answered {
				messages := 5
				if c.limit == 1 {
					messages = 1
				}
				answered, a := talk(as(t, "ann"), t, client, messages)
				last := i == len(c.answered)-1
				if answered != want || last && (a.code != c.code || !strings.HasPrefix(a.limits(), c.limits)) {
					t.Errorf("stream %d: %d answers, %v, %q, want %d, %v, %q", i, answered, a.status, a.limits(), want, c.code, c.limits)
				}
			}
		})
	}
}

// A stream takes its turn if WaitMessages is set, and gives up when its tokens cannot come in time.
func TestWaitMessages(t *testing.T) {
	g, _ := group(t)
	fast := perUser(limiter(t, g, "fast", tiered.Every(20*time.Millisecond)))
	fast.Messages = true
	s := server(t, &grpclimit.Options{WaitMessages: true}, fast)
	c := dial(t, serve(t, &service{}, s.ServerOptions()...))
	begin := time.Now()
	answered, a := talk(as(t, "ann"), t, c, 5)
	if d := time.Since(begin); answered != 5 || a.code != codes.OK || d < 70*time.Millisecond {
		t.Errorf("%d answers, %v, in %v: want 5 in 80 ms at least", answered, a.status, d)
	}
	slow := perUser(limiter(t, g, "slow", tiered.PerHour(1)))
	slow.Messages = true
	c = dial(t, serve(t, &service{}, server(t, &grpclimit.Options{WaitMessages: true}, slow).ServerOptions()...))
	answered, a = talk(as(t, "ann"), t, c, 2)
	if answered != 1 || a.code != codes.ResourceExhausted || retryDelay(a.status) < 59*time.Minute {
		t.Errorf("%d answers, %v, want 1 and a refusal", answered, a.status)
	}
}

// The cost of a stream is corrected at its end: by Actual, or by its handler.
func TestStreamSettles(t *testing.T) {
	g, _ := group(t)
	counted := perUser(limiter(t, g, "counted", tiered.PerDay(100)))
	counted.Actual = func(_ context.Context, c grpclimit.Call, e grpclimit.End) int64 {
		if !c.Stream || e.Err != nil {
			t.Errorf("ended with %+v, %+v", c, e)
		}
		return 10*e.Received + e.Sent
	}
	if answered, _ := talk(as(t, "ann"), t,
		dial(t, serve(t, &service{}, server(t, nil, counted).ServerOptions()...)), 3); answered != 3 {
		t.Errorf("%d answers, want 3", answered)
	}
	eventually(t, "33 tokens are spent", func() bool { return left(counted.Limiter, "ann") == 67 })
	counted.Cost = func(context.Context, grpclimit.Call) int64 { return 0 }
	talk(as(t, "bob"), t, dial(t, serve(t, &service{}, server(t, nil, counted).ServerOptions()...)), 3)
	eventually(t, "33 are spent by a stream that took nothing", func() bool { return left(counted.Limiter, "bob") == 67 })

	byHand := perUser(limiter(t, g, "by-hand", tiered.PerDay(100)))
	other := perUser(limiter(t, g, "other", tiered.PerDay(9)))
	byHand.Cost = func(context.Context, grpclimit.Call) int64 { return 50 }
	other.Skip = func(context.Context, grpclimit.Call) bool { return true }
	s := server(t, &grpclimit.Options{Settle: true}, other, byHand)
	talk(as(t, "ann"), t, dial(t, serve(t, &service{duplex: func(st pb.TestService_FullDuplexCallServer) error {
		return grpclimit.Settle(st.Context(), map[string]int64{"other": 7, "by-hand": 5})
	}}, s.ServerOptions()...)), 0)
	eventually(t, "5 tokens are spent", func() bool { return left(byHand.Limiter, "ann") == 95 })
}

// Tokens of a stream that does not count come back. Those of its messages do not.
func TestStreamDoesNotCount(t *testing.T) {
	g, _ := group(t)
	calls := perUser(limiter(t, g, "calls", tiered.PerDay(9)))
	messages := perUser(limiter(t, g, "messages", tiered.PerDay(9)))
	messages.Messages = true
	s := server(t, &grpclimit.Options{Counts: func(c codes.Code) bool { return c == codes.OK }}, calls, messages)
	c := dial(t, serve(t, &service{duplex: func(st pb.TestService_FullDuplexCallServer) error {
		_, _ = st.Recv()
		return errNotFound
	}}, s.ServerOptions()...))
	if _, a := talk(as(t, "ann"), t, c, 1); a.code != codes.NotFound {
		t.Error(a.status)
	}
	eventually(t, "the stream's token is back", func() bool { return left(calls.Limiter, "ann") == 9 })
	if n := left(messages.Limiter, "ann"); n != 8 {
		t.Errorf("%d tokens of messages are left, want 8", n)
	}
}

// A function of the user that panics ends the call, or changes nothing. It never ends the process,
// and its value is not logged.
func TestPanics(t *testing.T) {
	var costs []int64
	bang := func(context.Context, grpclimit.Call) int64 { return costs[len("secret")] }
	secret := func(context.Context, grpclimit.Call) bool { panic("secret") }
	for name, c := range map[string]struct {
		change func(*grpclimit.Rule, *grpclimit.Options)
		field  string
	}{
		"Key": {
			func(r *grpclimit.Rule, _ *grpclimit.Options) {
				r.Key = grpclimit.KeyFunc(func(context.Context, grpclimit.Call) (string, error) { panic("secret") })
			}, "rules[1]",
		},
		"Cost": {func(r *grpclimit.Rule, _ *grpclimit.Options) { r.Cost = bang }, "rules[1]"},
		"Limit": {
			func(r *grpclimit.Rule, _ *grpclimit.Options) {
				r.Limit = func(context.Context, grpclimit.Call) tiered.Limit { panic(errors.New("secret")) }
			},
			"rules[1]",
		},
		"Skip":         {func(r *grpclimit.Rule, _ *grpclimit.Options) { r.Skip = secret }, "rules[1]"},
		"Options.Skip": {func(_ *grpclimit.Rule, o *grpclimit.Options) { o.Skip = secret }, "Options.Skip"},
	} {
		t.Run(name, func(t *testing.T) {
			g, _ := group(t)
			var lines strings.Builder
			o := &grpclimit.Options{Logger: slog.New(slog.NewTextHandler(&lines, nil)), ShowKeys: true}
			first := perUser(limiter(t, g, "first", tiered.PerHour(9)))
			rule := perUser(limiter(t, g, "second", tiered.PerHour(9)))
			c.change(&rule, o)
			s := server(t, o, first, rule)
			ctx := from(t, "192.0.2.1:1", "x-user", "ann")
			for range 2 {
				_, err := s.Unary(ctx, nil, &grpc.UnaryServerInfo{FullMethod: "/a/b"}, nil)
				if status.Code(err) != codes.Internal || strings.Contains(err.Error(), "secret") {
					t.Errorf("unary: %v, want Internal", err)
				}
				err = s.Stream(nil, &idle{ctx: ctx}, &grpc.StreamServerInfo{FullMethod: "/a/b"}, nil)
				if status.Code(err) != codes.Internal {
					t.Errorf("stream: %v, want Internal", err)
				}
			}
			if n := left(first.Limiter, "ann"); n != 9 {
				t.Errorf("%d tokens of the first rule are left, want 9", n)
			}
			if got := lines.String(); strings.Count(got, "\n") != 1 || strings.Contains(got, "secret") ||
				!strings.Contains(got, fmt.Sprintf("field=%s ", c.field)) {
				t.Errorf("logged %q", got)
			}
		})
	}
}

// idle is a stream on which nothing happens.
type idle struct {
	grpc.ServerStream
	ctx context.Context
}

func (i *idle) Context() context.Context    { return i.ctx }
func (i *idle) SetTrailer(_ metadata.MD)    {}
func (i *idle) SetHeader(metadata.MD) error { return nil }
