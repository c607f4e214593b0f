package remote

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/tiered-limiter/tiered-limiter/lua"
)

// Run executes the calls; see [Store]. It returns within timeout if the client respects a context's
// deadline, as clients of [Open] do. Otherwise it returns within about three times timeout: one for
// getting a connection, one for writing and one for reading. It may stop waiting a thirty-second of
// timeout earlier, because calls share deadlines.
func (s *Redis) Run(ctx context.Context, timeout time.Duration, calls []lua.Call, results []Result) {
	if len(calls) == 0 {
		return
	}
	results = results[:len(calls)]
	err := s.usable(ctx)
	if err != nil {
		for i := range results {
			results[i] = Result{Err: err}
		}
		return
	}
	ctx, cancel := s.limits.of(ctx, timeout)
	defer cancel()
	s.runAll(ctx, timeout, calls, results)
}

// batch is the calls that go to one node together.
type batch struct {
	client   *redis.Client // see topology.pick
	calls    []int         // index of each command's call
	commands []command
	all      []*command // pointers to commands
	like     []any      // arguments of the last call, also of an earlier Run: the same numbers are not allocated again
}

// add adds the call of an index.
func (b *batch) add(i int, c *lua.Call) {
	o := callCommand(c, b.like)
	b.calls, b.commands, b.like = append(b.calls, i), append(b.commands, o), o.args
}

// batches is room for the batches of one Run, of which hooks see nothing. It is reused.
type batches []batch

var batchRoom = sync.Pool{New: func() any { return new(batches) }}

// next returns a further batch, for the calls of a node.
func (b *batches) next(client *redis.Client) *batch {
	n := len(*b)
	*b = slices.Grow(*b, 1)[:n+1]
	last := &(*b)[n]
	last.client = client
	return last
}

// clear empties the batches for the next Run.
func (b *batches) clear() {
	for i := range *b {
		one := &(*b)[i]
		clear(one.commands)
		clear(one.all)
		one.client, one.calls, one.commands, one.all = nil, one.calls[:0], one.commands[:0], one.all[:0]
	}
	*b = (*b)[:0]
}

// runAll executes calls on all their nodes at once, and waits for the slowest. ctx ends after
// timeout.
func (s *Redis) runAll(ctx context.Context, timeout time.Duration, calls []lua.Call, results []Result) {
	all := batchRoom.Get().(*batches)
	s.divide(ctx, all, calls, results)
	switch len(*all) {
	case 0:
	case 1:
		s.runBatch(ctx, timeout, &(*all)[0], calls, results)
	default:
		var others sync.WaitGroup
		for i := range (*all)[1:] {
			others.Go(func() { s.runBatch(ctx, timeout, &(*all)[1+i], calls, results) })
		}
		s.runBatch(ctx, timeout, &(*all)[0], calls, results)
		others.Wait()
	}
	all.clear()
	batchRoom.Put(all)
}

// divide groups the calls by the node that answers for each. A call whose node cannot be found gets
// its error here.
func (s *Redis) divide(ctx context.Context, all *batches, calls []lua.Call, results []Result) {
next:
	for i := range calls {
		results[i] = Result{}
		client, err := s.nodes.pick(ctx, calls[i].Bucket)
		if err != nil {
			results[i].Err = s.failure(err)
			continue
		}
		for j := range *all { // as many as nodes, so a map would be slower
			if b := &(*all)[j]; b.client == client {
				b.add(i, &calls[i])
				continue next
			}
		}
		all.next(client).add(i, &calls[i])
	}
}

// decode reads the reply to a call, and reports whether it can be the call's reply.
func (r *Result) decode(c *lua.Call, answer *reply) bool {
	numbers, ok := answer.list()
	if ok {
		r.Reply, ok = lua.ReplyOf(c.Algorithm, numbers)
	}
	return ok && r.Reply.Answers(c)
}

// runBatch executes the calls of one node and writes their results. Batches share the slice of
// results, but no element of it.
func (s *Redis) runBatch(ctx context.Context, timeout time.Duration, b *batch, calls []lua.Call, results []Result) {
	for i := range b.commands {
		b.all = append(b.all, &b.commands[i])
	}
	s.execute(ctx, timeout, b.client, b.all)
	for i := range b.commands {
		r, cmd := &results[b.calls[i]], b.commands[i].call
		if err := cmd.Err(); err != nil {
			r.Err = s.failure(err)
		} else if !r.decode(&calls[b.calls[i]], &cmd.reply) {
			*r = Result{Err: errShape}
		}
		r.Elsewhere = b.commands[i].redirected
	}
}

