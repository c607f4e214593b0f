package remote

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/tiered-limiter/tiered-limiter/lua"
)

// The name of a bucket is
//
//	prefix{policy/key}tb2     the key as the user gave it, any bytes
//	prefix{policy/hash}tb2h   its SHA-256 in hex, for long keys and where HashKeys is set
//	prefix{policy/key}lg1:60000000   other algorithms have other marks, and more that their numbers depend on: see Kind
//
// No two pairs of policy and key share a name. A prefix has no brace and a policy has no slash, so
// the first brace and the first slash end them. The mark at the end tells a hash from a key that
// looks like one. The braces make policy and key the hash tag, so everything that is kept for a
// policy and key, under any mark, is in one slot. A key may contain braces: Redis takes the tag up
// to the first closing brace, which is the same for all names of that key.
//
// The mark is the format of what is stored. Another format has another mark, and so starts new
// buckets beside the old ones during a deploy.
const (
	// hashedMark ends the mark of a name that has a hash for the key.
	hashedMark = "h"

	// presenceMark ends the names of the presence sets, prefix{~0}pr2. A tilde is not legal in a
	// policy's name, so no policy can take these names.
	presenceMark = "}pr2"

	// atOnceMark is the mark of what counts the places of a key.
	atOnceMark = "ao1"

	// tableMark ends the name of the table of standing shares, prefix{~0}st1. It is in the slot of
	// the first presence set, so that one pipeline to one node can have both.
	tableMark = "}st1"

	// inspectedMark begins the end of the names that Inspect uses, prefix{~0}inh1 and
	// prefix{~0}inz1. Nothing stays there.
	inspectedMark = "}in"

	// maxKeyBytes is the length of the longest user key that goes into a name unhashed. With prefix
	// and policy a name then stays under 350 bytes.
	maxKeyBytes = 200

	defaultPrefix  = "tl:"
	maxPrefixBytes = 64
)

// digestPad begins a digest. It makes a digest one byte longer than any key that is kept as it is.
var digestPad = strings.Repeat("\x00", maxKeyBytes+1-sha256.Size)

// Digest returns what a process may keep in place of a key, so that long keys cannot fill its
// memory. A key of up to 200 bytes is returned unchanged. For a longer key it returns 201 bytes
// with the key's SHA-256. [Store].Key gives both the same name. No key of up to 200 bytes is a
// digest, and the digest of a key that looks like a digest is another one.
func Digest(key string) string {
	if len(key) <= maxKeyBytes {
		return key
	}
	sum := sha256.Sum256([]byte(key))
	return digestPad + string(sum[:])
}

// sumOf returns the SHA-256 of a key. The key may be given as its digest.
func sumOf(key string) (sum [sha256.Size]byte) {
	if len(key) == maxKeyBytes+1 && strings.HasPrefix(key, digestPad) {
		copy(sum[:], key[len(digestPad):])
		return sum
	}
	return sha256.Sum256([]byte(key))
}

// Kind is what the stored numbers of a bucket depend on besides its key. It is part of the bucket's
// name, because otherwise two versions of a policy in one deploy would overwrite each other's
// counts. The zero value is the token bucket.
type Kind struct {
	Algorithm lua.Algorithm
	Window    int64 // µs, of a SlidingLog and a FixedWindow; otherwise 0
	Calendar  bool  // of a FixedWindow: its Phase is 0 for every key
	// Unit is that of the calendar by which a FixedWindow counts, such as "month", instead of
	// Window. Where in it the windows begin is not in the name, so counts stay when a billing day
	// moves.
	Unit string
}

// appendMark appends what ends the names of the kind's buckets.
func (k Kind) appendMark(b []byte) []byte {
	b = append(b, k.Algorithm.Mark()...)
	if k.Window > 0 {
		b = strconv.AppendInt(append(b, ':'), k.Window, 10)
	}
	if k.Unit != "" {
		b = append(append(b, ':'), k.Unit...)
	}
	if k.Calendar {
		b = append(b, ":0"...)
	}
	return b
}

// naming gives buckets, presence sets and the table of standing shares their names. The zero value
// has no prefix and hashes long keys only.
type naming struct {
	prefix string
	hash   bool // every key, not only long ones
}

// bucket returns the name for a user's key under a policy. The policy's name must match
// [A-Za-z0-9_.-]{1,64}.
func (n naming) bucket(k Kind, policy, key string) string {
	var room [256]byte
	b, mark := n.appendTag(room[:0], policy, key)
	return string(append(k.appendMark(b), mark...))
}

// places returns the name of what counts the places of a user's key under a policy.
func (n naming) places(policy, key string) string {
	var room [256]byte
	b, mark := n.appendTag(room[:0], policy, key)
	return string(append(append(b, atOnceMark...), mark...))
}

// appendTag appends how names of a user's key under a policy begin, up to the closing brace. mark
// ends the name: hashedMark, or nothing.
func (n naming) appendTag(b []byte, policy, key string) (_ []byte, mark string) {
	b = append(append(append(append(b, n.prefix...), '{'), policy...), '/')
	if !n.hash && len(key) <= maxKeyBytes {
		return append(append(b, key...), '}'), ""
	}
	sum := sumOf(key)
	return append(hex.AppendEncode(b, sum[:]), '}'), hashedMark
}

// presence returns the name of the i-th presence set. There are several, each in a slot of its own,
// so that every node of a Cluster can have one.
func (n naming) presence(i int) string { return n.prefix + "{~" + strconv.Itoa(i) + presenceMark }

// inspected returns the name of what Inspect writes in the slot of the i-th presence set, of a
// kind.
func (n naming) inspected(i int, kind string) string {
	return n.prefix + "{~" + strconv.Itoa(i) + inspectedMark + kind + "1"
}

// table returns the name of the table of standing shares.
func (n naming) table() string { return n.prefix + "{~0" + tableMark }

// checkPrefix reports why a prefix is refused, or nil. The error does not repeat the prefix,
// because it may be a misplaced secret.
func checkPrefix(prefix string) error {
	const rule = "must be up to %d of A-Z a-z 0-9 _ . : -"
	illegal := func(c rune) bool {
		return (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && !strings.ContainsRune("_.:-", c)
	}
	// The whole prefix is not shown. By mistake it may be a URL with a password.
	if i := strings.IndexFunc(prefix, illegal); i >= 0 {
		c, _ := utf8.DecodeRuneInString(prefix[i:])
		return fmt.Errorf("remote: RedisOptions.Prefix has %q at byte %d: "+rule, c, i+1, maxPrefixBytes)
	}
	if len(prefix) > maxPrefixBytes {
		return fmt.Errorf("remote: RedisOptions.Prefix has %d bytes: "+rule, len(prefix), maxPrefixBytes)
	}
	return nil
}
