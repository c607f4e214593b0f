package remote

import (
	"context"
	"slices"

	"github.com/redis/go-redis/v9"

	"github.com/tiered-limiter/tiered-limiter/lua"
)

// once is a command that go-redis sends a single time. At its defaults go-redis repeats a command whose reply was lost,
// up to three times, each executed and each charged; it asks the command first, in Client, Pipeline, ClusterClient and
// Ring alike, and a pipeline with one such command in it is not repeated at all.
type once struct{ *redis.Cmd }

// NoRetry forbids repetition.
func (once) NoRetry() bool { return true }

// Places in the arguments of a script's command: EVALSHA sha 1 key argument…
const (
	argName   = 0
	argScript = 1
	argKey    = 3
	argFirst  = 4
)

// script is what goes into commands of a script, as go-redis takes arguments: made once, for a string that becomes an any
// is an allocation.
type script struct{ source, sha any }

var (
	tokenBucket   = script{lua.TokenBucket.Source, lua.TokenBucket.SHA}
	slidingLog    = script{lua.SlidingLog.Source, lua.SlidingLog.SHA}
	fixedWindow   = script{lua.FixedWindow.Source, lua.FixedWindow.SHA}
	slidingWindow = script{lua.SlidingWindow.Source, lua.SlidingWindow.SHA}
	tokenBuckets  = script{lua.TokenBuckets.Source, lua.TokenBuckets.SHA}
	presence      = script{lua.Presence.Source, lua.Presence.SHA}
)

// ScriptSHA is the SHA-1 of the script that decides, in 40 hex digits: what SCRIPT EXISTS and the slow log know it by.
func ScriptSHA() string { return lua.TokenBucket.SHA }

// order is one execution of a script on its way: the command and what came of it.
type order struct {
	script *script
	args   []any
	cmd    *redis.Cmd
	asking bool // ASKING goes before it
	moved  bool // its node named another one, which was asked
	text   bool // it goes with the text of the script
}

// newOrder prepares EVALSHA; arguments are whole numbers and strings, as go-redis writes them.
func newOrder(s *script, key string, arguments ...any) order {
	args := make([]any, argFirst, argFirst+len(arguments))
	args[argName], args[argScript], args[2], args[argKey] = "evalsha", s.sha, 1, key
	return order{script: s, args: append(args, arguments...)}
}

// callOrder prepares a call; the order of the arguments is the script's contract. Whatever says more than the short form can
// goes in the long one, so that a call that breaks a rule is refused and not made legal.
//
// like are the arguments of another call, or nil: what is the same number there is not allocated again. Most of it is,
// among the calls of a policy.
func callOrder(c *Call, like []any) order {
	if !c.isShort() {
		return longOrder(c)
	}
	if c.Algorithm != TokenBucket {
		return shortOrder(c, like, append([]int64{c.Want, c.Min, c.TTL, c.Deadline, c.Epoch, c.Now}, c.limits()...))
	}
	o := shortOrder(c, like, []int64{c.Cap, c.Tokens, c.Period, c.Want, c.Min, c.TTL, c.Deadline, c.Epoch, c.Now})
	if c.Now == 0 {
		o.args = o.args[:len(o.args)-1]
	}
	return o
}

// longOrder is a call in the form that says all.
func longOrder(c *Call) order {
	if c.Algorithm == TokenBucket {
		return newOrder(&tokenBucket, c.Bucket,
			c.Cap, c.Tokens, c.Period, c.Want, c.Min, c.TTL, c.Lease, c.Seq, c.Ack, c.Hold, c.Ret, c.Refund, c.Debt,
			c.Deadline, c.Epoch, c.Now, MaxBack.Microseconds(), c.Owed, c.Seen, c.Fleet)
	}
	o := newOrder(algorithms[c.Algorithm].script, c.Bucket,
		c.Want, c.Min, c.TTL, c.Lease, c.Seq, c.Ack, c.Hold, c.Ret, c.Refund, c.Debt, c.Deadline, c.Epoch, c.Now,
		MaxBack.Microseconds(), c.Owed, c.Seen, c.Fleet, c.At, c.To, c.Since, c.Reset)
	for _, x := range c.limits() {
		o.args = append(o.args, x)
	}
	return o
}

// shortOrder is a direct take in the form that leaves out what such a call does not say.
func shortOrder(c *Call, like []any, numbers []int64) order {
	o := newOrder(algorithms[c.Algorithm].script, c.Bucket, make([]any, len(numbers))...)
	for i, x := range numbers {
		at := argFirst + i
		if at < len(like) && like[at] == any(x) {
			o.args[at] = like[at]
		} else {
			o.args[at] = x
		}
	}
	return o
}

