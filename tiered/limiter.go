package tiered

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tiered-limiter/tiered-limiter/local"
	"github.com/tiered-limiter/tiered-limiter/remote"
)

// Limiter decides by one policy. All methods may be called concurrently.
type Limiter struct {
	group  *Group
	number int
	policy Policy
	terms  local.Policy
	burst  int64
	nanos  float64     // per token
	call0  remote.Call // the policy's part of every call
	kind   remote.Kind
	owns   bool // made by New: its Close closes the Group
	traced bool // somebody wants to be told of decisions

	mu   sync.Mutex
	past local.Stats // of buckets that were forgotten
	poor int64       // calls that the store refused for their bucket alone
	lost int64       // tokens asked for by calls without an answer

	shareSpent atomic.Int64 // tokens refused by shares that were used up
}

func newLimiter(g *Group, number int, p Policy) *Limiter {
	period := p.Lease.Period
	if period == 0 {
		period = DefaultPeriod
	}
	burst, tokens, per := p.terms()
	l := &Limiter{
		traced: g.trace.hooks.Decision != nil,
		group:  g, number: number, policy: p, burst: burst, nanos: p.Limit.nanosPerToken(), kind: p.kind(),
		terms: local.Policy{
			Cap: burst, Tokens: tokens, Per: per, Counting: p.counting(),
			Size: max(p.Lease.Size, 0), Period: period,
			FailMode: local.FailMode(p.FailMode), Budget: g.options.Budget, Timeout: g.options.Timeout, Uniform: g.options.uniform,
		},
	}
	l.terms.Number, l.terms.Owner = number, l
	l.terms.NoLease = !p.leased(&l.terms)
	first := p.Limit.stored(p.Algorithm)
	l.call0 = remote.Call{
		Algorithm: l.kind.Algorithm, Cap: first.Cap, Tokens: first.Tokens, Period: first.Period, Span: first.Span,
		TTL: int64(time.Second / time.Microsecond), Fleet: 1,
	}
	for _, also := range p.Also {
		l.call0.Also = append(l.call0.Also, also.stored(p.Algorithm))
	}
	return l
}

// New returns a Limiter with a Group of its own; its Close closes both. See [NewGroup] and [Group.Limiter].
func New(s remote.Store, p Policy, o *Options) (*Limiter, error) {
	if err := p.validate(); err != nil {
		_, optionsErr := o.fill()
		return nil, errors.Join(err, optionsErr, remote.Check(s))
	}
	g, err := NewGroup(s, o)
	if err != nil {
		return nil, err
	}
	l, err := g.Limiter(p)
	if err != nil {
		return nil, err
	}
	l.owns = true
	return l, nil
}

// Close closes the Group of a Limiter made by [New], as [Group.Close] does. For one made by [Group.Limiter] it does
// nothing: close the Group.
func (l *Limiter) Close(ctx context.Context) error {
	if !l.owns {
		return nil
	}
	return l.group.Close(ctx)
}

// Policy returns the policy.
func (l *Limiter) Policy() Policy { return l.policy }

// MaxKeyLength is the longest key, in bytes. Any bytes are legal.
const MaxKeyLength = 64 << 10

// id is the name of a key in the cache and, for the store, of its bucket.
func (l *Limiter) id(key string) local.ID { return local.ID{Policy: l.number, Key: remote.Digest(key)} }

// call is a call of the script for the bucket name, with the policy's numbers.
func (l *Limiter) call(name string) remote.Call {
	c := l.call0
	c.Bucket = name
	return c
}

// keep adds the figures of a forgotten bucket.
func (l *Limiter) keep(s local.Stats) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.past.Add(s)
}

// failed counts a call that was not answered, or that the store refused because of its bucket: a key of another type, a
// damaged bucket. The latter make a line, once per bucket; no line says which, for a key is nobody else's business.
func (l *Limiter) failed(call *remote.Call, err error) {
	poor := isScriptError(err)
	l.mu.Lock()
	if poor {
		l.poor++
	} else {
		l.lost += call.Want
	}
	l.mu.Unlock()
	if j := l.group.journal; poor && j.once(call.Bucket) {
		j.tally("refused "+l.policy.Name, 1, slog.LevelError,
			"redis refuses buckets, as they are not what the limiter wrote: the fail mode decides for their keys",
			"policy", l.policy.Name, "error", err)
	}
}
