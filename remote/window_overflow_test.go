package remote_test

import (
	"fmt"
	"math"
	"strconv"
	"testing"

	"pgregory.net/rapid"

	"github.com/tiered-limiter/tiered-limiter/lua"
)

// levelOf reads a level that is stored under a field.
func levelOf(t tester, e *engine, bucket, field string) float64 {
	t.Helper()
	stored := e.look(t, bucket).fields[field]
	level, err := strconv.ParseFloat(stored, 64)
	if err != nil {
		t.Fatalf("%s: field %s is %q", e.name, field, stored)
	}
	return level
}

// What an outage admitted is forgiven as far as every bucket of the key threw refill away
// meanwhile: never more than each would forgive alone, and with one limit exactly what a single
// bucket does. Each history is played on several buckets and, limit by limit, on single ones that
// get the same takes and the same debts.
func TestBucketsForgiveNoMoreThanEachAlone(t *testing.T) {
	engines := []*engine{memoryEngine(), miniEngine(t), realEngine(t)}
	forgiven, charged, tried := 0, 0, 0
	rapid.Check(t, func(t *rapid.T) {
		tried++
		draw := func(n int) int { return rapid.IntRange(0, n-1).Draw(t, "n") }
		c := lua.Call{
			Algorithm: lua.TokenBuckets, Bucket: fmt.Sprintf("{overflow/%d}", tried), TTL: 1e6, Fleet: 1,
			Cap: choose(draw, int64(5), 1, 20), Tokens: choose(draw, int64(1), 3), Period: 1e6,
		}
		for i := range draw(3) {
			c.Also = append(c.Also, lua.Limit{
				Cap: choose(draw, int64(5), 8, 50), Tokens: choose(draw, int64(1), 7, 40), Period: int64(10+i) * 1e6,
			})
		}
		limits := limitsOf(c)
		single := make([]lua.Call, len(limits))
		for i, l := range limits {
			single[i] = lua.Call{
				Bucket: fmt.Sprintf("%s%d", c.Bucket, i), Cap: l.Cap, Tokens: l.Tokens,
				Period: l.Period, TTL: 1e6, Fleet: 1,
			}
		}
		now, seq := scriptStart, int64(0)
		// told: each reads the overflow in whole tokens, and so may forgive up to one more or less
		// than another
		debts := 0
		var seen lua.Reply                      // of the several
		alone := make([]lua.Reply, len(limits)) // of each
		t.Repeat(map[string]func(*rapid.T){"call": func(t *rapid.T) {
			now += choose(draw, int64(1), 200e3, 1e6, 3e6, 30e6)
			n, debt := int64(1+draw(5)), int64(0)
			if draw(3) == 0 {
				n, debt = 0, int64(1+draw(9))
				debts++
			}
			seq++
			tell := func(c lua.Call, n int64, last lua.Reply) lua.Call {
				c.Lease, c.Seq, c.Ack = "A", seq, seq-1 // a lease of which all is spent: whatever has a debt has an id
				c.Want, c.Min, c.Now = n, n, now        // nobody's clock moves, so nothing expires
				c.Debt, c.Seen, c.Epoch, c.Fleet = debt, last.Overflow, last.Epoch, int64(1+len(limits)%2)
				c.Owed = debt / 4
				if debt > 0 {
					c.Since = now
				}
				return c
			}
			for _, l := range limits {
				n = min(n, l.Cap)
			}
			var several answer
			for i, e := range engines {
				got := e.call(t, tell(c, n, seen))
				if got.err != "" || i > 0 && got != several {
					t.Fatalf("%s: %v, want %v", e.name, got, several)
				}
				several = got
			}
			for i := range single {
				a := engines[0].call(t, tell(single[i], several.reply.Grant, alone[i]))
				if a.err != "" {
					t.Fatal(a)
				}
				alone[i] = a.reply
				mine := levelOf(t, engines[0], c.Bucket, "l"+strconv.FormatInt(limits[i].Period, 10))
				its := levelOf(t, engines[0], single[i].Bucket, "l")
				// At the floor whole tokens are charged, as many as there is room for: there they
				// may differ by a part of one.
				floor := -float64(limits[i].Cap) - float64(limits[i].Tokens*1e6/limits[i].Period)
				// The last digits differ where the overflow was: 2⁴⁰ and a fraction.
				if mine > its+float64(debts)+1e-3 && mine >= floor+1 || len(limits) == 1 && math.Abs(mine-its) > 1e-3 {
					t.Fatalf("limit %d of %+v: level %v, alone %v", i+1, limits, mine, its)
				}
			}
			if debt > 0 {
				if several.reply.Overflow-seen.Overflow >= debt && seen.Epoch > 0 {
					forgiven++
				} else {
					charged++
				}
			}
			seen = several.reply
		}})
	})
	t.Logf("%d histories: %d debts forgiven or nearly, %d charged", tried, forgiven, charged)
	if (forgiven < tried/10 || charged < tried/10) && !testing.Short() { // 20 histories may not show it
		t.Error("this tests nothing")
	}
}