// shortLimits is how many limits a call of several buckets or of a sliding window has at most in the short form: beyond it, the
// number of arguments would not tell the forms apart.
const shortLimits = 5

// isShort reports whether the short form says all of the call: a direct take that breaks no rule about what it leaves out.
func (c *Call) isShort() bool {
	return c.Lease == "" && c.Hold|c.Ret|c.Refund|c.Debt|c.Owed == 0 && c.Fleet >= 1 &&
		(c.Algorithm == TokenBucket || c.At|c.To|c.Since|c.Reset == 0 && len(c.Also) < shortLimits) &&
		min(c.Seq, c.Ack, c.Seen) >= 0 && max(c.Seq, c.Ack, c.Seen, c.Fleet) < whole
}

// prepare makes a fresh command of the order: EVAL with the script's text, or EVALSHA. An order whose command was
// executed, or may have been, must not be prepared again.
func (o *order) prepare(ctx context.Context) once {
	if o.cmd != nil {
		o.args = slices.Clone(o.args) // a hook may still be reading those of the command before
	}
	if o.text {
		o.args[argName], o.args[argScript] = "eval", o.script.source
	} else {
		o.args[argName], o.args[argScript] = "evalsha", o.script.sha
	}
	o.cmd = redis.NewCmd(ctx, o.args...)
	return once{o.cmd}
}

// errShape is the error of a reply that is not what the script returns: another program writes to the connection, or a
// proxy in between rewrites replies. The call was executed.
var errShape error = shapeError{}

type shapeError struct{}

func (shapeError) Error() string { return "remote: wrong reply shape" }

// OneBucket reports true: something answered, and a breaker that opened would not make the next reply a better one.
func (shapeError) OneBucket() bool { return true }

// The numbers of a reply: those of lua/token_bucket.lua, and those of the scripts that begin with lua/call.lua.
const bucketNumbers, windowNumbers = 10, 13

// decodeReply reads the reply of an algorithm's script: exactly so many whole numbers, the first of them a known code.
func decodeReply(a Algorithm, val any) (Reply, error) {
	var room [windowNumbers]int64
	n := room[:]
	if a == TokenBucket {
		n = room[:bucketNumbers]
	}
	if !decodeNumbers(val, n) || room[0] < int64(Granted) || room[0] > int64(Late) {
		return Reply{}, errShape
	}
	return Reply{
		Code: Code(room[0]), Grant: room[1], Level: room[2], Retry: room[3], Active: room[4],
		TTLLeft: room[5], Now: room[6], Epoch: room[7], Flags: Flags(room[8]), Overflow: room[9],
		Which: room[10], Reset: room[11], Stamp: room[12],
	}, nil
}

// answers reports whether r can be the answer to c. One that cannot is worse than none: a grant of more than was asked
// for would be spent, and a clock out of range would go into every later call and make it illegal.
func (r *Reply) answers(c *Call) bool {
	within := func(x, least, most int64) bool { return x >= least && x <= most }
	return within(r.Grant, 0, c.Want) && (r.Grant == 0 || r.Code == Granted || r.Code == Replay) &&
		within(r.Level, -whole, c.Cap) && within(r.Retry, -1, whole) && r.Active >= 0 && within(r.TTLLeft, 0, c.TTL) &&
		within(r.Now, 0, whole-1) && within(r.Epoch, 0, whole-1) && r.Flags >= 0 && within(r.Overflow, 0, overflowEnd) &&
		within(r.Which, 0, MostLimits) && within(r.Reset, 0, whole-1) && within(r.Stamp, 0, whole-1)
}

// decodeCensus reads the reply of the presence script: exactly two whole numbers, as the script takes them.
func decodeCensus(val any) (Census, error) {
	var n [2]int64
	if !decodeNumbers(val, n[:]) || min(n[0], n[1]) < 0 || max(n[0], n[1]) >= whole {
		return Census{}, errShape
	}
	return Census{Processes: n[0], Now: n[1]}, nil
}

// decodeNumbers reads a list of exactly as many whole numbers as there is room for, and reports whether it is one.
func decodeNumbers(val any, numbers []int64) bool {
	list, ok := val.([]any)
	if !ok || len(list) != len(numbers) {
		return false
	}
	for i, x := range list {
		if numbers[i], ok = x.(int64); !ok {
			return false
		}
	}
	return true
}
