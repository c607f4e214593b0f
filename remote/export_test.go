package remote

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/tiered-limiter/tiered-limiter/lua"
)

// Naming makes the names of keys: those of processes and of the table are no bucket's, so no method
// tells them.
type Naming = naming

func NewNaming(prefix string, hash bool) Naming           { return naming{prefix: prefix, hash: hash} }
func (n naming) Bucket(k Kind, policy, key string) string { return n.bucket(k, policy, key) }
func (n naming) Presence(i int) string                    { return n.presence(i) }
func (n naming) Table() string                            { return n.table() }
func (r *Redis) Names() Naming                            { return r.names }

// SlotOf is the slot of any key: that of its hash tag, if it has one.
func SlotOf(key string) int {
	_, rest, _ := strings.Cut(key, "{")
	if tag, _, closed := strings.Cut(rest, "}"); closed && tag != "" {
		key = tag
	}
	return slotOf(key)
}

// SampleNames hold what Redis Cluster says of slots, CheckPrefix what a name may have.
var (
	SampleNames = sampleNames
	CheckPrefix = checkPrefix
)

// What no server answers, but a proxy or a broken one may: see the fuzz tests.
var (
	DecodeCensus = decodeCensus
	Reportable   = reportable
	IsNodeError  = isNodeError
	ErrShape     = errShape
	ErrParse     = errParse
	Numbers      = numbers
)

type CallCmd = callCmd

func (c *callCmd) Answered() bool        { return c.answered() }
func (c *callCmd) List() ([]int64, bool) { return c.reply.list() }

// Feed writes a line as go-redis does.
func (c *callCmd) Feed(line string) error {
	_, err := c.reply.Write([]byte(line))
	if err == nil {
		_, err = c.reply.Write([]byte("\r\n"))
	}
	return err
}

// Arguments are those of the command that a call becomes, after its key.
func Arguments(c *lua.Call) []any { return callCommand(c, nil).args[argFirst:] }

// RunWithPresence sends calls, and a report of presence in place of each that names no bucket, in
// one pipeline: a store sends reports apart.
func (r *Redis) RunWithPresence(ctx context.Context, timeout time.Duration, client *redis.Client, calls []lua.Call) error {
	var all []*command
	for i := range calls {
		var o command
		if calls[i].Bucket != "" {
			o = callCommand(&calls[i], nil)
		} else {
			o = newCommand(&presence, r.names.presence(0), 3)
			o.args = append(o.args, "me", time.Minute.Microseconds(), 0)
		}
		all = append(all, &o)
	}
	r.execute(ctx, timeout, client, all)
	var errs []error
	for _, o := range all {
		errs = append(errs, o.cmd.Err())
	}
	return errors.Join(errs...)
}

// Deadlines and Lanes are shared by calls: how often, shows in allocations only.
type (
	Deadlines = deadlines
	Lanes     = lanes
)

func (d *deadlines) Of(ctx context.Context, timeout time.Duration) (context.Context, context.CancelFunc) {
	return d.of(ctx, timeout)
}

func (l *lanes) Made() int { return len(l.made) }

func (l *lanes) Of(client *redis.Client, timeout time.Duration) *redis.Client {
	return l.of(client, timeout).client
}

// Client is the one that Open made, or that NewRedis was given.
func (r *Redis) Client() redis.UniversalClient {
	switch nodes := r.nodes.(type) {
	case single:
		return nodes.client
	case *cluster:
		return nodes.client
	}
	return nil
}

// Broken is why a store that NewRedis was given cannot be used.
func (r *Redis) Broken() error { return r.broken }

// Policies is how many policies a process announces.
func (a Announcement) Policies() int { return a.policies() }

// FillOptions sets what Open sets.
func FillOptions(o *redis.Options) {
	o.MaintNotificationsConfig = noMaintNotifications()
	o.ContextTimeoutEnabled = true
	fill([...]*int{&o.MaxRetries, &o.DialerRetries, &o.PipelinePoolSize},
		[...]*time.Duration{&o.DialTimeout, &o.ReadTimeout, &o.WriteTimeout, &o.PoolTimeout})
}

// Allows is what a caller's deadline leaves of a timeout.
var Allows = allows

// DecodeReply reads what a hook or a proxy answers to a call of an algorithm's script.
func DecodeReply(a lua.Algorithm, val any) (lua.Reply, bool) {
	var c callCmd
	c.SetVal(val)
	numbers, ok := c.reply.list()
	if !ok {
		return lua.Reply{}, false
	}
	return lua.ReplyOf(a, numbers)
}
