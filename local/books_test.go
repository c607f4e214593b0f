package local_test

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/tiered-limiter/tiered-limiter/local"
	"github.com/tiered-limiter/tiered-limiter/lua"
)

// due is what a bucket owes, with what fail-open has only counted so far, and the part of it that
// no refill pays.
type due struct{ admitted, certain int64 }

func owed(b *local.Bucket) due {
	admitted, certain := b.Owing()
	return due{admitted, certain}
}

// Whatever the sequence of steps, with Redis or by the fail mode, given back or owed: the books
// balance, no debt is negative or lost, and the pot never holds more than Redis was told.
func TestFallbackKeepsItsBooks(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := local.Policy{
			Cap: rapid.Int64Range(1, 200).Draw(t, "cap"), Tokens: rapid.Int64Range(1, 1000).Draw(t, "tokens"),
			Per: time.Second, Period: 250 * ms, Budget: 20 * ms, Timeout: 50 * ms,
			NoLease:  rapid.IntRange(0, 3).Draw(t, "no lease") == 3,
			FailMode: local.FailMode(rapid.IntRange(0, 2).Draw(t, "fail mode")),
			Uniform:  func() float64 { return 0.5 },
		}
		b := new(local.Bucket)
		b.Init(&p, "k")
		type taken struct {
			n      int64
			source local.Source
			gen    int64
		}
		var (
			now, seq = time.Duration(0), int64(0)
			call     local.Call
			line     []*local.Waiter
			waiting  = map[*local.Waiter]taken{}
			held     []taken // reservations
			admitted int64   // by Redis, less what was given back
			alone    int64
			settled  int64
			cover    int64 // what a record of Redis covers
		)
		n := func() int64 { return rapid.Int64Range(1, min(p.Cap, 10)).Draw(t, "n") }
		collect := func() {
			for i := 0; i < len(line); {
				select {
				case v := <-line[i].C:
					if v.Reason == local.Granted {
						admitted += waiting[line[i]].n
						held = append(held, waiting[line[i]])
					}
					line = append(line[:i], line[i+1:]...)
				default:
					i++
				}
			}
		}
		steps := []string{
			"take", "take", "take", "ask", "ask", "ask", "alone", "alone", "give back", "give back", "give back", "owe",
			"begin", "begin", "begin", "accept", "accept", "accept", "fail", "fail again", "late",
			"drop", "check", "probe",
			"leave", "expire",
			"retire", "revive",
		}
		for range rapid.IntRange(1, 80).Draw(t, "steps") {
			now += time.Duration(rapid.SampledFrom([]int{0, 0, 1, 5, 30, 300, 3000}).Draw(t, "ms")) * ms
			before, less := owed(b), int64(0) // less is how much a step lowers the debt
			switch rapid.SampledFrom(steps).Draw(t, "step") {
			case "take":
				x := taken{n(), local.FromLease, b.Generation()}
				if _, ok, renew := b.Hot().Take(now, x.n); ok {
					admitted += x.n
					held = append(held, x)
					if renew {
						b.Renew(now)
					}
				}
			case "ask":
				w, x := local.NewWaiter(), taken{n(), local.FromLease, b.Generation()}
				w.Well = rapid.Bool().Draw(t, "well")
				switch v, _ := b.Ask(now, x.n, now+20*ms, w); v.Reason {
				case local.Granted:
					admitted += x.n
					held = append(held, x)
				case local.Waiting:
					x.source = local.FromRedis
					waiting[w] = x
					line = append(line, w)
				}
			case "alone":
				x := taken{n(), local.FromFallback, b.Generation()}
				switch v := b.ByFailMode(now, x.n, rapid.Int64Range(1, 5).Draw(t, "fleet")); v.Reason {
				case local.Granted:
					x.source = local.FromRedis
					admitted += x.n
					held = append(held, x)
				case local.Fallback, local.Open:
					alone += x.n
					held = append(held, x)
				}
			case "give back":
				if len(held) == 0 {
					break
				}
				i := rapid.IntRange(0, len(held)-1).Draw(t, "which")
				x := held[i]
				held = append(held[:i], held[i+1:]...)
				if _, ok := b.Return(now, x.n, x.source, x.gen, nil); !ok {
					break // it is closed
				}
				if x.source != local.FromFallback {
					admitted -= x.n
					break
				}
				// First it books what fail-open only counted. Of that it may forgive some, as a
				// bucket would that can go no lower. Then the debt falls by what was given back.
				less = before.admitted - owed(b).admitted - (b.Stats().Settled - settled)
				if less < 0 || less > x.n {
					t.Fatalf("%d given back, the debt fell by %d", x.n, less)
				}
				alone -= less
			case "owe":
				x := rapid.Int64Range(1, 3*p.Cap).Draw(t, "owe")
				_, spent, _, _ := b.Charge(now, x) // of the lease
				admitted += spent
				alone += min(x, 2*p.Cap) - spent
			case "begin":
				if call.Seq != 0 {
					break
				}
				seq++
				if rapid.Bool().Draw(t, "busy") {
					b.SetDemand(1000) // so that it leases more than the waiters want
				}
				call, _ = b.Begin(now, local.Conditions{
					Seq: seq, Lease: "me", Clock: rapid.Bool().Draw(t, "clock"),
					RoundTrip: ms, Fleet: 3,
				})
				switch {
				case call.Seq == 0:
				case call.Direct:
					if call.Ack+call.Hold+call.Ret+call.Refund+call.Debt+call.Owed > 0 {
						t.Fatalf("a direct take states a lease: %+v", call)
					}
				default:
					cover = call.Hold
					if call.Debt != owed(b).admitted || call.Owed < owed(b).certain || call.Owed > call.Debt {
						t.Fatalf("%+v with a debt of %+v", call, owed(b))
					}
				}
				if call.Ret > 0 && call.Hold > 0 || call.Min > call.Want || call.Refund < 0 {
					t.Fatalf("%+v", call)
				}
			case "accept":
				if call.Seq == 0 {
					break
				}
				grant := rapid.Int64Range(0, call.Want).Draw(t, "grant")
				if grant < call.Min {
					grant = 0
				}
				r := lua.Reply{
					Grant: grant, Level: rapid.Int64Range(-p.Cap, p.Cap).Draw(t, "level"), Retry: us(100 * ms),
					TTLLeft: call.TTL, Epoch: 1,
				}
				if _, ok := b.Accept(now, call.Seq, r); ok {
					settled += call.Debt
					if !call.Direct {
						cover += grant
					}
				}
				b.Accept(now, call.Seq, r) // a copy changes nothing
				call = local.Call{}
			case "fail":
				b.Fail(now, call.Seq, false)
				call = local.Call{}
			case "fail again":
				b.Fail(now, call.Seq, true)
				call = local.Call{}
			case "late":
				b.Late(now, call.Seq, 0)
				call = local.Call{}
			case "drop":
				b.Drop(now)
			case "check":
				b.Check(now)
			case "probe":
				b.Probe()
			case "leave":
				if len(line) > 0 && b.Leave(line[0]) {
					line = line[1:]
				}
			case "expire":
				b.Expire(now)
				call = local.Call{}
			case "retire":
				b.Retire(now)
			case "revive":
				b.Revive()
			}
			collect()
			s := b.Stats()
			if s.Granted != s.Spent+s.Returned+s.Burnt+s.Held || s.Held < 0 || s.Burnt < 0 || s.Returned < 0 {
				t.Fatalf("books: %+v", s)
			}
			dropped := b.Retired() && owed(b) == (due{})
			if forgiven := s.Settled - settled; forgiven > 0 { // so much that it takes a full bucket as low as it may go
				if !dropped && owed(b).admitted+less < 2*p.Cap+p.Tokens {
					t.Fatalf("%d forgiven, and %+v is owed", forgiven, owed(b))
				}
				settled += forgiven
			}
			if dropped {
				alone = settled
			}
			if s.Spent != admitted {
				t.Fatalf("spent %d by the books, %d admitted and not given back", s.Spent, admitted)
			}
			if d := owed(b); d.admitted < 0 || d.certain < 0 || d.certain > d.admitted ||
				d.admitted != alone-settled || s.Settled != settled {
				t.Fatalf("debt %+v, want %d − %d", d, alone, settled)
			}
			if pot, _ := b.Peek(now); pot < 0 || pot > cover {
				t.Fatalf("pot %d, and Redis knows of %d", pot, cover)
			}
		}
	})
}

