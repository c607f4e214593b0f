package grpclimit

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/tiered-limiter/tiered-limiter/internal/rules"
	"github.com/tiered-limiter/tiered-limiter/tiered"
	"github.com/tiered-limiter/tiered-limiter/tiered/atonce"
)

// Call is what the functions of a [Rule] see of a call.
type Call struct {
	// Method is the full name of the method, as in "/package.Service/Method".
	Method string

	// Stream is set for a call whose client or server may send several messages.
	Stream bool

	// Request is the message that a unary call carries, or the message that a rule with Messages
	// counts. It is nil when a stream begins. Do not change it.
	Request any
}

// Rule is one policy that applies to calls. Its functions are called concurrently.
type Rule struct {
	// Limiter has the policy. Required, but with AtOnce. Each policy may be in one rule only, but
	// for [Next].
	Limiter *tiered.Limiter

	// AtOnce limits how many calls of the key run at the same time, if it is not nil. A call takes
	// its place first, and gives it back when the handler returns or panics, or when a rule refuses
	// it. A stream has its place until it ends. With AtOnce the Limiter may be nil. It is for
	// servers, and not for a rule with Messages.
	AtOnce *atonce.Limiter

	// Key tells which client a call counts for. Required.
	Key Key

	// Missing says what happens to a call without a key: Refuse, Exempt, Together or Next.
	// Required.
	Missing Missing

	// Messages counts each message that the client of a stream sends, and not the call. A unary
	// call is one message. A message over the limit ends the stream.
	Messages bool

	// Cost returns what a call, or a message, costs in tokens; nil means 1. See [MethodCosts]. A
	// call that costs 0 passes the rule uncounted. Its trailers have what this process knows of the
	// limit, see [tiered.Limiter.PeekN], unless other rules count it. It passes even if the limit
	// is spent; Actual and Settle charge what it has cost. One that costs more than the burst is
	// refused. A negative cost is refused with InvalidArgument, because it may come from the
	// request.
	Cost func(context.Context, Call) int64

	// Actual returns what a call has cost, once its handler has returned. What was taken before is
	// corrected to it, as by [tiered.Reservation.Settle]. nil leaves the cost as it is. It is for
	// servers, and not for a rule with Messages.
	Actual func(context.Context, Call, End) int64

	// Plan returns the name of the plan that a call has, one of the policy's Plans, or "" for none:
	// see [tiered.Use.WithPlan]. nil means that of the options. Read it from what was
	// authenticated, such as a token: a client that can choose the name can choose the limit.
	Plan func(context.Context, Call) string

	// Limit returns a limit that the call carries, as by a contract: see [tiered.Use.WithLimit].
	// The zero Limit means that of the plan, or the policy's own.
	Limit func(context.Context, Call) tiered.Limit

	// Skip lets a call, or a message, pass the rule uncounted. nil skips none.
	Skip func(context.Context, Call) bool

	// Hidden keeps the limit out of the trailers that state the limit, which then tell of the other
	// rules, and out of QuotaFailure. A call that it refuses has RetryInfo all the same. A policy
	// with Shadow is always hidden. For a client it has no effect.
	Hidden bool
}

// End is what is known of a call when its handler has returned.
type End struct {
	Response any   // of a unary call; nil if it failed, and for a stream
	Err      error // what the handler returned
	Received int64 // messages from the client
	Sent     int64 // messages to the client
}

// Options are the options of a [Server]. A nil *Options, and each zero field, means the default.
// Functions are called concurrently.
type Options struct {
	// Skip lets a call pass all rules uncounted; see [Health]. nil skips none. For messages it is
	// not asked again.
	Skip func(context.Context, Call) bool

	// Plan is Rule.Plan for all rules without one, and called once for a call or a message: a plan
	// may have a limit per minute and one per month, in two policies. A policy without Plans goes
	// by its own limit.
	Plan func(context.Context, Call) string

	// Counts reports whether a call that ends with this status counts. If not, its tokens are
	// returned when the handler returns. While it runs they are taken, so that a crowd cannot pass
	// before the first answer. If a handler panics, nothing is returned. Tokens of messages are
	// never returned. nil counts every call.
	Counts func(codes.Code) bool

	// Settle lets the handler correct the cost once it is known: see the function [Settle].
	Settle bool

	// WaitMessages makes a stream wait for the tokens of its messages, in RecvMsg, instead of
	// ending it. The client feels that as flow control. Waiting is first come, first served in this
	// process.
	WaitMessages bool

	// Refused is told of each refused call or message before it is answered, as otellimit.Record
	// wants it. It may run concurrently, and the answer waits for it. nil tells nobody.
	Refused func(context.Context, tiered.Decision)

	// Denied returns the status for a refused call. Its details and trailers are only those that
	// Denied adds, except grpc-retry-pushback-ms and the ratelimit fields, which are set. nil, and
	// a result that is nil or OK, means the status of the *Error.
	Denied func(context.Context, *Error) *status.Status

	// ShowKeys makes the key the Subject of QuotaFailure, cut to 256 bytes. By default no status
	// contains a key, because it may be a secret.
	ShowKeys bool

	// Prefix of the names of the trailers that state the limit: "" means "ratelimit".
	Prefix string

	// Omit leaves these trailers out. The details and grpc-retry-pushback-ms stay.
	Omit bool

	// Jitter is the largest random time that is added to the time after which a client may retry,
	// so that clients that were refused together do not come back together: 0 … 1 h.
	Jitter time.Duration

	// Random returns the jitter's random numbers in [0, 1). nil means math/rand/v2.
	Random func() float64

	// Logger gets a line when a function of a rule or of these Options panics for the first time.
	// nil means slog.Default().
	Logger *slog.Logger
}