// execute runs commands on the node that should have their buckets, each at most once. It returns
// when each has its value or its error.
func (s *Redis) execute(ctx context.Context, timeout time.Duration, client *redis.Client, all []*command) {
	s.executeOn(ctx, timeout, client, all)
	if s.cluster != nil {
		s.redirect(ctx, timeout, failedWith(all, isMoved))
	}
}

// executeOn runs commands on one node, each at most once. They first go by their digests, in one
// pipeline. The node has not executed a script that it does not know, because it was restarted or
// got SCRIPT FLUSH. Those commands are sent again with the text of each script once, and then again
// with all texts: the server may have lost the script in between, or may not have loaded the first
// text because its slot had moved, or several servers may be behind a foreign client.
func (s *Redis) executeOn(ctx context.Context, timeout time.Duration, client *redis.Client, commands []*command) {
	rest := commands
	for try := range 3 {
		for i, o := range rest {
			o.withText = try == 2 || try == 1 && slices.IndexFunc(rest, o.hasSameScript) == i
		}
		s.send(ctx, client, timeout, rest)
		if rest = failedWith(rest, isNoScript); len(rest) == 0 {
			break
		}
	}
	if s.cluster != nil && len(failedWith(commands, isNodeError)) > 0 {
		s.cluster.stale(ctx)
	}
}

func (o *command) hasSameScript(p *command) bool { return o.script == p.script }

// send sends commands to a node in one pipeline.
func (s *Redis) send(ctx context.Context, client *redis.Client, timeout time.Duration, commands []*command) {
	if client == nil {
		(&pipeline{Pipeliner: s.foreign.Pipeline()}).send(ctx, commands)
		return
	}
	lane := s.lanes.of(client, timeout)
	pipe := lane.pipeline()
	if pipe.send(ctx, commands) {
		lane.reuse(pipe)
	}
}

// send puts commands into the pipeline and executes it. It reports false if the pipeline must not
// be used again, because the client panicked.
func (p *pipeline) send(ctx context.Context, commands []*command) (reusable bool) {
	for _, o := range commands {
		if o.asking {
			p.cmds = append(p.cmds, noRetryCmd{redis.NewCmd(ctx, "asking")})
		}
		p.cmds = append(p.cmds, o.prepare(ctx))
	}
	_ = p.BatchProcess(ctx, p.cmds...) // this only queues them
	panicked, err := exec(ctx, p.Pipeliner)
	if err == nil {
		return true
	}
	// Exec alone reports an error of Redis during the handshake of a new connection (WRONGPASS,
	// LOADING). go-redis takes it for the reply of a command, but no command has it. Nothing was
	// sent then.
	for _, o := range commands {
		if o.cmd.Err() == nil && !o.cmd.answered() {
			o.cmd.SetErr(err)
		}
	}
	return !panicked
}

// exec executes a pipeline. If a server announces more data than memory can hold, go-redis panics
// with the connection closed, and nothing else is wrong. A hook may panic too: the type of the
// value says enough.
func exec(ctx context.Context, pipe redis.Pipeliner) (panicked bool, err error) {
	defer func() {
		if p := recover(); p != nil {
			panicked, err = true, fmt.Errorf("remote: the Redis client panicked with a %T", p)
		}
	}()
	_, err = pipe.Exec(ctx)
	return false, err
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

// redirect sends commands that their node did not execute to the nodes that it named. It does so at
// once: the ClusterClient would ask the former node again and then pause for 8 to 24 ms by default,
// which is longer than a caller waits. The ClusterClient gets the rest: commands that were
// redirected twice, and those for nodes on which this store has not seen a bucket yet. They carry
// the text of the script, because such a node may not know it.
func (s *Redis) redirect(ctx context.Context, timeout time.Duration, moved []*command) {
	if len(moved) == 0 {
		return
	}
	var targets sync.WaitGroup
	for _, o := range moved {
		o.redirected = true
	}
	for rest := moved; len(rest) > 0; {
		addr, _ := movedTo(rest[0].cmd.Err())
		var there, others []*command
		for _, o := range rest {
			to, asking := movedTo(o.cmd.Err())
			if to != addr {
				others = append(others, o)
				continue
			}
			o.asking = asking
			there = append(there, o)
		}
		if client := s.cluster.at(addr); client != nil {
			targets.Go(func() { s.executeOn(ctx, timeout, client, there) })
		}
		rest = others
	}
	targets.Wait()
	left := failedWith(moved, func(err error) bool {
		return isMoved(err) || errors.Is(err, redis.ErrClosed) // the node has left the Cluster, and was not asked
	})
	for _, o := range left {
		o.asking, o.withText = false, true // the router sends ASKING itself
	}
	if len(left) > 0 {
		(&pipeline{Pipeliner: s.cluster.client.Pipeline()}).send(ctx, left)
	}
}
