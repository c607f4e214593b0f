package sim

import (
	"maps"
	"time"

	"github.com/tiered-limiter/tiered-limiter/internal/invariant"
	"github.com/tiered-limiter/tiered-limiter/lua"
)

// hashReader reads the hashes of a Redis. A nil or empty map means that the bucket does not exist.
type hashReader interface {
	someFields(bucket string, fields ...string) []string
	allFields(bucket string) map[string]string
	ttl(bucket string) time.Duration // until the key ends; 0: it does not end
}

// auditedBucket is a bucket as the audit saw it last.
type auditedBucket struct {
	invariant.Bucket
	until map[string]time.Duration // of the run, by lease id: the end of the record if no clock moves
	at    time.Duration            // of the run: the last write, less what the clock was set ahead since
	stale bool                     // Redis may have forgotten something: reload before the next call
}

// reload reads the whole bucket from a Redis that may have forgotten something. at is the time of the run.
func (a *auditedBucket) reload(s hashReader, bucket string, at time.Duration) {
	a.Bucket, _ = readBucket(s, bucket) // the next call reports damage
	a.until, a.at, a.stale = make(map[string]time.Duration), at, false
	for id, r := range a.Records {
		a.until[id] = at + time.Duration(r.End-a.Last)*time.Microsecond
	}
}

// readAll reads a bucket with all its records.
func readBucket(s hashReader, bucket string) (invariant.Bucket, error) {
	return invariant.Parse(lua.TokenBucket, s.allFields(bucket), s.ttl(bucket))
}

// readRecord reads a bucket with one of its records. Most calls change no other.
func readRecord(s hashReader, bucket, lease string) (invariant.Bucket, error) {
	names := invariant.Fields(lease)
	fields := make(map[string]string, len(names))
	for i, text := range s.someFields(bucket, names...) {
		if text != "" {
			fields[names[i]] = text
		}
	}
	return invariant.Parse(lua.TokenBucket, fields, s.ttl(bucket))
}

// check compares what Redis stores after a call with what it must store, and takes it over. conceded says that the
// caller may hold tokens that Redis forgot.
func (a *auditedBucket) check(s hashReader, c *lua.Call, r *lua.Reply, at time.Duration,
	conceded bool,
) (f invariant.Finding) {
	x := invariant.Exchange{Call: c, Reply: r, Before: &a.Bucket, Conceded: conceded}
	x.Own, x.Owned = a.Records[c.Lease]
	x.Waited = a.Last + (at - a.at).Microseconds()
	created := r.Flags&lua.Created != 0 && (r.Code == lua.Granted || r.Code == lua.Denied)
	var now invariant.Bucket
	var err error
	whole := created || a.SweepDue(r.Now)
	if whole {
		now, err = readBucket(s, c.Bucket)
	} else if now, err = readRecord(s, c.Bucket, c.Lease); err == nil {
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
