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

// batch is what goes to one node together.
type batch struct {
	client *redis.Client // see topology.pick
	calls  []int         // index of each order's call
	orders []order
}

// runAll executes calls node by node, all nodes at once, and waits for the slowest. ctx ends after timeout.
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

// divide gathers the calls by the node that answers for each. A call whose node cannot be found gets its error now.
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
				b.calls, b.orders = append(b.calls, i), append(b.orders, callOrder(&calls[i], b.orders[len(b.orders)-1].args))
				continue next
			}
		}
		b := batch{client: client, calls: make([]int, 1, len(calls)), orders: make([]order, 1, len(calls))}
		b.calls[0], b.orders[0] = i, callOrder(&calls[i], nil)
		batches = append(batches, b)
	}
	return batches
}

// decode reads the reply to a call, and reports whether it can be one.
func (r *Result) decode(c *lua.Call, val any) (ok bool) {
	r.Reply, ok = lua.DecodeReply(c.Algorithm, val)
	return ok && r.Reply.Answers(c)
}

// runBatch executes the calls of one node and writes their results. Batches share results, but no element of it.
func (s *Redis) runBatch(ctx context.Context, timeout time.Duration, b *batch, calls []lua.Call, results []Result) {
	s.execute(ctx, timeout, b.client, b.orders)
	for i := range b.orders {
		r, cmd := &results[b.calls[i]], b.orders[i].cmd
		if err := cmd.Err(); err != nil {
			r.Err = s.failure(err)
		} else if c := &calls[b.calls[i]]; !r.decode(c, cmd.Val()) {
			*r = Result{Err: errShape}
		}
		r.Elsewhere = b.orders[i].moved
	}
}

// execute runs orders on the node that should have their buckets, each at most once, and returns when each has its value
// or its error.
func (s *Redis) execute(ctx context.Context, timeout time.Duration, client *redis.Client, orders []order) {
	all := make([]*order, len(orders))
	for i := range orders {
		all[i] = &orders[i]
	}
	s.executeOn(ctx, timeout, client, all)
	if router := s.nodes.router(); router != nil {
		s.redirect(ctx, timeout, router, those(all, isMoved))
	}
}

// executeOn runs orders on one node, each at most once: in one pipeline by their digests. What the node does not know
// (it was restarted, or told SCRIPT FLUSH) it has not executed. That goes out again, with the text of each script
// once, and once more with all texts: the server may have forgotten again on the way, or may not have loaded the text
// that came first because its slot had moved, or several servers may be behind a foreign client.
func (s *Redis) executeOn(ctx context.Context, timeout time.Duration, client *redis.Client, orders []*order) {
	rest := orders
	for _, choose := range [...]func([]*order){noTexts, firstTexts, allTexts} {
		choose(rest)
		send(ctx, s.pipeline(client, timeout), rest)
		if rest = those(rest, isNoScript); len(rest) == 0 {
			break
		}
	}
	if len(those(orders, isNodeError)) > 0 {
		s.nodes.stale(ctx)
	}
}

// noTexts sends orders by their digests alone.
func noTexts(orders []*order) {
	for _, o := range orders {
		o.text = false
	}
}

// firstTexts sends the text with the first order of each script; the others find it by the digest that this leaves
// behind.
func firstTexts(orders []*order) {
	sent := make(map[*script]bool)
	for _, o := range orders {
		o.text = !sent[o.script]
		sent[o.script] = true
	}
}

// allTexts sends the text with every order.
func allTexts(orders []*order) {
	for _, o := range orders {
		o.text = true
	}
}

// send puts orders into a pipeline and executes it.
func send(ctx context.Context, pipe redis.Pipeliner, orders []*order) {
	for _, o := range orders {
		if o.asking {
			_ = pipe.Process(ctx, once{redis.NewCmd(ctx, "asking")})
		}
		_ = pipe.Process(ctx, o.prepare(ctx)) // it only queues
	}
	err := exec(ctx, pipe)
	if err == nil {
		return
	}
	// An error of Redis during the handshake of a new connection (WRONGPASS, LOADING) is reported by Exec alone: go-redis
	// takes it for the reply of a command, and no command has it. Nothing was sent then.
	for _, o := range orders {
		if o.cmd.Err() == nil && o.cmd.Val() == nil {
			o.cmd.SetErr(err)
		}
	}
}

// exec executes a pipeline. A server that announces more than memory can ever hold makes go-redis panic, with the
// connection closed and nothing else amiss; the type of what a hook may have panicked with tells enough.
func exec(ctx context.Context, pipe redis.Pipeliner) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("remote: the Redis client panicked with a %T", p)
		}
	}()
	_, err = pipe.Exec(ctx)
	return err
}

// those returns the orders whose error is of a kind.
func those(orders []*order, kind func(error) bool) []*order {
	var some []*order
	for _, o := range orders {
		if err := o.cmd.Err(); err != nil && kind(err) {
			some = append(some, o)
		}
	}
	return some
}

// isNoScript reports whether Redis did not execute a script because it does not know it.
func isNoScript(err error) bool { return redis.HasErrorPrefix(err, "NOSCRIPT") }

// failure turns an error of go-redis into one of ours where that says more; see reportable.
func (s *Redis) failure(err error) error {
	if s.closed.Load() && errors.Is(err, redis.ErrClosed) {
		return ErrClosed
	}
	return reportable(err)
}
