package remote_test

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"
	"testing"
	"unicode"

	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/redistest"
	"github.com/tiered-limiter/tiered-limiter/lua"
	"github.com/tiered-limiter/tiered-limiter/remote"
)

// What is said of names in public.
const (
	maxKeyBytes    = 200
	defaultPrefix  = "tl:"
	maxPrefixBytes = 64
)

func TestBucketNames(t *testing.T) {
	long := strings.Repeat("k", maxKeyBytes+1)
	for _, test := range []struct {
		names             remote.Naming
		policy, key, want string
	}{
		{remote.NewNaming("", false), "api", "alice", "{api/alice}tb2"},
		{remote.NewNaming("tl:", false), "api", "alice", "tl:{api/alice}tb2"},
		{remote.NewNaming("tl:", false), "api", "", "tl:{api/}tb2"},
		{remote.NewNaming("tl:", false), "api", "a}b{c/d\x00\xff", "tl:{api/a}b{c/d\x00\xff}tb2"},
		{remote.NewNaming("tl:", false), "api", long[1:], "tl:{api/" + long[1:] + "}tb2"},
		// printf alice | sha256sum
		{
			remote.NewNaming("tl:", true),
			"api", "alice",
			"tl:{api/2bd806c97f0e00af1a1fc3328fa763a9269723c8db8fac4f93af71db186d6e90}tb2h",
		},
	} {
		if got := test.names.Bucket(remote.Kind{}, test.policy, test.key); got != test.want {
			t.Errorf("%+v: bucket(%q, %q) = %q, want %q", test.names, test.policy, test.key, got, test.want)
		}
	}
	plain, hashed := remote.NewNaming("", false).Bucket(remote.Kind{}, "p", long), remote.NewNaming("",
		true).Bucket(remote.Kind{}, "p", long)
	if plain != hashed || len(plain) != len("{p/}tb2h")+64 {
		t.Errorf("a long key is named %q, with HashKeys %q", plain, hashed)
	}
	if got := remote.NewNaming("tl:", false).Presence(7); got != "tl:{~7}pr2" {
		t.Errorf("presence(7) = %q", got)
	}
	names := remote.NewNaming("tl:", false)
	if got := names.Table(); got != "tl:{~0}st1" || remote.SlotOf(got) != remote.SlotOf(names.Presence(0)) {
		t.Errorf("table() = %q, in slot %d, want that of the first presence set, %d", got, remote.SlotOf(got),
			remote.SlotOf(names.Presence(0)))
	}
}

// No two kinds and keys share a name, also if a key looks like a hash or like the end of a name.
func TestNamesAreDifferent(t *testing.T) {
	long := strings.Repeat("k", maxKeyBytes+1)
	seen := map[string]string{}
	for _, key := range []string{"", "a", "}", "{}", "/", "a}tb2", "a}tb2h", long, hex.EncodeToString(make([]byte, 32))} {
		for _, kind := range []remote.Kind{
			{},
			{Algorithm: lua.TokenBuckets},
			{Algorithm: lua.SlidingLog, Window: 6},
			{Algorithm: lua.FixedWindow, Window: 6},
			{Algorithm: lua.FixedWindow, Window: 6, Calendar: true},
		} {
			for _, hash := range []bool{false, true} {
				name := remote.NewNaming("tl:", hash).Bucket(kind, "api", key)
				if again := remote.NewNaming("tl:", hash).Bucket(kind, "api", remote.Digest(key)); again != name {
					t.Errorf("%q, and by the digest %q", name, again)
				}
				is := fmt.Sprintf("%+v of %.10q", kind, key)
				if other, ok := seen[name]; ok && other != is { // a long key is hashed in any case
					t.Errorf("%s and %s share %q", is, other, name)
				}
				seen[name] = is
			}
		}
	}
}

func TestPrefixes(t *testing.T) {
	for prefix, ok := range map[string]bool{
		"": true, "tl:": true, "A-z_0.9:": true, strings.Repeat("x", 64): true,
		strings.Repeat("x", 65): false, "a{b": false, "a}b": false, "a/b": false, "a b": false, "é": false,
		"\x00": false,
	} {
		err := remote.CheckPrefix(prefix)
		if (err == nil) != ok {
			t.Errorf("checkPrefix(%q) = %v", prefix, err)
		}
	}
}

// legal makes any text a policy's name or a prefix, by putting an underscore for what may not be in
// one.
func legal(s, more string, most int) string {
	s = strings.Map(func(r rune) rune {
		if r < 128 && (unicode.IsLetter(r) || unicode.IsDigit(r)) || strings.ContainsRune("_.-"+more, r) {
			return r
		}
		return '_'
	}, s)
	return s[:min(len(s), most)]
}

