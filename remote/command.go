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
	scripts  = newScripts()
	presence = script{lua.Presence.Source, lua.Presence.SHA}
)

func newScripts() (all [lua.Algorithms]script) {
	for a := range all {
		s := lua.Algorithm(a).Script()
		all[a] = script{s.Source, s.SHA}
	}
	return all
}

// order is one execution of a script on its way: the command and what came of it.
type order struct {
	script *script
	args   []any
	cmd    *redis.Cmd
	asking bool // ASKING goes before it
	moved  bool // its node named another one, which was asked
	text   bool // it goes with the text of the script
}

// newOrder prepares EVALSHA with room for so many arguments: whole numbers and strings, as go-redis writes them.
func newOrder(s *script, key string, room int) order {
	args := make([]any, argFirst, argFirst+room)
	args[argName], args[argScript], args[2], args[argKey] = "evalsha", s.sha, 1, key
	return order{script: s, args: args}
}

// callOrder prepares a call. like are the arguments of another one, or nil: what is the same number there is not allocated again.
func callOrder(c *lua.Call, like []any) order {
	o := newOrder(&scripts[c.Algorithm], c.Bucket, c.ArgumentCount())
	o.args = c.Arguments(o.args, like[min(argFirst, len(like)):])
	return o
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

// decodeCensus reads the reply of the presence script: exactly two whole numbers, as the script takes them.
func decodeCensus(val any) (Census, error) {
	var n [2]int64
	if !lua.DecodeNumbers(val, n[:]) || min(n[0], n[1]) < 0 || max(n[0], n[1]) >= lua.Whole {
		return Census{}, errShape
	}
	return Census{Processes: n[0], Now: n[1]}, nil
}
