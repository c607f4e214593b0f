package remote

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// A shard's number is the first whose name lies in the shard's part, as whoever tries them one after the other
// finds it: names never change.
func TestShardNumbers(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		k := Kind{Shards: rapid.IntRange(2, 64).Draw(t, "shards")}
		k.Shard = rapid.IntRange(0, k.Shards-1).Draw(t, "shard")
		policy := rapid.StringMatching(`[A-Za-z0-9_.-]{1,64}`).Draw(t, "policy")
		key := rapid.OneOf(rapid.String(), rapid.StringMatching(`[a{}/]{0,9}`),
			rapid.StringMatching(`k{0,200}`)).Draw(t, "key")
		var want string
		for i := 0; ; i++ {
			want = policy + "/" + strconv.Itoa(k.Shards) + "." + strconv.Itoa(k.Shard) + "." + strconv.Itoa(i)
			tag, _, _ := strings.Cut(want+"/"+key, "}")
			if slotByTheBook("{"+tag+"}")*k.Shards/slots == k.Shard {
				break
			}
		}
		if got := shardOf(k, policy, key); got != want {
			t.Fatalf("%q, want %q", got, want)
		}
	})
}

var sink string

// BenchmarkShardName names one shard after another of key after key: the tries differ from name to name.
func BenchmarkShardName(b *testing.B) {
	keys := make([]string, 1000)
	for i := range keys {
		keys[i] = fmt.Sprintf("user-%08d", i*7919)
	}
	for _, k := range []int{0, 4, 64} {
		b.Run(fmt.Sprint(k), func(b *testing.B) {
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				sink = naming{prefix: "tl:"}.bucket(Kind{Shards: k, Shard: i % max(k, 1)}, "api", keys[i%len(keys)])
			}
		})
	}
}