// FuzzBucketNames: of any two buckets, by any two stores, the names are the same exactly if prefix,
// policy and key are and both hash the key or neither does; and each name keeps the rules that a
// name has.
func FuzzBucketNames(f *testing.F) {
	long := strings.Repeat("k", maxKeyBytes+1)
	digest := hex.EncodeToString(sha256.New().Sum(nil))
	f.Add("api", "alice", "", false, "api", "bob", "", false)
	f.Add("api", "alice", "tl:", true, "api", "alice", "", true)
	f.Add("a", "b/c", "x", false, "a/b", "c", "x", false) // in a policy's name there is no slash, so here they differ
	f.Add("a.b", "c", "", false, "a", "b.c", "", false)
	f.Add("a", "c", "p", false, "pa", "c", "", false)
	f.Add("a", "c", "p{a/c}tb2", false, "a", "c", "p", false)
	f.Add("a", "}tb2", "", false, "a", "", "", false)
	f.Add("a", "x}tb2", "", false, "a", "x", "", false)
	f.Add("a", "x}tb2h", "", false, "a", "x", "", true)
	f.Add("a", "x", "", true, "a", "x", "", false)
	f.Add("a", "{}", "", false, "a", "}", "", false)
	f.Add("a", "x}{a/y", "", false, "a", "x", "", false)
	f.Add("a", "", "", true, "a", digest, "", false) // the text of a hash is a key as good as any
	f.Add("a", "\x00", "", false, "a", "\xff{", "", false)
	f.Add("a", "a\u0301", "", false, "a", "\u00e1", "", false) // the same letter in other bytes
	f.Add("a", long, "", false, "a", long[1:], "", false)
	f.Add("a", long, "", false, "a", long, "", true)
	f.Add("a", long+"1", "", false, "a", long+"2", "", false)
	f.Add(strings.Repeat("p", 64), long[1:], strings.Repeat("x:", 32), false, "~0", "}pr2", "", false)
	f.Add("~0", "}st1", "", false, "~0", "st1", "", false)
	f.Fuzz(func(t *testing.T, policy, key, prefix string, hash bool, policy2, key2, prefix2 string, hash2 bool) {
		one := newNamed(t, policy, key, prefix, hash)
		two := newNamed(t, policy2, key2, prefix2, hash2)
		if (one == two) != (one.name == two.name) {
			t.Fatalf("%+v and %+v", one, two)
		}
		if again := newNamed(t, policy, key, prefix, hash); again != one {
			t.Fatalf("%+v, then %+v", one, again)
		}
		// Slots of any text at all, with and without braces.
		for _, s := range []string{policy, key, prefix + key2, policy2 + "{" + key + "}" + key2} {
			if got, want := remote.SlotOf(s), slotByTheBook(s); got != want {
				t.Fatalf("slotOf(%q) = %d, want %d", s, got, want)
			}
		}
	})
}

// named is a bucket's name, and all that should decide about it.
type named struct {
	prefix, policy, key string
	hashed              bool
	name                string
}

// newNamed names a bucket, with policy and prefix made legal, and checks the name by itself.
func newNamed(t *testing.T, policy, key, prefix string, hash bool) named {
	t.Helper()
	n := named{prefix: legal(prefix, ":", maxPrefixBytes), policy: legal(policy, "", 64), key: key, hashed: hash ||
		len(key) > maxKeyBytes}
	if n.policy == "" {
		n.policy = "p"
	}
	if err := remote.CheckPrefix(n.prefix); err != nil {
		t.Fatalf("%q: %v", n.prefix, err)
	}
	n.name = remote.NewRedis(nil, &remote.RedisOptions{Prefix: n.prefix, HashKeys: hash}).Key(n.policy, key)
	if n.prefix == "" {
		n.prefix = defaultPrefix
		if plain := remote.NewMemory().Key(n.policy, key); !hash && n.name != defaultPrefix+plain {
			t.Fatalf("%q in Redis, %q in Memory", n.name, plain)
		}
	}

	rest, ok := strings.CutPrefix(n.name, n.prefix+"{"+n.policy+"/")
	if !ok || len(n.name) > 350 {
		t.Fatalf("%+v: %d bytes", n, len(n.name))
	}
	if n.hashed {
		digest, mark := rest[:min(64, len(rest))], rest[min(64, len(rest)):]
		if _, err := hex.DecodeString(digest); err != nil || len(digest) != 64 || mark != "}"+
			lua.TokenBucket.Mark()+"h" {
			t.Fatalf("%+v", n)
		}
	} else if rest != key+"}"+lua.TokenBucket.Mark() {
		t.Fatalf("%+v", n)
	}

	// Whatever else is kept for this policy and key, under other marks and prefixes, is in the same
	// slot.
	slot := remote.SlotOf(n.name)
	tagged := strings.TrimSuffix(strings.TrimSuffix(strings.TrimPrefix(n.name, n.prefix), "h"), "tb2")
	for _, sibling := range []string{tagged, tagged + "win1", "other:" + tagged + "}{x}"} {
		if got := remote.SlotOf(sibling); got != slot || got < 0 || got >= 16384 {
			t.Fatalf("%q is in slot %d, %q in %d", n.name, slot, sibling, got)
		}
	}
	if want := slotByTheBook(n.name); slot != want {
		t.Fatalf("%q is in slot %d, want %d", n.name, slot, want)
	}
	if n.name == remote.NewNaming(n.prefix, false).Table() {
		t.Fatalf("%q is the table's", n.name)
	}
	for i := range 3 { // presence sets have names that no policy can take
		if n.name == remote.NewNaming(n.prefix, false).Presence(i) {
			t.Fatalf("%q is a presence set's", n.name)
		}
	}
	return n
}

