package remote

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"strconv"
	"strings"

	"github.com/tiered-limiter/tiered-limiter/lua"
)

// The name of a bucket is
//
//	prefix{policy/key}tb1     the key as the user gave it, any bytes
//	prefix{policy/hash}tb1h   its SHA-256 in hex, for long keys and where HashKeys is set
//	prefix{policy/key}lg1:60000000   other algorithms have other marks, with what else their numbers depend on: see Kind
//	prefix{policy/4.2.11/key}tb1s    the third of a key's four shards: see shardOf
//
// No two pairs of policy and key share a name: a prefix has no brace and a policy no slash, so the first of each ends
// them; the mark at the end tells a hash from a key that looks like one. The braces make a hash tag of all that tells
// buckets apart and of nothing else, so whatever is kept for a policy and key, under any mark, lives in one slot. A key
// may hold braces: Redis takes the tag up to the first closing one, the same for all names of that key.
//
// Shards are to have slots of their own, so they stand in the tag, before the key, which may end it. The mark tells the shard
// of a key from a key that begins so. How many there are is in the name: a version of the policy with another number has other
// buckets, and takes none of these for parts of its limit.
//
// The mark is the format of what is stored. Another format has another mark and so starts new buckets, beside the old
// ones, while a deploy rolls on.
const (
	// hashedMark ends the mark of a name that has a hash for the key.
	hashedMark = "h"

	// shardMark follows the mark of a shard's format.
	shardMark = "s"

	// presenceMark ends the names of the presence sets, prefix{~0}pr1. A tilde is not legal in a policy's name, so no
	// policy can take these names.
	presenceMark = "}pr1"

	// longestKey is the most bytes of a user's key that go into a name unhashed; with prefix and policy a name then
	// stays under 350 bytes.
	longestKey = 200

	defaultPrefix = "tl:"
	longestPrefix = 64
)

// digestPad begins a digest, which is so one byte longer than any key that is kept as it is.
var digestPad = strings.Repeat("\x00", longestKey+1-sha256.Size)

// Digest returns what a process may keep in place of a key, so that long keys cannot fill its memory: a key of up to 200
// bytes itself, and of a longer one 201 bytes with its SHA-256. [Store].Key gives both the same name. No key of up to 200
// bytes is a digest, and the digest of one that looks like it is another.
func Digest(key string) string {
	if len(key) <= longestKey {
		return key
	}
	sum := sha256.Sum256([]byte(key))
	return digestPad + string(sum[:])
}

// sumOf is the SHA-256 of a key, which may be given as its digest.
func sumOf(key string) (sum [sha256.Size]byte) {
	if len(key) == longestKey+1 && strings.HasPrefix(key, digestPad) {
		copy(sum[:], key[len(digestPad):])
		return sum
	}
	return sha256.Sum256([]byte(key))
}

// Kind is what the stored numbers of a bucket depend on besides its key, and so a part of its name: two versions of a
// policy in one deploy would else forget each other's counts. The zero value is the token bucket.
type Kind struct {
	Algorithm lua.Algorithm
	Window    int64 // µs, of a SlidingLog and a FixedWindow; else 0
	Calendar  bool  // of a FixedWindow: its Phase is 0 for every key

	Shards, Shard int // of a key that is split into several buckets: how many, ≥ 2, and which, from 0; else 0 and 0
}

// mark ends the names of the kind's buckets.
func (k Kind) mark() string {
	mark := k.Algorithm.Mark()
	if k.Window > 0 {
		mark += ":" + strconv.FormatInt(k.Window, 10)
	}
	if k.Calendar {
		mark += ":0"
	}
	if k.Shards > 0 {
		mark += shardMark
	}
	return mark
}

// naming gives buckets and presence sets their names. Its zero value has no prefix and hashes long keys only.
type naming struct {
	prefix string
	hash   bool // every key, not only long ones
}

// bucket reports the name for a user's key under a policy, whose name must be [A-Za-z0-9_.-]{1,64}.
func (n naming) bucket(k Kind, policy, key string) string {
	mark := k.mark()
	if n.hash || len(key) > longestKey {
		sum := sumOf(key)
		key, mark = hex.EncodeToString(sum[:]), mark+hashedMark
	}
	if k.Shards > 0 {
		policy = shardOf(k, policy, key)
	}
	return n.prefix + "{" + policy + "/" + key + "}" + mark
}

// presence reports the name of the i-th presence set. Several exist so that every node of a cluster can have one: each
// has a slot of its own.
func (n naming) presence(i int) string { return n.prefix + "{~" + strconv.Itoa(i) + presenceMark }

// checkPrefix reports why a prefix is refused, or nil. It does not repeat it: a secret may have gone astray.
func checkPrefix(prefix string) error {
	for i := range len(prefix) {
		switch c := prefix[i]; {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9':
		case c == '_', c == '.', c == ':', c == '-':
		default:
			return errPrefix
		}
	}
	if len(prefix) > longestPrefix {
		return errPrefix
	}
	return nil
}

var errPrefix = errors.New("remote: RedisOptions.Prefix has a character outside [A-Za-z0-9_.:-], or more than 64 of them")