// ClientOptions are the options of a [Client]. A nil *ClientOptions, and each zero field, means the
// default.
type ClientOptions struct {
	// Wait makes a call, or a message, wait for its tokens, first come, first served in this
	// process, until the call's context ends. By default it fails at once.
	Wait bool

	// Skip lets a call pass all rules uncounted. nil skips none. For messages it is not asked
	// again.
	Skip func(context.Context, Call) bool

	// Plan is as in [Options].
	Plan func(context.Context, Call) string

	// Logger gets a line when a function of a rule or of these options panics for the first time.
	// nil means slog.Default().
	Logger *slog.Logger
}

const (
	defaultPrefix = "ratelimit"
	maxJitter     = time.Hour // longer than any client waits
)

// problems collects what is wrong with rules and options.
type problems []error

func (p *problems) add(format string, args ...any) {
	*p = append(*p, fmt.Errorf("grpclimit: "+format, args...))
}

// counted returns the rules as package rules has them, and says what is wrong with them. plan is
// Options.Plan, and settles says that handlers may correct the cost.
func (p *problems) counted(list []Rule, plan func(context.Context, Call) string, client, settles bool) (all []rules.Rule[request]) {
	for i, r := range list {
		all = append(all, rules.Rule[request]{
			Limiter: rules.Of(r.Limiter), AtOnce: r.AtOnce, Key: r.Key.key, Missing: rules.Missing(r.Missing), Settles: settles || r.Actual != nil,
			Hidden: r.Hidden, Number: i,
			Cost: ofCall(r.Cost), Plan: ofCall(r.Plan), Limit: ofCall(r.Limit), Skip: ofCall(r.Skip),
		})
	}
	rules.SharePlan(all, ofCall(plan), p.add)
	rules.Check(all, words, p.add)
	for i, r := range list {
		if client && r.Key.key.Peer {
			p.add("rules[%d].Key is of the client of a connection: must be another one, because a client's own calls have none",
				i)
		}
		if r.Missing == Next && i+1 < len(list) && r.Messages != list[i+1].Messages {
			p.add("rules[%d].Missing is Next: must be another one, or both rules must count messages, or none of them", i)
		}
		switch {
		case r.AtOnce != nil && (client || r.Messages):
			p.add("rules[%d].AtOnce is set: must be nil for a client, and if Messages is set", i)
		case r.Actual != nil && client:
			p.add("rules[%d].Actual is set: must be nil for a client", i)
		case r.Actual != nil && r.Messages:
			p.add("rules[%d].Actual is set: must be nil if Messages is set, whose tokens are spent at once", i)
		}
	}
	return all
}

// ofCall returns a function of a rule as package rules calls it.
func ofCall[T any](f func(context.Context, Call) T) func(request) T {
	if f == nil {
		return nil
	}
	return func(r request) T { return f(r.ctx, r.call) }
}

// fill validates rules and options, reports all problems at once, and fills in the defaults.
func fill(list []Rule, o *Options) (f Options, all []rules.Rule[request], err error) {
	if o != nil {
		f = *o
	}
	var p problems
	all = p.counted(list, f.Plan, false, f.Settle)
	if f.Prefix == "" {
		f.Prefix = defaultPrefix
	}
	if err := checkField(f.Prefix); err != nil {
		p.add("Options.Prefix is %q: %w", f.Prefix, err)
	}
	if f.Jitter < 0 || f.Jitter > maxJitter {
		p.add("Options.Jitter is %v: must be 0 to 1h", f.Jitter)
	}
	if f.Random == nil {
		f.Random = rand.Float64
	}
	return f, all, errors.Join(p...)
}

// checkField reports why name is not the name of a metadata field.
func checkField(name string) error {
	for i := range len(name) {
		c := name[i]
		if !('a' <= c && c <= 'z' || '0' <= c && c <= '9' || c == '-' || c == '_' || c == '.') {
			return errors.New("must have only a-z, 0-9, hyphen, underscore and dot")
		}
	}
	switch {
	case name == "":
		return errors.New("must not be empty")
	case strings.HasPrefix(name, "grpc-"):
		return errors.New("must not begin with grpc-, which gRPC keeps for itself")
	}
	return nil
}

// MethodCosts returns a function for [Rule.Cost]: the cost of a method by its full name, as in
// "/package.Service/Method". Methods that are not listed cost other. Later changes of costs are not
// seen.
func MethodCosts(costs map[string]int64, other int64) func(context.Context, Call) int64 {
	known := make(map[string]int64, len(costs))
	for method, cost := range costs {
		known[method] = cost
	}
	return func(_ context.Context, c Call) int64 {
		if cost, ok := known[c.Method]; ok {
			return cost
		}
		return other
	}
}

// Health reports whether a call is a health check of grpc.health.v1. It is meant for Skip. Any
// client can send such calls: skip them only if they are cheap to answer.
func Health(_ context.Context, c Call) bool {
	return strings.HasPrefix(c.Method, "/grpc.health.v1.Health/")
}
