package remote_test

import (
	"testing"
	"time"

	"github.com/tiered-limiter/tiered-limiter/remote"
)

// TestServerTime lets three processes lease by the engine's own clock, as in production: the only test here in real time.
func TestServerTime(t *testing.T) {
	for _, e := range engines(t) {
		t.Run(e.name, func(t *testing.T) {
			calls := 3000
			if e.name == "miniredis" { // gopher-lua: ten times as long per call
				calls = 600
			}
			const capacity, rate = 100, 1000
			var seq, admitted, late int64
			start := time.Now()
			for i := range calls {
				seq++
				before := time.Now().UnixMicro()
				a := e.call(t, remote.Call{
					Bucket: "{time/k}tb1", Cap: capacity, Tokens: rate, Period: 1e6, TTL: 30e6, Fleet: 1, Want: 5,
					Lease: string(rune('A' + i%3)), Seq: seq, Ack: seq - 1, // all that was granted is spent
				})
				after := time.Now().UnixMicro()
				switch {
				case a.err != "" || a.reply.Code > remote.Denied:
					t.Fatal(a)
				case a.reply.Flags&(remote.Adopted|remote.SteppedBack) != 0:
					t.Fatalf("flags of %v", a)
				case a.reply.Flags&remote.Created != 0 && i > 0:
					t.Fatalf("the key is gone after %d calls: %v", i, a)
				case a.reply.Now < before-1000 || a.reply.Now > after+1000:
					late++ // the wall clock may be set while we look; not all the time
				}
				admitted += a.reply.Grant
			}
			bound := capacity + rate*time.Since(start).Seconds() + 1 // the wall clock may be slewed by 500 ppm
			t.Logf("%d admitted, bound %.2f", admitted, bound)
			if float64(admitted) > bound || admitted < capacity {
				t.Errorf("%d admitted, bound %.2f", admitted, bound)
			}
			if late > int64(calls)/10 {
				t.Errorf("%d of %d replies tell another time", late, calls)
			}
		})
	}
}
