package lua

// Pool is the number of units that the table of standing shares lends: a process with n units has
// the fraction n / Pool of all standing shares.
const Pool = 1 << 20

// Poll is one call of [Standing]: a process says which fraction it uses, and asks for one.
type Poll struct {
	Member string // id of the process as a member of the table; a new one when its right is over
	Seq    int64  // ≥ 1, higher with every call of a Member
	Ack    int64  // highest Seq whose reply was accepted, < Seq
	Hold   int64  // units in use until the next reply is accepted, 0 … Pool
	Want   bool   // false asks for nothing; with a Hold of 0 the member leaves
	TTL    int64  // µs that the right lasts from the sending of the call on, 1 … 2⁵⁰
	Epoch  int64  // as last seen; 0 unknown
	Now    int64  // 0 reads the node's clock; anything else is for tests and simulation
}

// PollReply is the script's answer to a [Poll].
type PollReply struct {
	Code    PollCode
	Grant   int64 // units that may be used once the reply is accepted; may be less than Hold
	Epoch   int64 // when the table was created, µs
	Members int64 // with a right, the caller included; 0 if Code is not PollDone
	Flags   PollFlags
	Now     int64 // the node's clock, µs since 1970
}

// PollCode says what a [Poll] came to.
type PollCode int64

// The codes of a poll. Only PollDone wrote something.
const (
	PollDone  PollCode = 0
	PollStale PollCode = 3 // this Seq or a higher one was executed: ignore the reply
	PollOver  PollCode = 4 // the member's right is over: it comes back under a new id
)

// PollFlags are what else a [Poll] found.
type PollFlags int64

// The flags of a poll, added up.
const (
	TableCreated PollFlags = 1 // there was no table
	WritesLost   PollFlags = 2 // Redis lost writes that the member had seen, so a new epoch began
	Quarantine   PollFlags = 4 // the epoch is younger than a right: nobody is granted more than it holds
)

// pollNumbers is the length of a reply.
const pollNumbers = 6

// Arguments appends ARGV of the poll to args: the member's id as a string, and whole numbers as
// int64.
func (p *Poll) Arguments(args []any) []any {
	return append(args, p.Member, p.Seq, p.Ack, p.Hold, p.want(), p.TTL, p.Epoch, p.Now)
}

// want is Want as the script gets it.
func (p *Poll) want() int64 {
	if p.Want {
		return 1
	}
	return 0
}

// Broken returns the number of the first argument that the script refuses, or 0.
func (p *Poll) Broken() int {
	if p.Member == "" {
		return 1
	}
	if n := outside(2, p.Seq, p.Ack, p.Hold, p.want(), p.TTL, p.Epoch, p.Now); n > 0 {
		return n
	}
	switch {
	case p.Seq < 1:
		return 2
	case p.Ack >= p.Seq:
		return 3
	case p.Hold > Pool:
		return 4
	case p.TTL < 1 || p.TTL > LongestLease:
		return 6
	}
	return 0
}

// DecodePoll reads the reply of [Standing], as go-redis returns it. It reports false for anything
// else.
func DecodePoll(val any) (PollReply, bool) {
	var n [pollNumbers]int64
	if !DecodeNumbers(val, n[:]) {
		return PollReply{}, false
	}
	switch PollCode(n[0]) {
	case PollDone, PollStale, PollOver:
		return PollReply{
			Code: PollCode(n[0]), Grant: n[1], Epoch: n[2], Members: n[3], Flags: PollFlags(n[4]), Now: n[5],
		}, true
	}
	return PollReply{}, false
}

// Answers reports whether r can be the answer to p. A grant of more than the script lends would be
// spent.
func (r *PollReply) Answers(p *Poll) bool {
	most := int64(0)
	if r.Code == PollDone && p.Want {
		most = Pool
		if r.Flags&Quarantine != 0 {
			most = p.Hold
		}
	}
	return within(r.Grant, 0, most) && within(r.Epoch, 0, Whole-1) && within(r.Members, 0, Whole-1) &&
		(r.Members > 0) == (r.Code == PollDone) && within(int64(r.Flags), 0, int64(TableCreated|WritesLost|Quarantine)) &&
		within(r.Now, 0, Whole-1)
}
