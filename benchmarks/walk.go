package benchmarks

import (
	"fmt"
	"math/rand/v2"
	"strings"
)

const (
	// hotCopies is the number of copies of a hot key that are used in turn. A service takes its keys from requests,
	// so they are never the string that the limiter holds. Comparing a string with itself would cost nothing.
	hotCopies = 16

	// steps is the length of a walk over many keys. With 16 goroutines each of 100 000 keys comes five times.
	steps = 1 << 15
)

// walk is the cyclic list of keys that one goroutine uses. The bytes of the keys lie in the same order in memory,
// so that the limiter's cache misses are measured and not those of the list.
type walk struct {
	keys []string // a power of two
	ids  []int    // of keys
	next int
	made int // steps ever made, counted up to len(keys)
}

// newWalk draws a walk over the keys 0 … n-1. The same seed gives the same walk.
func newWalk(n int, seed uint64) *walk {
	w := &walk{}
	if n == 1 {
		for range hotCopies {
			w.keys, w.ids = append(w.keys, strings.Clone(keyOf(0))), append(w.ids, 0)
		}
		return w
	}
	random := rand.New(rand.NewPCG(seed, 1))
	w.ids = make([]int, steps)
	for i := range w.ids {
		w.ids[i] = random.IntN(n)
	}
	w.lay()
	return w
}

// tour returns a walk that visits each of the keys from … to-1 once.
func tour(from, to int) *walk {
	w := &walk{}
	for i := from; i < to; i++ {
		w.ids = append(w.ids, i)
	}
	w.lay()
	return w
}

// lay writes the keys one behind the other in memory.
func (w *walk) lay() {
	var text strings.Builder
	for _, id := range w.ids {
		text.WriteString(keyOf(id))
	}
	all := text.String()
	w.keys = make([]string, len(w.ids))
	for i := range w.keys {
		w.keys[i] = all[i*keySize : (i+1)*keySize]
	}
}

// keySize is the length of a key in bytes.
const keySize = 16

func keyOf(id int) string { return fmt.Sprintf("user:%0*d", keySize-len("user:"), id) }

// distinct counts the different keys that the walks have visited.
func distinct(walks []*walk, n int) (found int) {
	seen := make([]bool, n)
	for _, w := range walks {
		for _, id := range w.ids[:w.made] {
			if !seen[id] {
				seen[id] = true
				found++
			}
		}
	}
	return found
}
