package local

// ID names a bucket in a process: the number of its policy and the user's key.
type ID struct {
	Policy int
	Key    string
}

// Hash is the same in every process. It is FNV-1a that starts from a salt, spread over all bits by
// the last step of SplitMix64 (Steele, Lea, Flood 2014).
func Hash(salt uint64, id ID) uint64 {
	h := salt ^ uint64(id.Policy)*0x9e3779b97f4a7c15
	for i := range len(id.Key) {
		h = (h ^ uint64(id.Key[i])) * 0x100000001b3
	}
	h = (h ^ h>>30) * 0xbf58476d1ce4e5b9
	h = (h ^ h>>27) * 0x94d049bb133111eb
	return h ^ h>>31
}

// Phase returns where the fixed windows of a key begin that have a length of their own, in µs as
// the length. It is the same in every process.
func Phase(key string, period int64) int64 {
	const basis = 0xcbf29ce484222325 // of FNV
	return int64(Hash(basis, ID{Key: key}) % uint64(period))
}
