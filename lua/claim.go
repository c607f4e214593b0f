package lua

// Claim is what one call of [AtOnce] says of one key: how many of its places a process has, and how
// many more it asks for.
type Claim struct {
	Bucket string // the name of the key's hash
	Places int64  // of the key, 1 … MostPlaces
	Seq    int64  // higher with every call of a process; 0 only looks
	Hold   int64  // places that the process has until it accepts the reply, 0 … 2⁵⁰
	Want   int64  // places that it asks for, ≤ MostPlaces
	Need   int64  // 1 … Want if it wants some: fewer are not granted
	Life   int64  // µs for which a silent process counts, 1 … 2⁵⁰
	Since  int64  // server time in the last accepted reply, µs; 0 unknown
	Wait   int64  // µs for which it waits from now on, if it gets none
}

// Claims are the claims of one process that go to one node together.
type Claims struct {
	Process string // its id
	Now     int64  // 0 reads the node's clock; anything else is for tests and simulation
	Each    []Claim
}

// ClaimReply is the script's answer to a [Claim].
type ClaimReply struct {
	Code  ClaimCode
	Grant int64 // further places, once the reply is accepted: 0, or Need … Want
	Held  int64 // places of all processes after the call
	Share int64 // what the process should have at most; Places if no other waits with less
	Flags ClaimFlags
	Now   int64 // the node's clock, µs since 1970
}

// ClaimCode says what a [Claim] came to.
type ClaimCode int64

// The codes of a claim. Only ClaimDone wrote something.
const (
	ClaimDone    ClaimCode = 0
	ClaimStale   ClaimCode = 3 // this Seq or a higher one was executed: ignore the reply
	ClaimForeign ClaimCode = 4 // the key is not a hash of this script
	ClaimDamaged ClaimCode = 5
)

// ClaimFlags are what else a [Claim] found.
type ClaimFlags int64

// The flags of a claim, added up.
const (
	PlacesLost      ClaimFlags = 1 // places went to others since the process' record ended
	DifferentPlaces ClaimFlags = 2 // others have another number of places for this key
)

const (
	// MostPlaces is the largest number of places of a key.
	MostPlaces = 1 << 20

	// claimArguments and claimNumbers are the numbers of a claim and of its reply.
	claimArguments, claimNumbers = 8, 6
)

// Arguments appends ARGV of the claims of some indices to args: the process' id as a string, and
// whole numbers as int64.
func (c *Claims) Arguments(args []any, some []int) []any {
	args = append(args, c.Process, c.Now)
	for _, i := range some {
		k := &c.Each[i]
		args = append(args, k.Places, k.Seq, k.Hold, k.Want, k.Need, k.Life, k.Since, k.Wait)
	}
	return args
}

// Broken returns the number of the first argument that the script refuses, or 0.
func (c *Claims) Broken() int {
	if c.Process == "" {
		return 1
	}
	if n := outside(2, c.Now); n > 0 {
		return n
	}
	for i := range c.Each {
		k := &c.Each[i]
		if n := outside(3+claimArguments*i, k.Places, k.Seq, k.Hold, k.Want, k.Need, k.Life, k.Since, k.Wait); n > 0 {
			return n
		}
	}
	for i := range c.Each {
		k, first := &c.Each[i], 3+claimArguments*i
		switch {
		case k.Places < 1 || k.Places > MostPlaces:
			return first
		case k.Hold > LongestLease:
			return first + 2
		case k.Want > MostPlaces || k.Seq == 0 && k.Want > 0:
			return first + 3
		case k.Need > k.Want || k.Want > 0 && k.Need < 1:
			return first + 4
		case k.Life < 1 || k.Life > LongestLease:
			return first + 5
		case k.Wait > LongestLease:
			return first + 7
		}
	}
	return 0
}

// DecodeClaims reads the reply of [AtOnce] to the claims of some indices, as go-redis returns it,
// and gives each its own. It reports false for anything that cannot be the answer: a grant of more
// than was wanted would be used.
func (c *Claims) DecodeClaims(val any, some []int, give func(i int, r ClaimReply)) bool {
	n := make([]int64, claimNumbers*len(some))
	if !DecodeNumbers(val, n) {
		return false
	}
	all := make([]ClaimReply, len(some))
	for i := range all {
		p := n[claimNumbers*i:]
		all[i] = ClaimReply{Code: ClaimCode(p[0]), Grant: p[1], Held: p[2], Share: p[3], Flags: ClaimFlags(p[4]), Now: p[5]}
		if !all[i].Answers(&c.Each[some[i]]) {
			return false
		}
	}
	for i, r := range all {
		give(some[i], r)
	}
	return true
}

// Answers reports whether r can be the answer to c.
func (r *ClaimReply) Answers(c *Claim) bool {
	switch r.Code {
	case ClaimDone:
		return (r.Grant == 0 || within(r.Grant, c.Need, c.Want)) && within(r.Held, r.Grant, Whole-1) &&
			within(r.Share, 0, c.Places) && within(int64(r.Flags), 0, int64(PlacesLost|DifferentPlaces)) && within(r.Now, 0, Whole-1)
	case ClaimStale, ClaimForeign, ClaimDamaged:
		return r.Grant == 0 && r.Held == 0 && r.Share == 0 && r.Flags == 0 && within(r.Now, 0, Whole-1)
	}
	return false
}
