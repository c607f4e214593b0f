// Package stable has hashes that are the same in every run and in every process: what is random in
// a simulation follows from them.
package stable

// Hash is FNV-1a.
func Hash(s string) uint64 {
	h := uint64(0xcbf29ce484222325)
	for i := range len(s) {
		h = (h ^ uint64(s[i])) * 0x100000001b3
	}
	return h
}

// Mix is the output function of SplitMix64 (Steele, Lea, Flood 2014): each bit of x moves about
// half of the result's, so that neighbors become strangers.
func Mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
