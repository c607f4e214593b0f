package tiered

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"

	"github.com/tiered-limiter/tiered-limiter/internal/dispatch"
	"github.com/tiered-limiter/tiered-limiter/local"
	"github.com/tiered-limiter/tiered-limiter/lua"
	"github.com/tiered-limiter/tiered-limiter/remote"
)

// Limiter decides by one policy. All methods may be called concurrently.
type Limiter struct {
	group  *Group
	number int
	name   string        // of the policy
	kind   remote.Kind   // of its buckets
	mode   atomic.Uint32 // what is special about all its decisions: of the bits below
	owns   bool          // made by New: its Close closes the Group
	whole  *Limiter      // whose shard this is; itself, where it is the user's. It has all the figures
	shards []*Limiter    // two and more, if the policy has Shards

	terms   atomic.Pointer[terms]
	setting sync.Mutex // one SetPolicy at a time
	lookUps lookUps

	mu             sync.Mutex
	evictedStats   local.Stats // of buckets that were forgotten, and by fail modes that were changed
	evictedRefused refusals    // of forgotten buckets, the most refused
	rejected       int64       // calls that the store refused for their bucket alone
	forgiven       int64       // debt that they were to report, and that is given up
	lost           int64       // tokens asked for by calls without an answer

	waits        waits
	free         atomic.Int64 // tokens admitted without a limit
	shadowed     atomic.Int64 // tokens that were refused, and yet admitted
	perKeyFaults atomic.Int64 // PerKey panicked or returned no limit
}

// The bits of Limiter.mode. Most decisions are made while none of them is set.
const (
	modeTraced    = 1 << iota // somebody wants to be told of decisions
	modeShadow                // refusals admit
	modeUnlimited             // nobody is asked: no PerKey, and no limit
	modeSharded               // it has shards
)

func newLimiter(g *Group, number int, p Policy) *Limiter {
	l := &Limiter{group: g, number: number, name: p.Name, kind: p.kind()}
	l.whole = l
	if p.Shards > 1 {
		for i := range p.Shards {
			s := &Limiter{group: g, number: number + 1 + i, name: p.Name, kind: l.kind, whole: l}
			s.kind.Shards, s.kind.Shard = p.Shards, i
			l.shards = append(l.shards, s)
		}
	}
	l.set(p)
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

// MaxKeyLength is the longest key, in bytes. Any bytes are legal.
const MaxKeyLength = 64 << 10

// id is the name of a key in the cache and, for the store, of its bucket.
func (l *Limiter) id(key string) local.ID { return local.ID{Policy: l.number, Key: remote.Digest(key)} }

// call is a call of the script for the bucket name, with a policy's numbers.
func call(name string, p *local.Policy) lua.Call {
	c := p.Call
	c.Bucket = name
	return c
}

// keep adds the figures of a forgotten bucket.
func (l *Limiter) keep(key string, s local.Stats) {
	l = l.whole
	l.mu.Lock()
	defer l.mu.Unlock()
	l.evictedStats.Add(s)
	l.evictedRefused.add(key, refusedOf(s))
}

// forgive counts debt that no call can report.
func (l *Limiter) forgive(n int64) {
	l = l.whole
	l.mu.Lock()
	defer l.mu.Unlock()
	l.forgiven += n
}

// failed counts a call that was not answered, or that the store refused because of its bucket: a key of another type, a
// damaged bucket. The latter make a line, once per bucket; no line says which, for a key is nobody else's business.
func (l *Limiter) failed(call *lua.Call, err error) {
	poor := dispatch.IsScriptError(err)
	l = l.whole
	l.mu.Lock()
	if poor {
		l.rejected++
	} else {
		l.lost += call.Want
	}
	l.mu.Unlock()
	if j := l.group.journal; poor && j.once(call.Bucket) {
		j.tally("refused "+l.name, 1, slog.LevelError,
			"redis refuses buckets, as they are not what the limiter wrote: the fail mode decides for their keys",
			"policy", l.name, "error", err)
	}
}
