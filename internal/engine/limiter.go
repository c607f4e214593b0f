package engine

import (
	"fmt"
	"log/slog"
	"strconv"

	"github.com/tiered-limiter/tiered-limiter/internal/dispatch"
	"github.com/tiered-limiter/tiered-limiter/internal/report"
	"github.com/tiered-limiter/tiered-limiter/local"
	"github.com/tiered-limiter/tiered-limiter/lua"
)

// Gone returns the figures of forgotten buckets, and of calls that brought nothing.
func (f *Figures) Gone() Gone {
	f.mu.Lock()
	defer f.mu.Unlock()
	return Gone{f.evicted, f.refused.Top(), f.rejected, f.forgiven, f.unanswered}
}

// leaseID returns the id under which the Limiter leases. It is that of the process, unless the policy came back as one
// that cannot take up its last Limiter: then Redis must tell the calls of both apart.
func (l *Limiter) leaseID() string {
	id := *l.Group.Lease.Load()
	if !l.Beside {
		return id
	}
	n, _ := strconv.ParseUint(id, 16, 64)
	return fmt.Sprintf("%016x", n^local.Hash(uint64(l.Number), local.ID{Key: l.Name}))
}

// phase returns where the windows of a key begin, in µs. It must be the same in every process.
func (l *Limiter) phase(key string) int64 {
	if l.Kind.Algorithm != lua.FixedWindow || l.Kind.Calendar {
		return 0
	}
	const basis = 0xcbf29ce484222325 // of FNV
	return int64(local.Hash(basis, local.ID{Key: key}) % uint64(l.Kind.Window))
}

// keepStats adds the figures of a forgotten bucket.
func (l *Limiter) keepStats(key string, s local.Stats) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.evicted.Add(s)
	l.refused.Add(RefusedOf(key, s))
}

// forgive counts n tokens of debt that no call can report.
func (l *Limiter) forgive(n int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.forgiven += n
}

// countFailure counts a call that was not answered, or that the store rejected because of its bucket: the Redis key
// has another type, or is damaged. Each rejected bucket makes one line in the log. The line does not name the key,
// which may be a secret.
func (l *Limiter) countFailure(call *lua.Call, err error) {
	rejected := dispatch.IsScriptError(err)
	l.mu.Lock()
	if rejected {
		l.rejected++
	} else {
		l.unanswered += call.Want
	}
	l.mu.Unlock()
	if j := l.Group.Journal; rejected && j.FirstTime(call.Bucket) {
		j.Tally("refused "+l.Name, 1, slog.LevelError,
			"redis refuses buckets, as they are not what the limiter wrote: the fail mode decides for their keys",
			"policy", l.Name, "error", err)
	}
}

// RefusedOf returns what a key was refused, by the figures of its bucket.
func RefusedOf(key string, s local.Stats) report.RefusedKey {
	return report.RefusedKey{
		Key: key, Limited: s.Refused - s.FallbackSpent, FallbackSpent: s.FallbackSpent, Unavailable: s.Failed,
		Blocked: s.Blocked,
	}
}
