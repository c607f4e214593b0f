package stable_test

import (
	"hash/fnv"
	"math/bits"
	"testing"

	"github.com/tiered-limiter/tiered-limiter/sim/internal/stable"
)

func TestHash(t *testing.T) {
	for _, s := range []string{"", "a", "entropy", "process 7, network", "\x00\xff"} {
		h := fnv.New64a()
		h.Write([]byte(s))
		if got := stable.Hash(s); got != h.Sum64() {
			t.Errorf("%q: %x, and package fnv has %x", s, got, h.Sum64())
		}
	}
}

// The first numbers of SplitMix64 from seed 0 are known, and neighbors differ in about half of
// their bits.
func TestMix(t *testing.T) {
	const golden = 0x9e3779b97f4a7c15
	for i, want := range []uint64{0xe220a8397b1dcdaf, 0x6e789e6aa1b965f4, 0x06c45d188009454f} {
		if got := stable.Mix(uint64(i) * golden); got != want {
			t.Errorf("number %d is %x, want %x", i, got, want)
		}
	}
	sum := 0
	for x := range uint64(1000) {
		sum += bits.OnesCount64(stable.Mix(x) ^ stable.Mix(x+1))
	}
	if mean := float64(sum) / 1000; mean < 31 || mean > 33 {
		t.Errorf("neighbors differ in %.1f bits of 64", mean)
	}
}