// slotByTheBook is CLUSTER KEYSLOT as the Redis Cluster Specification words it ("Hash tags", and
// appendix A for the CRC), bit by bit and without a table.
func slotByTheBook(key string) int {
	tag := key
	if _, after, found := strings.Cut(key, "{"); found {
		if inside, _, closed := strings.Cut(after, "}"); closed && inside != "" {
			tag = inside
		}
	}
	crc := 0
	for _, b := range []byte(tag) {
		for bit := 7; bit >= 0; bit-- {
			in := int(b)>>bit&1 ^ crc>>15
			crc = crc << 1 & 0xffff
			if in == 1 {
				crc ^= 0x1021
			}
		}
	}
	return crc % 16384
}

func TestSlotsAreThoseOfRedis(t *testing.T) {
	client := redistest.Start(t, "--cluster-enabled", "yes").Client()
	keys := []string{
		"a", "123456789", "{", "}", "{}", "{}a", "a{}b{c}", "{a", "a}", "{{a}}", "}{a}", "a{b}c{d}", "\x00", "{\x00}x",
		"foo{{bar}}zap", "foo{}{bar}", "\xff\xfe{\xfd}", strings.Repeat("long", 100),
	}
	names := remote.NewNaming("tl:", false)
	for i := range 200 {
		keys = append(keys, names.Presence(i), names.Bucket(remote.Kind{}, "p", strings.Repeat("}{/", i%7)+string(rune(i))))
	}
	for _, key := range keys {
		want, err := client.ClusterKeySlot(t.Context(), key).Result()
		if err != nil {
			t.Fatal(err)
		}
		if got := remote.SlotOf(key); int64(got) != want {
			t.Errorf("slotOf(%q) = %d, Redis says %d", key, got, want)
		}
		if got := slotByTheBook(key); int64(got) != want {
			t.Errorf("slotByTheBook(%q) = %d, Redis says %d", key, got, want)
		}
	}
}

// A node of a Cluster that has sixteen slots side by side is found by one of these names.
func TestEverySixteenth(t *testing.T) {
	if n := len(remote.SampleNames()); n != 16384/16 {
		t.Fatalf("%d names", n)
	}
	for i, name := range remote.SampleNames() {
		if got := slotByTheBook(name); got != 16*i {
			t.Errorf("%q is in slot %d, want %d", name, got, 16*i)
		}
	}
}

// A process keeps the digests of long keys, and the store gives them the names of the keys: so that
// who looks for a key's bucket in Redis finds the one that the limiter uses. What only looks like a
// digest is another key.
func TestDigest(t *testing.T) {
	long := strings.Repeat("k", maxKeyBytes+1)
	for _, names := range []remote.Naming{remote.NewNaming("", false), remote.NewNaming("", true)} {
		seen := map[string]string{}
		for _, key := range []string{
			"", "a", long[1:], long, long + long, remote.Digest(long)[1:],
			"\x00" + remote.Digest(long),
		} {
			kept := remote.Digest(key)
			if (kept == key) != (len(key) <= maxKeyBytes) || len(kept) > maxKeyBytes+1 {
				t.Errorf("%.20q… is kept as %q", key, kept)
			}
			name := names.Bucket(remote.Kind{}, "api", key)
			if of := names.Bucket(remote.Kind{}, "api", kept); of != name {
				t.Errorf("%.20q…: the key's bucket is %q, its digest's %q", key, name, of)
			}
			if other, ok := seen[name]; ok {
				t.Errorf("%.20q… and %.20q… share %q", key, other, name)
			}
			seen[name] = key
		}
	}
	// What a client sends who knows somebody's long key: as a process keeps it, it is not that
	// one's.
	if forged := remote.Digest(long); remote.Digest(forged) == forged ||
		remote.NewNaming("", false).Bucket(remote.Kind{}, "api", remote.Digest(forged)) == remote.NewNaming("",
			false).Bucket(remote.Kind{}, "api", long) {
		t.Error("a digest that was sent as a key passes for the key")
	}
}
