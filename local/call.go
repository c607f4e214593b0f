package local

import (
	"time"

	"github.com/tiered-limiter/tiered-limiter/lua"
)

// Conditions are what a call depends on besides its bucket, at the moment of sending.
type Conditions struct {
	Now       time.Duration // this process' time
	Seq       int64         // for this call, from one counter per process that only rises
	Lease     string        // the id of the process
	Bucket    string        // the name of the bucket in the store
	Phase     int64         // µs: where the bucket's fixed windows begin
	Clock     bool          // the node's clock is known, so it understands a deadline
	Server    int64         // the node's clock, µs since 1970; that of this machine if it is not known
	RoundTrip time.Duration // 99th percentile of the node's round trips
	Timeout   time.Duration // after which a call to the node has failed, if that is more than Policy.Timeout
	Slow      time.Duration // round trip of a slow answer, or 0 if none has come
	Fleet     int64         // processes that share the limit, ≥ 1
	Well      bool          // the node has answered its last call; only a dry run asks

	ahead int64 // the bucket's time, µs, if it waits because the node's clock was set back; 0 if it does not
}

// at is the bucket's time, by which its windows go, in µs.
func (c *Conditions) at() int64 { return max(c.Server, c.ahead) }

// waits reports for how long one must wait to get an answer: a round trip, or half of the Budget if
// that is less. Far from Redis it is what a slow answer takes.
func (c *Conditions) waits(p *Policy) time.Duration {
	return max(min(c.RoundTrip, p.Budget/2), c.Slow)
}

// window returns the begin and the length of the fixed window by which a call of a policy goes, in
// µs.
func (c *Conditions) window(p *Policy) (begin, length int64) {
	if p.At != nil {
		return p.At(c.at())
	}
	return c.Phase, p.Call.Period
}

// windowPart is what Redis has of a window, and standing shares have the rest.
type windowPart struct {
	tokens int64
	begin  int64         // of the window, by the node's clock in µs
	left   time.Duration // until it ends, at least
	alone  bool          // the call must not be executed in another window
}

// part returns the part of the window by which a call of a policy goes. It reports false if that is
// always Cap, or if the node's clock is not known.
func (c *Conditions) part(p *Policy) (w windowPart, ok bool) {
	if p.CapOf == nil || !c.Clock {
		return w, false
	}
	phase, length := c.window(p)
	w.begin = p.WindowBegin(phase, c.at())
	w.tokens, w.alone = p.CapOf(c.Now, c.Server, w.begin)
	w.left = micros(w.begin+length-c.Server) + c.RoundTrip
	return w, true
}

// intoWindow sets by which window of a policy a call goes, and what Redis has of it. A Phase ≥
// Period means the one window that begins then.
func (c *Conditions) intoWindow(p *Policy, call *lua.Call) {
	call.Phase, call.Period = c.window(p)
	w, ok := c.part(p)
	if !ok {
		return
	}
	if call.Cap = w.tokens; w.alone {
		call.Phase = w.begin
	}
}

// Call is what to send, and what has to be known of it when it ends. All that it states is
// absolute, so a copy does no harm.
type Call struct {
	lua.Call
	Policy   *Policy // the policy that it was made under
	Direct   bool    // tokens for those who wait, without a lease. Invariant: then Ack, Hold, Ret and Refund are 0
	Unleased bool    // it settles, and takes tokens for those who wait without leasing them. Invariant: never Direct

	Given int64 // part of Refund that comes from no request: a credit, or a reset

	ttl    time.Duration // of the lease
	sent   time.Duration
	at     int64         // Conditions.at
	trip   time.Duration // Conditions.RoundTrip
	period time.Duration // of the lease
	first  bool          // the node has not answered yet, so its clock is unknown
	edge   time.Duration // of a dry run for more than Redis has of the window: until that ends, at least

	certain    int64 // part of Debt that no refill pays
	credits    int   // how many of the credits that wait it carries out
	returning  bool  // it gives everything back
	forWaiters bool  // everybody it is for waits and asks again

	settles    *Stamp // the entry of a log that To is for
	settledNow int64  // tokens that the entry gets back
}

// leases reports whether what the call is granted is a lease. If not, it is for those who wait, and
// none of it stays here.
func (c *Call) leases() bool { return !c.Direct && !c.Unleased }

// whole is what Redis has of the key at most, by this call.
func (c *Call) whole() int64 {
	if c.Policy.CapOf != nil {
		return c.Cap
	}
	return c.Policy.Cap
}

// named reports whether the call says whose it is. Only such a call has Debt, Owed, Seen and Reset.
func (c *Call) named() bool { return c.Lease != "" }

// others is how many leases of other processes a reply knows of that hold or want tokens.
func (c *Call) others(r lua.Reply) int64 {
	if c.named() && (c.Hold > 0 || c.leases() && r.Grant+c.Want > 0) {
		return r.Active - 1
	}
	return r.Active
}

// By is a dry run by the limits of another policy.
func (c Call) By(p *Policy) Call {
	l := &p.Call
	c.Cap, c.Tokens, c.Period, c.Span, c.Also, c.Policy = l.Cap, l.Tokens, l.Period, l.Span, l.Also, p
	if p.At != nil {
		c.Phase, c.Period = p.At(c.at)
	}
	return c
}

// Only is a dry run by one of the limits of a key, from 0.
func (c Call) Only(i int) Call {
	l, p := c.Limits()[i], *c.Policy
	p.Call.Cap, p.Call.Tokens, p.Call.Period, p.Call.Span, p.Call.Also = l.Cap, l.Tokens, l.Period, l.Span, nil
	p.Cap = l.Cap
	return c.By(&p)
}

// Terms is a call that takes nothing, and tells Redis the limit of the policy: a token bucket
// refills by the one that it was told last.
func (p *Policy) Terms(c Conditions) lua.Call {
	call := p.Call
	c.intoWindow(p, &call)
	call.Bucket, call.Fleet = c.Bucket, max(c.Fleet, 1)
	return call
}

// refundDelay is how long refunded tokens wait for another call of their key to ride on. With a
// call's own time they are back within 50 ms.
const refundDelay = 25 * time.Millisecond
