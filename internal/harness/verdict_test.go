package harness

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/tiered-limiter/tiered-limiter/internal/ideal"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

func TestMain(m *testing.M) { Main(m) }

// Judge finds a stream that exceeds by one token, wherever that token is, and accuses no stream of an ideal bucket.
func TestTheJudgeCanFail(t *testing.T) {
	limit := tiered.PerSecond(2000).WithBurst(500)
	random := rand.New(rand.NewPCG(1, 2))
	var legal []Record
	bucket := ideal.NewBucket(limit.Tokens, limit.Per, limit.Burst)
	for at := int64(0); at < 5e9; at += int64(random.ExpFloat64() * 1e9 / 6000) {
		// The decision falls somewhere within the call.
		legal = append(legal, Record{
			Before: at - random.Int64N(1e6), After: at + random.Int64N(1e6), Allowed: bucket.Take(at, 1),
		})
	}
	if v := Judge(legal, limit); v.Over() > 0 {
		t.Fatalf("an ideal bucket stands accused: %v", v.Worst)
	}
	// The same without the blur of the calls, at the very edge of the bound: 500 at once, then one each half millisecond.
	var edge []Record
	for i := range int64(3000) {
		at := max(0, i-499) * 500_000
		edge = append(edge, Record{Before: at, After: at, Allowed: true})
	}
	if v := Judge(edge, limit); v.Over() > 0 || v.Worst.Over < -0.5 {
		t.Fatalf("a stream at the edge: %v", v.Worst)
	}
	for range 20 {
		one := edge[random.IntN(len(edge))]
		if v := Judge(append(slices.Clone(edge), one), limit); v.Worst.Over < 1-1e-9 {
			t.Fatalf("one token too many at %v goes unseen: %v", time.Duration(one.Before), v.Worst)
		}
	}
	if v := Judge(nil, limit); v.Over() > 0 || v.Admitted != 0 {
		t.Fatalf("nothing: %+v", v)
	}
}

// What a process writes is what is read.
func TestRecords(t *testing.T) {
	var b []byte
	var all []Record
	for reason := tiered.Granted; reason <= tiered.Canceled; reason++ {
		for _, allowed := range []bool{false, true} {
			r := Record{Before: 1<<62 + int64(reason), After: -5, Allowed: allowed, Reason: reason}
			all, b = append(all, r), append(b, r.bytes()...)
		}
	}
	if got := readRecords(append(b, 1, 2, 3)); !slices.Equal(got, all) { // what a killed process wrote last may be cut off
		t.Errorf("%v came back as %v", all, got)
	}
}
