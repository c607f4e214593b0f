package remote

import (
	"context"
	"slices"

	"github.com/redis/go-redis/v9"

	"github.com/tiered-limiter/tiered-limiter/lua"
)

// noRetryCmd is a command that go-redis sends only once. By default go-redis repeats a command
// whose reply was lost, up to three times, and each repetition would be executed and charged. It
// asks the command first, in Client, Pipeline, ClusterClient and Ring alike. A pipeline that holds
// one such command is not repeated at all.
type noRetryCmd struct{ *redis.Cmd }

// NoRetry forbids repetition.
func (noRetryCmd) NoRetry() bool { return true }

func (c noRetryCmd) answered() bool { return c.Val() != nil }

// script holds a script's text and digest as go-redis takes arguments. They are converted once,
// because converting a string to any allocates.
type script struct{ source, sha any }

var (
	scripts  = newScripts()
	presence = script{lua.Presence.Source, lua.Presence.SHA}
	standing = script{lua.Standing.Source, lua.Standing.SHA}
	atOnce   = script{lua.AtOnce.Source, lua.AtOnce.SHA}
)

func newScripts() (all [lua.Algorithms]script) {
	for a := range all {
		s := lua.Algorithm(a).Script()
		all[a] = script{s.Source, s.SHA}
	}
	return all
}

// sentCmd is a command as it is sent: a [noRetryCmd] or a [callCmd].
type sentCmd interface {
	redis.Cmder
	Val() any
	answered() bool // a reply came that is not an error
}

// command is one execution of a script: the command that is sent, and how it was sent.
type command struct {
	script     *script
	args       []any
	cmd        sentCmd
	call       *callCmd // cmd, or the one to send; nil if this is no call
	asking     bool     // ASKING is sent before it
	redirected bool     // its node redirected it, and another node was asked
	withText   bool     // it is sent with the text of the script
}

// newCommand prepares EVALSHA with room for the given number of arguments. Arguments are whole
// numbers and strings, as go-redis writes them.
func newCommand(s *script, key string, room int) command {
	return command{script: s, args: evalSHA(make([]any, 0, argFirst+room), s, key)}
}

// evalSHA appends the arguments that come first.
func evalSHA(args []any, s *script, key string) []any { return append(args, "evalsha", s.sha, 1, key) }

// callCommand prepares a call. like holds the arguments of another call, or is nil. A number that
// is the same in like is not allocated again.
func callCommand(c *lua.Call, like []any) command {
	o := command{script: &scripts[c.Algorithm], call: new(callCmd)}
	args := o.call.args[:0]
	if room := argFirst + c.ArgumentCount(); room > cap(args) {
		args = make([]any, 0, room)
	}
	o.args = c.Arguments(evalSHA(args, o.script, c.Bucket), like[min(argFirst, len(like)):])
	return o
}

// prepare makes a new command of go-redis: EVAL with the script's text, or EVALSHA. If the previous
// one was executed, or may have been, prepare must not be called again.
func (o *command) prepare(ctx context.Context) redis.Cmder {
	if o.cmd != nil { // a hook may still be reading the previous command
		o.args = slices.Clone(o.args)
		if o.call != nil {
			o.call = new(callCmd)
		}
	}
	if o.withText {
		o.args[argName], o.args[argScript] = "eval", o.script.source
	} else {
		o.args[argName], o.args[argScript] = "evalsha", o.script.sha
	}
	if o.call == nil {
		o.cmd = noRetryCmd{redis.NewCmd(ctx, o.args...)}
		return o.cmd
	}
	o.call.RawWriteToCmd = redis.NewRawWriteToCmd(ctx, &o.call.reply, o.args...)
	o.cmd = o.call
	return o.cmd
}

// errShape is the error of a reply that the script cannot have returned: another program writes to
// the connection, or a proxy rewrites replies. The call was executed.
var errShape error = shapeError{}

type shapeError struct{}

func (shapeError) Error() string { return "remote: wrong reply shape" }

// OneBucket reports true: the node answered, and opening a breaker would not make the next reply
// better.
func (shapeError) OneBucket() bool { return true }

// decodeCensus reads the reply of the presence script to a process that announces so many policies:
// exactly three numbers, five for each policy, and four for each part that was in use, all whole
// and in the scripts' range.
func decodeCensus(val any, policies int) (Census, error) {
	list, _ := val.([]any)
	first := 3 + policyNumbers*policies
	n := make([]int64, max(len(list), first))
	if !lua.DecodeNumbers(val, n) || slices.Min(n) < 0 || slices.Max(n) >= lua.Whole || (len(n)-first)%usedNumbers != 0 {
		return Census{}, errShape
	}
	for used := range slices.Chunk(n[first:], usedNumbers) {
		if used[0] < 1 || used[0] > int64(policies) || used[1] < 1 || used[1] > lua.MostShared {
			return Census{}, errShape
		}
	}
	c := censusOf(n, policies)
	for _, p := range c.Policies {
		if p.Used > lua.MostShared {
			return Census{}, errShape
		}
	}
	return c, nil
}

// policyNumbers is how many numbers a reply has for each policy, and usedNumbers for each part that
// was in use.
const policyNumbers, usedNumbers = 5, 4

// censusOf is the census that the numbers of a reply say.
func censusOf(n []int64, policies int) Census {
	c := Census{Processes: n[0], Now: n[1], Silent: n[2]}
	parts := n[3+policyNumbers*policies:]
	for p := range slices.Chunk(n[3:len(n)-len(parts)], policyNumbers) {
		c.Policies = append(c.Policies, PolicyCensus{
			Processes: p[0], OtherServices: p[1], OtherLimits: p[2], SharedAlike: p[3], Used: int(p[4]),
		})
	}
	for used := range slices.Chunk(parts, usedNumbers) {
		c.WasUsed = append(c.WasUsed, lua.Used{Policy: used[0] - 1, Eighths: used[1], From: used[2], To: used[3]})
	}
	return c
}

// decodePoll reads the reply of the standing script to a poll.
func decodePoll(val any, p *lua.Poll) (lua.PollReply, error) {
	r, ok := lua.DecodePoll(val)
	if !ok || !r.Answers(p) {
		return lua.PollReply{}, errShape
	}
	return r, nil
}
