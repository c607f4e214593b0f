package sim

import (
	"maps"
	"time"

	"github.com/tiered-limiter/tiered-limiter/internal/invariant"
	"github.com/tiered-limiter/tiered-limiter/lua"
)

// shelf is where a Redis keeps its hashes. nil and an empty map are a bucket that is not there.
type shelf interface {
	values(bucket string, fields ...string) []string
	fields(bucket string) map[string]string
	left(bucket string) time.Duration // until its key ends; 0 for never
}

// account is a bucket as the auditor saw it last.
type account struct {
	invariant.Bucket
	until map[string]time.Duration // of the run, by lease id: the end of its record, if no clock is moved
	at    time.Duration            // of the run: when it was last written, less what the clock was set ahead since
	lost  bool                     // Redis may have forgotten something: look before the next call
}

// load reads all of a bucket: what a Redis remembers that has forgotten something. at is the time of the run.
func (a *account) load(s shelf, bucket string, at time.Duration) {
	a.Bucket, _ = readAll(s, bucket) // what is damaged shows at the next call
	a.until, a.at, a.lost = make(map[string]time.Duration), at, false
	for id, r := range a.Records {
		a.until[id] = at + time.Duration(r.End-a.Last)*time.Microsecond
	}
}

// readAll reads a bucket with all its records.
func readAll(s shelf, bucket string) (invariant.Bucket, error) {
	return invariant.Parse(lua.TokenBucket, s.fields(bucket), s.left(bucket))
}

// readOne reads a bucket, and of its records only one. That is what most calls change.
func readOne(s shelf, bucket, lease string) (invariant.Bucket, error) {
	names := invariant.Fields(lease)
	fields := make(map[string]string, len(names))
	for i, text := range s.values(bucket, names...) {
		if text != "" {
			fields[names[i]] = text
		}
	}
	return invariant.Parse(lua.TokenBucket, fields, s.left(bucket))
}

// executed enters a call that Redis answered, and reports what is wrong with what Redis stores now. conceded says
// that the caller may hold what Redis forgot.
func (a *account) executed(s shelf, c *lua.Call, r *lua.Reply, at time.Duration, conceded bool) (f invariant.Finding) {
	x := invariant.Exchange{Call: c, Reply: r, Before: &a.Bucket, Conceded: conceded}
	x.Own, x.Owned = a.Records[c.Lease]
	x.Waited = a.Last + (at - a.at).Microseconds()
	created := r.Flags&lua.Created != 0 && (r.Code == lua.Granted || r.Code == lua.Denied)
	var now invariant.Bucket
	var err error
	whole := created || a.SweepDue(r.Now)
	if whole {
		now, err = readAll(s, c.Bucket)
	} else if now, err = readOne(s, c.Bucket, c.Lease); err == nil {
		now.Follows(&a.Bucket, c.Lease)
	}
	if err != nil {
		f.Is(true, 0, "a bucket is damaged")
		return f
	}
	x.After = &now
	f = x.Check()
	if r.Code != lua.Granted && r.Code != lua.Denied {
		return f
	}
	if x.Wrote || created {
		a.Bucket = now
	}
	if whole { // some leases may be forgotten
		maps.DeleteFunc(a.until, func(id string, _ time.Duration) bool { _, kept := now.Records[id]; return !kept })
	}
	if x.Wrote {
		a.at = at
		if c.Lease != "" {
			a.until[c.Lease] = at + time.Duration(c.TTL)*time.Microsecond
		}
	}
	return f
}
