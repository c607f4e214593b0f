package remote

import (
	"strings"
	"testing"

	"github.com/tiered-limiter/tiered-limiter/internal/redistest"
)

func TestBucketNames(t *testing.T) {
	long := strings.Repeat("k", longestKey+1)
	for _, test := range []struct {
		names             naming
		policy, key, want string
	}{
		{naming{}, "api", "alice", "{api/alice}tb1"},
		{naming{prefix: "tl:"}, "api", "alice", "tl:{api/alice}tb1"},
		{naming{prefix: "tl:"}, "api", "", "tl:{api/}tb1"},
		{naming{prefix: "tl:"}, "api", "a}b{c/d\x00\xff", "tl:{api/a}b{c/d\x00\xff}tb1"},
		{naming{prefix: "tl:"}, "api", long[1:], "tl:{api/" + long[1:] + "}tb1"},
		// printf alice | sha256sum
		{
			naming{prefix: "tl:", hash: true}, "api", "alice",
			"tl:{api/2bd806c97f0e00af1a1fc3328fa763a9269723c8db8fac4f93af71db186d6e90}tb1h",
		},
	} {
		if got := test.names.bucket(test.policy, test.key); got != test.want {
			t.Errorf("%+v: bucket(%q, %q) = %q, want %q", test.names, test.policy, test.key, got, test.want)
		}
	}
	plain, hashed := naming{}.bucket("p", long), naming{hash: true}.bucket("p", long)
	if plain != hashed || len(plain) != len("{p/}tb1h")+64 {
		t.Errorf("a long key is named %q, with HashKeys %q", plain, hashed)
	}
	if got := (naming{prefix: "tl:"}).presence(7); got != "tl:{~7}pr1" {
		t.Errorf("presence(7) = %q", got)
	}
}

func TestPrefixes(t *testing.T) {
	for prefix, ok := range map[string]bool{
		"": true, "tl:": true, "A-z_0.9:": true, strings.Repeat("x", 64): true,
		strings.Repeat("x", 65): false, "a{b": false, "a}b": false, "a/b": false, "a b": false, "é": false, "\x00": false,
	} {
		err := checkPrefix(prefix)
		if (err == nil) != ok {
			t.Errorf("checkPrefix(%q) = %v", prefix, err)
		}
	}
}

// legalPolicy makes any text a policy name, injectively enough for a fuzzer.
func legalPolicy(s string) string {
	legal := func(r rune) rune {
		if strings.ContainsRune("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-", r) {
			return r
		}
		return '_'
	}
	s = strings.Map(legal, s)
	return ("p" + s)[:min(len(s)+1, 64)]
}

// FuzzBucketNames: different pairs have different names, a name ends neither like a presence set's, and all names of a
// pair are in one slot.
func FuzzBucketNames(f *testing.F) {
	f.Add("api", "alice", "api", "bob", false)
	f.Add("a", "b/c", "a.b", "c", false)
	f.Add("a", "}tb1", "a", "", false)
	f.Add("a", "x}tb1h", "a", "x", true)
	f.Add("a", "{}", "a", "}", false)
	f.Add("a", "\x00", "a", "\xff{", false)
	f.Add("a", strings.Repeat("k", 201), "a", strings.Repeat("k", 200), false)
	f.Fuzz(func(t *testing.T, policy, key, otherPolicy, otherKey string, hash bool) {
		policy, otherPolicy = legalPolicy(policy), legalPolicy(otherPolicy)
		names := naming{prefix: "tl:", hash: hash}
		name, other := names.bucket(policy, key), names.bucket(otherPolicy, otherKey)
		if same := policy == otherPolicy && key == otherKey; same != (name == other) {
			t.Fatalf("%q %q → %q; %q %q → %q", policy, key, name, otherPolicy, otherKey, other)
		}
		if (naming{prefix: "tl:", hash: !hash}).bucket(policy, key) == other && (policy != otherPolicy || key != otherKey) {
			t.Fatalf("%q %q hashed is %q %q unhashed", policy, key, otherPolicy, otherKey)
		}
		slot := slotOf(name)
		if slot < 0 || slot >= slots {
			t.Fatalf("slot %d", slot)
		}
		anyMark := strings.TrimSuffix(strings.TrimSuffix(name, "h"), "tb1") + "other"
		if slotOf(anyMark) != slot || slotOf("another:"+strings.TrimPrefix(name, "tl:")) != slot {
			t.Fatalf("the slot of %q depends on its mark or prefix", name)
		}
		if strings.HasPrefix(name, "tl:{~") {
			t.Fatalf("%q is a presence set's", name)
		}
	})
}

func TestSlotsAreThoseOfRedis(t *testing.T) {
	client := redistest.Start(t, "--cluster-enabled", "yes").Client()
	keys := []string{
		"a", "123456789", "{", "}", "{}", "{}a", "a{}b{c}", "{a", "a}", "{{a}}", "}{a}", "a{b}c{d}", "\x00", "{\x00}x",
		"foo{{bar}}zap", "foo{}{bar}", "\xff\xfe{\xfd}", strings.Repeat("long", 100),
	}
	names := naming{prefix: "tl:"}
	for i := range 200 {
		keys = append(keys, names.presence(i), names.bucket("p", strings.Repeat("}{/", i%7)+string(rune(i))))
	}
	for _, key := range keys {
		want, err := client.ClusterKeySlot(t.Context(), key).Result()
		if err != nil {
			t.Fatal(err)
		}
		if got := slotOf(key); int64(got) != want {
			t.Errorf("slotOf(%q) = %d, Redis says %d", key, got, want)
		}
	}
}
