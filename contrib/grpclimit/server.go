package grpclimit

import (
	"context"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"

	"github.com/tiered-limiter/tiered-limiter/internal/rules"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// Server limits the calls to a server. All methods may be called concurrently, and for any number
// of servers.
type Server struct {
	limit limit
	o     Options
	// ends says that something is to be done when a handler has returned.
	ends bool
}

// New returns a Server that lets a call through if all rules admit it, and ends it otherwise. A
// call waits for at most the shortest Budget of the rules' Groups.
//
// The error names each field that is not valid.
func New(rules []Rule, o *Options) (*Server, error) {
	options, counted, err := fill(rules, o)
	if err != nil {
		return nil, err
	}
	s := &Server{o: options, ends: options.Counts != nil}
	s.limit.set(rules, counted)
	s.limit.skip, s.limit.logger = options.Skip, options.Logger
	for i := range rules {
		s.ends = s.ends || rules[i].Actual != nil
	}
	return s, nil
}

// ByPeer returns a Server that counts each call for the address of its connection: New with
// [PeerIP]. A call without an address ends with InvalidArgument. Behind a proxy all clients have
// one address: use New with [ForwardedFor] there.
func ByPeer(l *tiered.Limiter) (*Server, error) {
	return New([]Rule{{Limiter: l, Key: PeerIP(), Missing: Refuse}}, nil)
}

// ByMetadata returns a Server that counts each call for the value of a metadata field: New with
// [Metadata]. A call without the field ends with InvalidArgument. A client can send any value, so
// name a field that your proxy sets or that was authenticated before.
func ByMetadata(l *tiered.Limiter, name string) (*Server, error) {
	return New([]Rule{{Limiter: l, Key: Metadata(name), Missing: Refuse}}, nil)
}

// ServerOptions returns the options of grpc.NewServer that add both interceptors. They run after
// those of options to the left, and before those to the right.
func (s *Server) ServerOptions() []grpc.ServerOption {
	return []grpc.ServerOption{grpc.ChainUnaryInterceptor(s.Unary), grpc.ChainStreamInterceptor(s.Stream)}
}

// Unary is a grpc.UnaryServerInterceptor.
func (s *Server) Unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (
	any, error,
) {
	r := request{ctx: ctx, call: Call{Method: info.FullMethod, Request: req}}
	var room [fewRules]rules.Use
	in := rules.NewEntries(s.limit.enters)
	a, refused := s.admit(r, wholeCall, room[:0], in)
	defer in.Release()
	if refused != nil {
		s.setTrailer(ctx, s.refusal(refused))
		return nil, s.answer(ctx, refused)
	}
	md := metadata.MD{}
	s.addLimit(md, a.told(&a.Decision))
	s.setTrailer(ctx, md)
	if !s.ends && !s.o.Settle {
		return handler(ctx, req)
	}
	st, inner := rules.NewSettlement(ctx, s.limit.rules[wholeCall], a.Reservation, a.uses, a.free)
	if s.o.Settle {
		ctx = inner
	}
	resp, err := handler(ctx, req)
	if s.ends {
		end := End{Err: err, Received: 1}
		if err == nil {
			end.Response, end.Sent = resp, 1
		}
		s.ended(r, st, end)
	}
	return resp, err
}

// admit takes the places and the tokens that a part of the rules wants, unless the call skips them
// all. If they cost nothing, the Decision is what is known of them.
func (s *Server) admit(r request, which part, room []rules.Use, in *rules.Entries) (a admission, refused *Error) {
	if skip, refused := s.limit.skipped(r); skip || refused != nil {
		return a, refused
	}
	if a.uses, a.free, refused = s.limit.uses(r, which, room, in); refused == nil {
		refused = enter(r, in)
	}
	switch {
	case refused != nil:
	case len(a.uses) == 0:
		a.Decision = rules.Tightest(r.ctx, a.free)
	default:
		refused = a.take(r, false)
	}
	return a, refused
}

// refusal completes a refusal and returns its trailers.
func (s *Server) refusal(e *Error) metadata.MD {
	if e.retry > 0 && s.o.Jitter > 0 {
		e.retry = milliseconds(rules.Saturated(e.retry, s.jitter()))
		e.describe("")
	}
	if s.o.ShowKeys && e.status.Code() == codes.ResourceExhausted {
		e.describe(subjectOf(e.Key))
	}
	md := metadata.MD{}
	addPushback(md, e)
	s.addLimit(md, &e.told)
	return md
}

// jitter returns a random time of up to Options.Jitter.
func (s *Server) jitter() (d time.Duration) {
	defer s.limit.recovered("Options.Random")
	return time.Duration(min(max(s.o.Random(), 0), 1) * float64(s.o.Jitter))
}

// answer lets the user replace the status of a refusal.
func (s *Server) answer(ctx context.Context, e *Error) (err error) {
	err = e
	s.tell(ctx, e)
	if s.o.Denied == nil || e.status.Code() == codes.Internal {
		return err
	}
	defer s.limit.recovered("Options.Denied")
	if st := s.o.Denied(ctx, e); st != nil && st.Code() != codes.OK {
		e.status = st
	}
	return err
}

// tell lets the user see a refusal.
func (s *Server) tell(ctx context.Context, e *Error) {
	if s.o.Refused != nil {
		defer s.limit.recovered("Options.Refused")
		s.o.Refused(ctx, e.Decision)
	}
}

// setTrailer sets trailers of a unary call. It fails only outside of a server, as in a user's test
// of a handler.
func (s *Server) setTrailer(ctx context.Context, md metadata.MD) {
	if len(md) > 0 {
		_ = grpc.SetTrailer(ctx, md)
	}
}

// Limit decides about the call of ctx, which must be the context of a call to a server. It returns
// nil or an *[Error], and sets the trailers. It makes a Server the Limiter of package ratelimit of
// go-grpc-middleware, whose interceptors answer each error with ResourceExhausted and drop its
// details. Prefer [Server.Unary] and [Server.Stream]. Limit counts calls only: rules with Messages,
// Rule.AtOnce, Rule.Actual, Counts and Settle have no effect.
func (s *Server) Limit(ctx context.Context) error {
	method, _ := grpc.Method(ctx)
	r := request{ctx: ctx, call: Call{Method: method}}
	var room [fewRules]rules.Use
	a, refused := s.admit(r, opening, room[:0], nil)
	if refused != nil {
		s.setTrailer(ctx, s.refusal(refused))
		return s.answer(ctx, refused)
	}
	if len(a.uses) > 0 {
		md := metadata.MD{}
		s.addLimit(md, a.told(&a.Decision))
		s.setTrailer(ctx, md)
	}
	return nil
}

// Stream is a grpc.StreamServerInterceptor.
func (s *Server) Stream(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	ctx := ss.Context()
	r := request{ctx: ctx, call: Call{Method: info.FullMethod, Stream: true}}
	if skip, refused := s.limit.skipped(r); skip {
		if s.o.Settle {
			_, ctx = rules.NewSettlement(ctx, s.limit.rules[wholeCall], tiered.Reservation{}, nil, nil)
			ss = &serverStream{ServerStream: ss, s: new(Server), ctx: ctx}
		}
		return handler(srv, ss)
	} else if refused != nil {
		return s.refuseStream(ss, refused)
	}
	var refused *Error
	var a admission
	in := rules.NewEntries(s.limit.enters)
	a.uses, a.free, refused = s.limit.uses(r, opening, nil, in)
	if refused == nil {
		refused = enter(r, in)
	}
	defer in.Release()
	if refused == nil && len(a.uses) > 0 {
		refused = a.take(r, false)
	} else {
		a.Decision = rules.Tightest(r.ctx, a.free)
	}
	if refused != nil {
		return s.refuseStream(ss, refused)
	}
	st := &serverStream{ServerStream: ss, s: s, ctx: ctx, method: info.FullMethod, md: metadata.MD{}}
	s.addLimit(st.md, a.told(&a.Decision))
	settled, inner := rules.NewSettlement(ctx, s.limit.rules[wholeCall], a.Reservation, a.uses, a.free)
	if s.o.Settle {
		st.ctx = inner
	}
	err := handler(srv, st)
	if refused := st.refused; refused != nil && err != nil { // the handler may have answered it by a status of its own
		err = refused
	}
	if len(st.md) > 0 {
		ss.SetTrailer(st.md)
	}
	if s.ends {
		s.ended(r, settled, End{Err: err, Received: st.received.Load(), Sent: st.sent.Load()})
	}
	return err
}

func (s *Server) refuseStream(ss grpc.ServerStream, refused *Error) error {
	ss.SetTrailer(s.refusal(refused))
	return s.answer(ss.Context(), refused)
}

// serverStream counts the messages of a stream.
type serverStream struct {
	grpc.ServerStream
	s        *Server
	ctx      context.Context
	method   string
	received atomic.Int64
	sent     atomic.Int64
	refused  error       // of RecvMsg, which one goroutine at a time may call
	md       metadata.MD // the trailers
}

// Context returns the context of the stream, with what [Settle] needs.
func (st *serverStream) Context() context.Context { return st.ctx }

// SendMsg counts the messages to the client.
func (st *serverStream) SendMsg(m any) error {
	err := st.ServerStream.SendMsg(m)
	if err == nil {
		st.sent.Add(1)
	}
	return err
}

// RecvMsg takes the tokens of a message when it has come. Once one was refused, it returns that
// refusal only.
func (st *serverStream) RecvMsg(m any) error {
	if st.refused != nil {
		return st.refused
	}
	if err := st.ServerStream.RecvMsg(m); err != nil {
		return err
	}
	st.received.Add(1)
	if len(st.s.limit.rules[message]) == 0 {
		return nil
	}
	r := request{ctx: st.ServerStream.Context(), call: Call{Method: st.method, Stream: true, Request: m}}
	var room [fewRules]rules.Use
	var a admission
	var refused *Error
	if a.uses, _, refused = st.s.limit.uses(r, message, room[:0], nil); refused == nil && len(a.uses) > 0 {
		refused = a.take(r, st.s.o.WaitMessages)
	}
	if refused != nil {
		for name, values := range st.s.refusal(refused) {
			st.md[name] = values
		}
		st.refused = st.s.answer(r.ctx, refused)
		return st.refused
	}
	return nil
}
