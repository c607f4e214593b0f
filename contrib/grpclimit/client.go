package grpclimit

import (
	"context"
	"errors"
	"sync/atomic"

	"google.golang.org/grpc"

	"github.com/tiered-limiter/tiered-limiter/internal/rules"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// Client limits the calls that a client makes. All methods may be called concurrently, and for any
// number of connections.
//
// A call counts once, also if gRPC's retry policy sends it again.
type Client struct {
	limit limit
	wait  bool
}

// NewClient returns a Client that sends a call if all rules admit it. A call over the limit fails
// with an *[Error] before it is sent, or waits if [ClientOptions.Wait] is set. If its tokens cannot
// come before the deadline of its context, it fails at once with ResourceExhausted, and errors.Is
// finds context.DeadlineExceeded.
//
// The error names each field that is not valid.
func NewClient(rules []Rule, o *ClientOptions) (*Client, error) {
	if o == nil {
		o = &ClientOptions{}
	}
	var p problems
	counted := p.counted(rules, o.Plan, true, false)
	if err := errors.Join(p...); err != nil {
		return nil, err
	}
	c := &Client{wait: o.Wait}
	c.limit.set(rules, counted)
	c.limit.skip, c.limit.logger = o.Skip, o.Logger
	return c, nil
}

// Pace returns a Client that makes each call wait for a token of one key: NewClient with [Constant]
// and Wait. It keeps all processes of a service together within what another service allows them.
func Pace(l *tiered.Limiter, key string) (*Client, error) {
	return NewClient([]Rule{{Limiter: l, Key: Constant(key), Missing: Refuse}}, &ClientOptions{Wait: true})
}

// DialOptions returns the options of grpc.NewClient that add both interceptors.
func (c *Client) DialOptions() []grpc.DialOption {
	return []grpc.DialOption{grpc.WithChainUnaryInterceptor(c.Unary), grpc.WithChainStreamInterceptor(c.Stream)}
}

// Unary is a grpc.UnaryClientInterceptor.
func (c *Client) Unary(
	ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker,
	opts ...grpc.CallOption,
) error {
	r := request{ctx: ctx, client: true, call: Call{Method: method, Request: req}}
	skip, refused := c.limit.skipped(r)
	if refused == nil && !skip {
		refused = c.take(r, wholeCall)
	}
	if refused != nil {
		return refused
	}
	return invoke(ctx, method, req, reply, cc, opts...)
}

// take takes the tokens that a part of the rules wants.
func (c *Client) take(r request, which part) *Error {
	var room [fewRules]rules.Use
	var a admission
	var refused *Error
	if a.uses, _, refused = c.limit.uses(r, which, room[:0], nil); refused == nil && len(a.uses) > 0 {
		refused = a.take(r, c.wait)
	}
	return refused
}

// Stream is a grpc.StreamClientInterceptor.
func (c *Client) Stream(
	ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, stream grpc.Streamer,
	opts ...grpc.CallOption,
) (grpc.ClientStream, error) {
	r := request{ctx: ctx, client: true, call: Call{Method: method, Stream: true}}
	skip, refused := c.limit.skipped(r)
	if skip {
		return stream(ctx, desc, cc, method, opts...)
	}
	if refused == nil {
		refused = c.take(r, opening)
	}
	if refused != nil {
		return nil, refused
	}
	if len(c.limit.rules[message]) == 0 {
		return stream(ctx, desc, cc, method, opts...)
	}
	// A refused message must end the stream, as every error of SendMsg does: its user need not read
	// from it then.
	ctx, cancel := context.WithCancel(ctx)
	opts = append(opts[:len(opts):len(opts)], grpc.OnFinish(func(error) { cancel() }))
	cs, err := stream(ctx, desc, cc, method, opts...)
	if err != nil {
		cancel()
		return nil, err
	}
	return &clientStream{ClientStream: cs, c: c, ctx: ctx, cancel: cancel, method: method}, nil
}

// clientStream counts the messages that a client sends.
type clientStream struct {
	grpc.ClientStream
	c      *Client
	ctx    context.Context
	cancel context.CancelFunc
	method string

	refused atomic.Pointer[Error] // of SendMsg
}

// RecvMsg returns the refusal if a message was refused, because gRPC knows only that the stream was
// canceled.
func (st *clientStream) RecvMsg(m any) error {
	err := st.ClientStream.RecvMsg(m)
	if refused := st.refused.Load(); refused != nil && err != nil {
		return refused
	}
	return err
}

// SendMsg takes the tokens of a message before it is sent. A refusal ends the stream.
func (st *clientStream) SendMsg(m any) error {
	r := request{ctx: st.ctx, client: true, call: Call{Method: st.method, Stream: true, Request: m}}
	refused := st.c.take(r, message)
	if refused == nil || st.ctx.Err() != nil { // once the stream has ended, gRPC knows how
		return st.ClientStream.SendMsg(m)
	}
	st.refused.Store(refused)
	st.cancel()
	return refused
}
