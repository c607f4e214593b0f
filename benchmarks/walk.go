package benchmarks

import (
	"fmt"
	"math/rand/v2"
	"strings"
)

const (
	// hotCopies is the number of copies of a hot key that are used in turn. A service takes its
	// keys from requests, so they are never the string that the limiter holds. Comparing a string
	// with itself would cost nothing.
	hotCopies = 16

	// steps is the length of a walk over many keys. With 16 goroutines each of 100 000 keys comes
	// five times.
	steps = 1 << 15
)

// walk is the cyclic list of keys that one goroutine uses. The bytes of the keys lie in the same
// order in memory, so that the limiter's cache misses are measured and not those of the list.
type walk struct {
	keys []string
	ids  []int // of keys
	next int
	made int // steps ever made, counted up to len(keys)
}

// newWalks draws a walk over the keys 0 … n-1 for each goroutine.
func newWalks(n int) (all []*walk) {
	for i := range mostGoroutines {
		all = append(all, newWalk(n, uint64(i)))
	}
	return all
}

// newWalk draws a walk over the keys 0 … n-1. The same seed gives the same walk.
func newWalk(n int, seed uint64) *walk {
	length := steps
	if n == 1 {
		length = hotCopies
	}
	random := rand.New(rand.NewPCG(seed, 1))
	ids := make([]int, length)
	for i := range ids {
		ids[i] = random.IntN(n)
	}
	return walkOf(ids)
}

// tours returns a walk for each goroutine. Together they visit each of the keys from … to-1 once.
func tours(from, to int) (all []*walk) {
	for i := range mostGoroutines {
		all = append(all, tour(from+(to-from)*i/mostGoroutines, from+(to-from)*(i+1)/mostGoroutines))
	}
	return all
}

// tour returns a walk that visits each of the keys from … to-1 once.
func tour(from, to int) *walk {
	var ids []int
	for i := from; i < to; i++ {
		ids = append(ids, i)
	}
	return walkOf(ids)
}

// walkOf writes the keys one behind the other in memory.
func walkOf(ids []int) *walk {
	var text strings.Builder
	for _, id := range ids {
		text.WriteString(keyOf(id))
	}
	w := &walk{ids: ids}
	for i := range ids {
		w.keys = append(w.keys, text.String()[i*keySize:(i+1)*keySize])
	}
	return w
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
