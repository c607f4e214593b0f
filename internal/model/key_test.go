package model

import (
	"fmt"
	"testing"

	"github.com/tiered-limiter/tiered-limiter/lua"
)

const second = 1_000_000

// take takes n tokens of ten, refilled at one per second.
func take(t *testing.T, k *Keys, clock int64, bucket string, n int64) (r lua.Reply) {
	t.Helper()
	c := lua.Call{Bucket: bucket, Cap: 10, Tokens: 1, Period: second, TTL: second, Fleet: 1, Want: n, Min: n}
	if err := k.Run(clock, &c, &r); err != nil {
		t.Fatal(err)
	}
	return r
}

// inMemory counts the keys, ended ones included, and checks that each is in its place.
func inMemory(t *testing.T, k *Keys) int {
	t.Helper()
	if len(k.ring) != len(k.byName) {
		t.Fatal("ring and map differ")
	}
	for i, b := range k.ring {
		if b.index != i || k.byName[b.name] != b {
			t.Fatalf("%s is out of its place", b.name)
		}
	}
	return len(k.ring)
}

// TestEndedKeysAreNew asks for many buckets whose time is over: collected or not yet, all are new.
func TestEndedKeysAreNew(t *testing.T) {
	var k Keys
	for round := range int64(3) {
		clock := 1 + round*6_001_000 // 5 s to refill, 1 s of margin
		for i := range 100 {
			if r := take(t, &k, clock, fmt.Sprint(i), 5); r.Flags != lua.Created || r.Level != 5 {
				t.Errorf("round %d, bucket %d: %+v", round, i, r)
			}
		}
	}
}

// TestKeysAreBounded runs a minute of keys that are used once, a thousand per second. Each lives 2
// s (1 to refill, 1 of margin), so 2000 are alive at a time. What is over is collected by the calls
// that follow.
func TestKeysAreBounded(t *testing.T) {
	var k Keys
	most, clock := 0, int64(1)
	for i := range 60_000 {
		take(t, &k, clock, fmt.Sprint(i), 1)
		if clock += 1000; i%1000 == 0 {
			most = max(most, inMemory(t, &k))
		}
	}
	if most > 4100 { // alive, and those that died since the hand last passed
		t.Errorf("%d keys in memory, 2000 are alive", most)
	}
	clock += 3600 * second
	for range most { // denied and granted alike
		take(t, &k, clock, "one", 1)
	}
	if n := inMemory(t, &k); n > 1 {
		t.Errorf("%d keys in memory an hour later", n)
	}
}
