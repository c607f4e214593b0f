package remote

import (
	"bytes"
	"strconv"

	"github.com/redis/go-redis/v9"

	"github.com/tiered-limiter/tiered-limiter/lua"
)

// callCmd is the redis.Cmder of a call. go-redis writes the bytes of the reply to it, and it keeps
// the numbers. A redis.Cmd would make a list of them, and an interface of each. go-redis sends a
// RawWriteToCmd only once, as it does a [noRetryCmd].
//
// One is made for each time that a call is sent, and none is reused: a hook may keep it.
type callCmd struct {
	*redis.RawWriteToCmd
	reply reply
	args  [argFirst + lua.DirectArguments]any // room for the arguments of a direct take
}

// Val returns what a redis.Cmd would: the reply as a list of int64, or nil if there is none. It is
// for hooks.
func (c *callCmd) Val() any {
	numbers, ok := c.reply.list()
	if !ok {
		return nil
	}
	list := make([]any, len(numbers))
	for i, n := range numbers {
		list[i] = n
	}
	return list
}

// SetVal replaces the reply, as that of a redis.Cmd does. It is for hooks that answer instead of
// Redis.
func (c *callCmd) SetVal(val any) {
	r := &c.reply
	*r = reply{begun: true}
	list, ok := val.([]any)
	if r.wrong = !ok || len(list) > len(r.numbers) || !lua.DecodeNumbers(val, r.numbers[:len(list)]); !r.wrong {
		r.length, r.count = int8(len(list)), int8(len(list))
	}
}

func (c *callCmd) answered() bool { return c.reply.wrong || c.reply.complete() }

// reply takes the bytes of a reply and keeps its numbers. Scripts reply with a list of whole
// numbers. Anything else is an error of Redis, or the wrong shape.
//
// go-redis writes line by line: each line without its end, then the end of the line. It also writes
// the content of strings, but then the shape is wrong already.
type reply struct {
	numbers [lua.ReplyNumbers]int64
	length  int8 // of the list, as its first line says; ≤ lua.ReplyNumbers
	count   int8 // numbers so far; ≤ length
	begun   bool // something came that is no error
	wrong   bool // something else than such a list: the rest does not matter
}

// complete reports whether all numbers of a list are there.
func (r *reply) complete() bool { return r.begun && r.count == r.length }

// list returns the numbers. It reports false if the reply is incomplete or has the wrong shape.
func (r *reply) list() ([]int64, bool) {
	if r.wrong || !r.complete() {
		return nil, false
	}
	return r.numbers[:r.count], true
}

var lineEnd, nils = []byte("\r\n"), [...][]byte{[]byte("_"), []byte("*-1"), []byte("$-1")}

// Write implements io.Writer. It returns an error of Redis as the error of the command, which is
// what go-redis does with the reply to a redis.Cmd. Nothing of the reply is left to be read then.
func (r *reply) Write(p []byte) (int, error) {
	var err error
	switch {
	case r.wrong, len(p) == 0, bytes.Equal(p, lineEnd):
	case !r.begun, r.complete(): // a hook may have the command executed again
		err = r.begin(p)
	default:
		n, numberErr := strconv.ParseInt(string(p[1:]), 10, 64)
		if r.wrong = p[0] != ':' || numberErr != nil; !r.wrong {
			r.numbers[r.count] = n
			r.count++
		}
	}
	return len(p), err
}

// begin reads the first line.
func (r *reply) begin(line []byte) error {
	*r = reply{}
	if line[0] == '-' {
		return serverError(line[1:])
	}
	for _, n := range nils {
		if bytes.Equal(line, n) {
			return redis.Nil
		}
	}
	r.begun = true
	n, err := strconv.Atoi(string(line[1:]))
	if r.wrong = line[0] != '*' || err != nil || n < 0 || n > len(r.numbers); !r.wrong {
		r.length = int8(n)
	}
	return nil
}

// Places in the arguments of a script's command: EVALSHA sha 1 key argument…
const (
	argName   = 0
	argScript = 1
	argKey    = 3
	argFirst  = 4
)
