package lua

// Reply is the script's answer to a [Call].
type Reply struct {
	Code     Code
	Grant    int64 // tokens granted
	Level    int64 // whole tokens left in the bucket, at most the caller's cap; negative is debt
	Retry    int64 // µs until Min tokens may be there; -1 never
	Active   int64 // leases that hold or want tokens
	TTLLeft  int64 // µs the lease lasts from its execution on
	Now      int64 // the node's clock, µs since 1970
	Epoch    int64 // when the bucket was created, µs; 0 there is none
	Flags    Flags
	Overflow int64 // tokens that the refill ever lost because the bucket was full

	// What follows is 0 of a TokenBucket with one limit.
	Which int64 // the limit, from 1, that makes a refused caller wait longest, else the tightest
	Reset int64 // µs until nothing counts any more, or longer
	Stamp int64 // when this call was counted, on the bucket's own clock: for Call.At. If it is Late by its window, that clock

	// Forgiven is the part of Debt that was not charged, because a token bucket is as low as
	// MaxDebt allows. It is 0 in a Replay.
	Forgiven int64

	Governs Limit // with OtherTerms, of a TokenBucket: the limit that governs instead of the caller's
}

// Code says what a call came to.
type Code int64

// The codes. Only Granted, Denied and Replay accept what the call stated; after Stale, Never and
// Late nothing changed.
const (
	Granted Code = 0
	Denied  Code = 1
	Replay  Code = 2 // this Seq was executed before; the same grant again
	Stale   Code = 3 // a newer Seq was executed, or the record is over: ignore
	Never   Code = 4 // Min > Cap
	Late    Code = 5 // Deadline ≤ now, or the bucket is in another window: nothing was done
)

// Flags are what else a call found.
type Flags int64

// The flags, added up.
const (
	Created     Flags = 1   // there was no bucket
	SteppedBack Flags = 2   // a step back of the node's clock was believed
	Adopted     Flags = 4   // the caller held more than was recorded
	OtherEpoch  Flags = 8   // the bucket is not the one of Call.Epoch
	Unrecorded  Flags = 16  // the reply of Call.Ack is not on record: lost, over, or the caller began anew
	Unapplied   Flags = 32  // Refund, Reset or To was asked for and not carried out: see the scripts' headers
	OtherTerms  Flags = 64  // a larger limit than the caller's governs a token bucket
	News        Flags = 128 // of a dry run: it would tell what was spent or is owed, or change what governs. Else the tokens do not come by Retry
)

// The numbers of a reply: those of lua/token_bucket.lua, those of the other scripts, and those of
// the first if another limit governs than the caller's.
const bucketNumbers, windowNumbers, governedNumbers = 10, 13, bucketNumbers + 4

// ReplyNumbers is the most numbers of a reply: one more if a debt was forgiven.
const ReplyNumbers = windowNumbers + 1

// ReplyOf reads the numbers of a reply of an algorithm's script: exactly so many, the first of them
// a known code, and one more if a debt was forgiven. It reports false for anything else.
func ReplyOf(a Algorithm, numbers []int64) (Reply, bool) {
	count, governed := windowNumbers, false
	if a == TokenBucket {
		count, governed = bucketNumbers, len(numbers) == governedNumbers
	}
	if len(numbers) != count && len(numbers) != count+1 && !governed || numbers[0] < int64(Granted) || numbers[0] > int64(Late) {
		return Reply{}, false
	}
	var n [windowNumbers]int64 // what a token bucket does not send is 0
	copy(n[:count], numbers)
	r := Reply{
		Code: Code(n[0]), Grant: n[1], Level: n[2], Retry: n[3], Active: n[4],
		TTLLeft: n[5], Now: n[6], Epoch: n[7], Flags: Flags(n[8]), Overflow: n[9],
		Which: n[10], Reset: n[11], Stamp: n[12],
	}
	if len(numbers) > count {
		r.Forgiven = numbers[count]
	}
	if governed {
		r.Governs = Limit{Cap: numbers[count+1], Tokens: numbers[count+2], Period: numbers[count+3]}
	}
	return r, true
}

// Answers reports whether r can be the answer to c. A reply that cannot is worse than none: a grant
// of more than was asked for would be spent, and a clock out of range would go into every later
// call and make it illegal.
func (r *Reply) Answers(c *Call) bool {
	return within(r.Grant, 0, c.Want) && (r.Grant == 0 || r.Code == Granted || r.Code == Replay) &&
		within(r.Level, -Whole, c.Cap) && within(r.Retry, -1, Whole) && r.Active >= 0 && within(r.TTLLeft, 0, c.TTL) &&
		within(r.Now, 0, Whole-1) && within(r.Epoch, 0, Whole-1) && r.Flags >= 0 && within(r.Overflow, 0, OverflowEnd) &&
		within(r.Which, 0, MostLimits) && within(r.Reset, 0, Whole-1) && within(r.Stamp, 0, Whole-1) &&
		within(r.Forgiven, 0, c.Debt) && (r.Governs == Limit{} || within(r.Governs.Cap, 1, MostTokens) &&
		within(r.Governs.Tokens, 0, MostTokens) && within(r.Governs.Period, 1, LongestPeriod))
}

func within(x, least, most int64) bool { return x >= least && x <= most }

// DecodeNumbers reads a list of exactly as many whole numbers as there is room for, and reports
// whether it is one.
func DecodeNumbers(val any, numbers []int64) bool {
	list, ok := val.([]any)
	if !ok || len(list) != len(numbers) {
		return false
	}
	for i, x := range list {
		if numbers[i], ok = x.(int64); !ok {
			return false
		}
	}
	return true
}
