package remote

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"
	"time"

	"github.com/tiered-limiter/tiered-limiter/lua"
)

// Process is a process as [Store].Presence records it.
type Process struct {
	ID        string        // not empty
	TTL       time.Duration // how long it counts without another report: ≥ 1 µs; 0 means that it leaves
	Announced Announcement

	// Keep is for how long the node keeps which parts of the announced policies' limits processes
	// used, ≥ 0, rounded up to seconds. With 0 it is not asked.
	Keep time.Duration

	// Poll is sent along if its Seq is not 0 and the table of standing shares is on the node; see
	// [Store].TableNode.
	Poll lua.Poll
}

// keep is Keep in seconds.
func (p *Process) keep() int64 {
	return min(int64((p.Keep+time.Second-1)/time.Second), lua.LongestKept)
}

// Announcement is what a process says of itself: its service, and its policies with their limits.
// It has fingerprints instead of names and numbers. The zero value says nothing: the process counts
// as one of every policy. Make it with [Announce].
type Announcement string

// AnnouncedPolicy is a policy in an [Announcement]. Policies share limits if they have one Name.
type AnnouncedPolicy struct {
	Name   string
	Limits string // all that makes its limits differ from those of another policy of that name

	// Shared is how many eighths of the limits the process wants the processes to share, and Used
	// by how many it uses its shares: 0 to 6.
	Shared, Used int
}

// Announce returns the announcement of a process. No two policies may have one name. With more than
// 512 policies it returns the zero value: a process that left out some would be missing where they
// are counted.
func Announce(service string, policies []AnnouncedPolicy) Announcement {
	if len(policies) > lua.MostPolicies {
		return ""
	}
	var b strings.Builder
	b.Grow(lua.FingerprintDigits + lua.AnnouncedDigits*len(policies))
	b.WriteString(fingerprint(service))
	for _, p := range policies {
		b.WriteString(fingerprint(p.Name))
		b.WriteString(fingerprint(p.Limits))
		b.WriteByte('0' + byte(p.Shared))
		b.WriteByte('0' + byte(p.Used))
	}
	return Announcement(b.String())
}

func fingerprint(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:lua.FingerprintDigits/2])
}

// policies returns the number of policies in a.
func (a Announcement) policies() int { return len(a) / lua.AnnouncedDigits }

// Shares returns how many eighths of the i-th policy's limits the process said that it wants to be
// shared, and by how many it said that it uses its shares.
func (a Announcement) Shares(i int) (shared, used int) {
	if i < 0 || i >= a.policies() {
		return 0, 0
	}
	end := lua.FingerprintDigits + (i+1)*lua.AnnouncedDigits
	return int(a[end-2] - '0'), int(a[end-1] - '0')
}