// A debt of more tokens than a double counts exactly is reported in parts: Redis would refuse the
// call, and every one after it. What fail-open admits beyond what any bucket counts is forgiven at
// once.
func TestDebtIsReportedInParts(t *testing.T) {
	for _, algorithm := range []lua.Algorithm{lua.TokenBucket, lua.TokenBuckets, lua.FixedWindow} {
		const all = 5 << 51
		r := newRig(t, local.Policy{
			Cap: lua.MostTokens, Tokens: 1, Per: time.Hour, Call: lua.Call{Algorithm: algorithm, Period: 3600e6},
			FailMode: local.FailOpen, NoLease: true,
		})
		for range all / lua.MostTokens {
			r.b.ByFailMode(r.now, lua.MostTokens, 1)
		}
		const charges = 1 << 13
		for range charges {
			r.b.Charge(r.now, lua.MostTokens)
		}
		for i := 0; owed(r.b).admitted > 0; i++ {
			r.b.Probe()
			r.seq++
			c, _ := r.b.Begin(r.now, local.Conditions{
				Seq: r.seq, Lease: "me", Clock: true, Server: 1e15, RoundTrip: ms,
				Fleet: 1,
			})
			if c.Debt < 1 || c.Debt > 1<<52 || c.Owed > c.Debt || i > 3 {
				t.Fatalf("algorithm %d, call %d: %+v", algorithm, i, c)
			}
			r.b.Accept(r.now, c.Seq, lua.Reply{Epoch: 1, TTLLeft: us(time.Second)})
		}
		if s := r.balance(); s.Settled != all+charges*lua.MostTokens || s.Opened != all {
			t.Errorf("algorithm %d: %+v", algorithm, s)
		}
	}
}
