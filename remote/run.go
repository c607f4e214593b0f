package remote

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/tiered-limiter/tiered-limiter/lua"
)

// batch is the calls that go to one node together.
type batch struct {
	client   *redis.Client // see topology.pick
	calls    []int         // index of each command's call
	commands []command
}

// runAll executes calls on all their nodes at once, and waits for the slowest. ctx ends after timeout.
func (s *Redis) runAll(ctx context.Context, timeout time.Duration, calls []lua.Call, results []Result) {
	batches := s.divide(ctx, calls, results)
	if len(batches) == 0 {
		return
	}
	var others sync.WaitGroup
	for i := range batches[1:] {
		others.Go(func() { s.runBatch(ctx, timeout, &batches[1+i], calls, results) })
	}
	s.runBatch(ctx, timeout, &batches[0], calls, results)
	others.Wait()
}

// divide groups the calls by the node that answers for each. A call whose node cannot be found gets its error here.
func (s *Redis) divide(ctx context.Context, calls []lua.Call, results []Result) []batch {
	var batches []batch
next:
	for i := range calls {
		results[i] = Result{}
		client, err := s.nodes.pick(ctx, calls[i].Bucket)
		if err != nil {
			results[i].Err = s.failure(err)
			continue
		}
		for j := range batches { // as many as nodes, so a map would be slower
			if b := &batches[j]; b.client == client {
				before := b.commands[len(b.commands)-1].args
				b.calls, b.commands = append(b.calls, i), append(b.commands, callCommand(&calls[i], before))
				continue next
			}
		}
		b := batch{client: client, calls: make([]int, 1, len(calls)), commands: make([]command, 1, len(calls))}
		b.calls[0], b.commands[0] = i, callCommand(&calls[i], nil)
		batches = append(batches, b)
	}
	return batches
}

// decode reads the reply to a call, and reports whether it can be the call's reply.
func (r *Result) decode(c *lua.Call, val any) (ok bool) {
	r.Reply, ok = lua.DecodeReply(c.Algorithm, val)
	return ok && r.Reply.Answers(c)
}

// runBatch executes the calls of one node and writes their results. Batches share the slice of results, but no
// element of it.
func (s *Redis) runBatch(ctx context.Context, timeout time.Duration, b *batch, calls []lua.Call, results []Result) {
	s.execute(ctx, timeout, b.client, b.commands)
	for i := range b.commands {
		r, cmd := &results[b.calls[i]], b.commands[i].cmd
		if err := cmd.Err(); err != nil {
			r.Err = s.failure(err)
		} else if c := &calls[b.calls[i]]; !r.decode(c, cmd.Val()) {
			*r = Result{Err: errShape}
		}
		r.Elsewhere = b.commands[i].redirected
	}
}

// execute runs commands on the node that should have their buckets, each at most once. It returns when each has its
// value or its error.
func (s *Redis) execute(ctx context.Context, timeout time.Duration, client *redis.Client, commands []command) {
	all := make([]*command, len(commands))
	for i := range commands {
		all[i] = &commands[i]
	}
	s.executeOn(ctx, timeout, client, all)
	if router := s.nodes.router(); router != nil {
		s.redirect(ctx, timeout, router, failedWith(all, isMoved))
	}
}

// executeOn runs commands on one node, each at most once. They first go by their digests, in one pipeline. The node
// has not executed a script that it does not know, because it was restarted or got SCRIPT FLUSH. Those commands are
// sent again with the text of each script once, and then again with all texts: the server may have lost the script
// in between, or may not have loaded the first text because its slot had moved, or several servers may be behind a
// foreign client.
func (s *Redis) executeOn(ctx context.Context, timeout time.Duration, client *redis.Client, commands []*command) {
	rest := commands
	for _, choose := range [...]func([]*command){digestsOnly, firstTexts, allTexts} {
		choose(rest)
		send(ctx, s.pipeline(client, timeout), rest)
		if rest = failedWith(rest, isNoScript); len(rest) == 0 {
			break
		}
	}
	if len(failedWith(commands, isNodeError)) > 0 {
		s.nodes.stale(ctx)
	}
}

// digestsOnly sends every command by its script's digest.
func digestsOnly(commands []*command) {
	for _, o := range commands {
		o.withText = false
	}
}

// firstTexts sends the text with the first command of each script. The others then find the script by its digest.
func firstTexts(commands []*command) {
	sent := make(map[*script]bool)
	for _, o := range commands {
		o.withText = !sent[o.script]
		sent[o.script] = true
	}
}

// allTexts sends the text with every command.
func allTexts(commands []*command) {
	for _, o := range commands {
		o.withText = true
	}
}

// send puts commands into a pipeline and executes it.
func send(ctx context.Context, pipe redis.Pipeliner, commands []*command) {
	for _, o := range commands {
		if o.asking {
			_ = pipe.Process(ctx, noRetryCmd{redis.NewCmd(ctx, "asking")})
		}
		_ = pipe.Process(ctx, o.prepare(ctx)) // this only queues it
	}
	err := exec(ctx, pipe)
	if err == nil {
		return
	}
	// Exec alone reports an error of Redis during the handshake of a new connection (WRONGPASS, LOADING). go-redis
	// takes it for the reply of a command, but no command has it. Nothing was sent then.
	for _, o := range commands {
		if o.cmd.Err() == nil && o.cmd.Val() == nil {
			o.cmd.SetErr(err)
		}
	}
}

// exec executes a pipeline. If a server announces more data than memory can hold, go-redis panics with the
// connection closed, and nothing else is wrong. A hook may panic too: the type of the value says enough.
func exec(ctx context.Context, pipe redis.Pipeliner) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("remote: the Redis client panicked with a %T", p)
		}
	}()
	_, err = pipe.Exec(ctx)
	return err
}

// failedWith returns the commands whose error is of a kind.
func failedWith(commands []*command, kind func(error) bool) []*command {
	var some []*command
	for _, o := range commands {
		if err := o.cmd.Err(); err != nil && kind(err) {
			some = append(some, o)
		}
	}
	return some
}

// isNoScript reports whether Redis did not execute a script because it does not know it.
func isNoScript(err error) bool { return redis.HasErrorPrefix(err, "NOSCRIPT") }

// failure turns an error of go-redis into one of ours if that says more; see reportable.
func (s *Redis) failure(err error) error {
	if s.closed.Load() && errors.Is(err, redis.ErrClosed) {
		return ErrClosed
	}
	return reportable(err)
}
