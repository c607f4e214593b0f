package tiered

import (
	"context"
	"crypto/sha256"
	"errors"
	"math"
	"strings"
	"sync"
	"time"

	"github.com/tiered-limiter/tiered-limiter/failover"
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
	nanos  float64 // per token
	owns   bool    // made by New: its Close closes the Group
	traced bool    // somebody wants to be told of decisions

	mu   sync.Mutex
	past local.Stats // of buckets that were forgotten
	poor int64       // calls that the store refused for their bucket alone
}

func newLimiter(g *Group, number int, p Policy) *Limiter {
	period := p.Lease.Period
	if period == 0 {
		period = DefaultPeriod
	}
	l := &Limiter{
		traced: g.trace.hooks.Decision != nil,
		group:  g, number: number, policy: p, burst: p.Limit.burst(), nanos: p.Limit.nanosPerToken(),
		terms: local.Policy{
			Cap: p.Limit.burst(), Tokens: p.Limit.Tokens, Per: p.Limit.Per,
			Size: max(p.Lease.Size, 0), Period: period, NoLease: p.Lease.Size == NoLease,
			FailMode: local.FailMode(p.FailMode), Budget: g.options.Budget, Timeout: g.options.Timeout, Uniform: g.options.uniform,
		},
	}
	l.terms.Number, l.terms.Owner = number, l
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

// digestAbove is the length in bytes above which the process keeps a key's SHA-256 instead of the key, so that long keys
// cannot fill its memory.
const digestAbove = 200

// digestPad makes a digest one byte longer than any key that is kept as it is: so no key can pass for another's digest.
var digestPad = strings.Repeat("\x00", digestAbove+1-sha256.Size)

// id is the name of a key in the cache and, for the store, of its bucket.
func (l *Limiter) id(key string) local.ID {
	if len(key) > digestAbove {
		sum := sha256.Sum256([]byte(key))
		key = digestPad + string(sum[:])
	}
	return local.ID{Policy: l.number, Key: key}
}

// Allow is AllowN for one token.
func (l *Limiter) Allow(ctx context.Context, key string) (d Decision) {
	l.take(ctx, key, 1, nil, &d)
	return d
}

// AllowN decides whether a request for key that costs n tokens may go on now, and takes them if so.
//
// It answers at once when the process holds a lease with n tokens, or knows that Redis has none. Otherwise it asks Redis
// and waits, at most Options.Budget and no longer than ctx; ctx is looked at only while waiting. When Redis does not answer,
// the policy's FailMode decides. There is no error to handle: what went wrong is the Decision's Reason.
//
// The key may be any bytes, 1 to [MaxKeyLength] of them; n must be 1 to the policy's burst.
func (l *Limiter) AllowN(ctx context.Context, key string, n int64) (d Decision) {
	l.take(ctx, key, n, nil, &d)
	return d
}

// take is AllowN. t, if not nil, learns how to give the tokens back. The Decision is written into its place: copies of it
// were a quarter of what a decision cost.
func (l *Limiter) take(ctx context.Context, key string, n int64, t *taking, d *Decision) {
	if uint(len(key)-1) >= MaxKeyLength || uint64(n-1) >= uint64(l.burst) {
		l.decide(d, key, l.valid(key, n), None, 0, 0)
		return
	}
	g := l.group
	now := g.now()
	b := g.find(now, l.id(key))
	t.from(b, local.FromLease)
	left, ok, renew := b.Take(now, n)
	if !ok {
		if !l.atOnce(now, b, key, n, t, d) {
			l.ask(ctx, now, b, key, n, t, d)
		}
		return
	}
	if renew {
		b.apply(now, b.Renew(now))
	}
	l.decide(d, key, Granted, Local, left, 0)
}

// atOnce decides without a lock about what the pot does not hold: what is known to be refused, or what an outage admits or
// refuses without looking at the share. It reports whether it did.
func (l *Limiter) atOnce(now time.Duration, b *bucket, key string, n int64, t *taking, d *Decision) bool {
	if l.group.closed.Load() {
		return false
	}
	// The breaker is not asked here, only its last word: it is asked when something is about to be sent.
	if node := b.node.Load(); node == nil || node.guard.State() == failover.Closed {
		v, ok := b.Refuse(now, n)
		if ok {
			l.decide(d, key, Limited, Local, v.Left, v.Retry)
		}
		return ok
	} else if node.guard.ReadyAt(now) {
		return false
	}
	v, ok := b.AloneAtOnce(now, n)
	if !ok {
		return false
	}
	t.from(b, local.FromShare)
	if v.Outcome == local.Opened {
		l.decide(d, key, Open, Failover, v.Left, 0)
	} else {
		l.decide(d, key, Unavailable, Failover, v.Left, 0)
	}
	return true
}

func (l *Limiter) valid(key string, n int64) Reason {
	switch {
	case key == "" || len(key) > MaxKeyLength:
		return InvalidKey
	case n <= 0:
		return InvalidCost
	case n > l.burst:
		return ExceedsBurst
	}
	return Granted
}

// decide writes a Decision. left counts for the reasons that know what is left.
func (l *Limiter) decide(d *Decision, key string, r Reason, tier Tier, left int64, retry time.Duration) {
	d.Allowed, d.Reason, d.Tier = Granted <= r && r <= Open, r, tier
	d.Policy, d.Key, d.Limit, d.Remaining, d.RetryAfter = l.policy.Name, key, l.burst, left, retry
	if Granted <= r && r <= ShareSpent {
		d.ResetAfter = resetAfter(l.burst-left, l.nanos)
	}
	if l.traced {
		l.group.trace.decision(*d)
	}
}

// refusal is the Decision on a request that is not valid.
func (l *Limiter) refusal(key string, r Reason) (d Decision) {
	l.decide(&d, key, r, None, 0, 0)
	return d
}

// ask is take when the pot does not hold n tokens.
func (l *Limiter) ask(ctx context.Context, now time.Duration, b *bucket, key string, n int64, t *taking, d *Decision) {
	g := l.group
	if g.closed.Load() {
		l.alone(now, b, key, n, t, d)
		return
	}
	// The breaker is not asked here, only its last word: it is asked when something is about to be sent.
	if node := b.node.Load(); node != nil && node.guard.State() != failover.Closed {
		if node.guard.ReadyAt(now) {
			b.apply(now, b.Probe())
		}
		l.alone(now, b, key, n, t, d)
		return
	}
	l.wait(ctx, now, b, key, n, t, d)
}

// wait is ask when only Redis can tell.
func (l *Limiter) wait(ctx context.Context, now time.Duration, b *bucket, key string, n int64, t *taking, d *Decision) {
	g := l.group
	until := now + g.options.Budget
	p := g.patients.Get().(*patient)
	defer g.patients.Put(p)
	for {
		v, effect := b.Ask(now, n, until, p.Waiter)
		b.apply(now, effect)
		tier := Local
		if v.Outcome == local.Waiting {
			tier = Remote
			t.from(b, local.FromRedis)
			var reason Reason
			v, reason = p.wait(ctx, until-g.now(), b)
			now = g.now()
			switch reason {
			case Canceled:
				l.decide(d, key, Canceled, None, 0, 0)
				return
			case Unavailable:
				l.alone(now, b, key, n, t, d)
				return
			}
		}
		switch v.Outcome {
		case local.Admitted:
			l.decide(d, key, Granted, tier, v.Left, 0)
			return
		case local.Refused:
			l.decide(d, key, Limited, tier, v.Left, v.Retry)
			return
		case local.Failed:
			l.alone(now, b, key, n, t, d)
			return
		case local.Gone: // evicted and forgotten since we looked it up
			b = g.find(now, b.ID())
			t.from(b, local.FromLease)
		}
	}
}

// alone decides by the fail mode.
func (l *Limiter) alone(now time.Duration, b *bucket, key string, n int64, t *taking, d *Decision) {
	g := l.group
	for {
		t.from(b, local.FromShare)
		v := b.Alone(now, n, g.fleetOf(b))
		switch v.Outcome {
		case local.Admitted: // of the lease
			t.from(b, local.FromRedis)
			l.decide(d, key, Granted, Local, v.Left, 0)
		case local.Shared:
			g.sharedAlone()
			l.decide(d, key, Shared, Failover, v.Left, 0)
		case local.Opened:
			l.decide(d, key, Open, Failover, v.Left, 0)
		case local.ShareSpent:
			if v.Retry == math.MaxInt64 { // never, while this process is alone
				v.Retry = 0
			}
			l.decide(d, key, ShareSpent, Failover, v.Left, v.Retry)
		case local.Gone:
			b = g.find(now, b.ID())
			continue
		default:
			l.decide(d, key, Unavailable, Failover, v.Left, 0)
		}
		return
	}
}

// patient is what a caller waits with: pooled per Group (not globally: a synctest bubble's timers stay in it), because each
// has a channel and a timer.
type patient struct {
	*local.Waiter
	timer *time.Timer
}

func newPatient() any {
	t := time.NewTimer(time.Hour)
	t.Stop()
	return &patient{local.NewWaiter(), t}
}

// wait waits for the verdict, at most d and no longer than ctx. The reason is Granted when there is a verdict.
func (p *patient) wait(ctx context.Context, d time.Duration, b *bucket) (local.Verdict, Reason) {
	var canceled <-chan struct{}
	if ctx != nil {
		canceled = ctx.Done()
	}
	p.timer.Reset(d)
	defer p.timer.Stop()
	reason := Unavailable
	select {
	case v := <-p.C:
		return v, Granted
	case <-p.timer.C:
	case <-canceled:
		reason = Canceled
	}
	if b.Leave(p.Waiter) {
		return local.Verdict{}, reason
	}
	return <-p.C, Granted // the verdict was faster
}

// call is a call of the script for the bucket name, with the policy's numbers.
func (l *Limiter) call(name string) remote.Call {
	return remote.Call{
		Bucket: name, Cap: l.burst, Tokens: l.policy.Limit.Tokens, Period: l.policy.Limit.Per.Microseconds(),
		TTL: int64(time.Second / time.Microsecond), Fleet: 1,
	}
}

// keep adds the figures of a forgotten bucket.
func (l *Limiter) keep(s local.Stats) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.past.Add(s)
}

// refused counts the calls that the store refused because of their bucket: a key of another type, a damaged bucket.
func (l *Limiter) refused(err error) {
	if isScriptError(err) {
		l.mu.Lock()
		l.poor++
		l.mu.Unlock()
	}
}
