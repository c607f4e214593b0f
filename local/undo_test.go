package local

import "testing"

// What another bucket of the key admits instead was not refused here, whatever refused it; it stays asked for, so that
// borrowing does not look like less demand; and the share pays for it.
func TestUndoneRefusal(t *testing.T) {
	whole := &Policy{Cap: 400, Tokens: 400, Per: 1e9}
	for _, c := range []struct {
		refused Outcome
		mode    FailMode
		refuse  func(r *rig)
	}{
		{Refused, FailLocal, func(r *rig) { r.b.CountRefused(8) }},
		{ShareSpent, FailLocal, func(r *rig) {
			if v := r.b.Fallback(r.now, 80, 8); v.Outcome != ShareSpent {
				r.Fatalf("%+v", v)
			}
			r.b.lease.outage.unbooked.Add(8 - 80) // 8 of them
			r.b.refused.Add(8 - 80)
		}},
		{Failed, FailClosed, func(r *rig) { r.b.CountFallback(8) }},
	} {
		r := newRig(t, Policy{Cap: 100, Tokens: 100, Parent: whole, FailMode: c.mode})
		r.lease(5)
		r.b.setFleet(r.now, 8) // a share of 400 ÷ 8
		r.b.account(r.now)
		share := r.b.fallback.tokens(r.now)
		if share > 50 || share < 40 {
			t.Errorf("a share of %v tokens, want one eighth of the whole's 400", share)
		}
		before := r.b.Stats()
		c.refuse(r)
		if s := r.b.Stats(); s == before {
			t.Fatalf("%v: nothing was refused", c.refused)
		}
		if !r.b.UndoRefusal(8, 6, c.refused) {
			t.Fatal("closed")
		}
		if s := r.b.Stats(); s != before {
			t.Errorf("%v: %+v, before %+v", c.refused, s, before)
		}
		r.now += minInterval
		r.b.account(r.now)
		refilled := r.b.fallback.tokens(r.now-minInterval) + 0.05
		if got := share - refilled; got < 5.9 || got > 6.1 {
			t.Errorf("%v: the share paid %v for 6 tokens", c.refused, got)
		}
		if r.b.demand.rate < 30 { // 2 of the lease and these 8 in a millisecond; 2 would make 7/s of it
			t.Errorf("%v: a demand of %v/s", c.refused, r.b.demand.rate)
		}
		r.b.Burn(r.now)
		if r.b.UndoRefusal(1, 1, c.refused) {
			t.Errorf("%v: a closed bucket takes back", c.refused)
		}
	}
}

// A bucket that was made anew since another one of its key refused takes back all the same: what the two have counted
// together is right.
func TestUndoneRefusalOfAnother(t *testing.T) {
	for refused, mode := range map[Outcome]FailMode{Refused: FailOpen, ShareSpent: FailLocal, Failed: FailClosed} {
		r := newRig(t, Policy{Cap: 100, Tokens: 100, FailMode: mode})
		if !r.b.UndoRefusal(8, 6, refused) {
			t.Fatal("closed")
		}
		if s := r.b.Stats(); s.Refused+s.Failed != -8 {
			t.Errorf("%v: %+v, want 8 taken back", refused, s)
		}
	}
}
