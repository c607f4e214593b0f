package local_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/tiered-limiter/tiered-limiter/local"
	"github.com/tiered-limiter/tiered-limiter/lua"
)

// A short grant says that there is no more, and brings something: until that is spent it refuses
// nobody, in whichever moment of the reply he asks. Else one caller, one request after the other,
// is refused while the process holds what he asks for.
func TestShortGrantIsSpentFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, local.Policy{Cap: 100, Tokens: 100})
		w, other, expensive := local.NewWaiter(), local.NewWaiter(), local.NewWaiter()
		w.C = make(chan local.Outcome) // so that the reply stands still when it tells the first
		for i, x := range []*local.Waiter{w, other, expensive} {
			if v, _ := r.b.Ask(r.now, []int64{1, 1, 4}[i], r.now+20*ms, x); v.Reason != local.Waiting {
				t.Fatalf("%+v", v)
			}
		}
		c := r.begin()
		if c.Want <= 4 {
			t.Fatalf("%+v, and 4 are to be a short grant", c)
		}
		accepted := make(chan bool)
		go func() {
			_, ok := r.b.Accept(r.now, c.Seq, lua.Reply{Grant: 4, TTLLeft: us(time.Second), Retry: us(time.Second)})
			accepted <- ok
		}()
		synctest.Wait()
		if v, refused := r.b.Hot().Refuse(r.now, 1); refused {
			t.Errorf("%+v, when the outcome is told", v)
		}
		if left, ok, _ := r.b.Hot().Take(r.now, 1); !ok || left != 1 {
			t.Errorf("took %v, %d left, when the outcome is told", ok, left)
		}
		if v := <-w.C; v.Reason != local.Granted {
			t.Errorf("%+v", v)
		}
		if !<-accepted {
			t.Fatal("not accepted")
		}
		r.expect(other, local.Granted)
		r.expect(expensive, local.Limited)
		if v, refused := r.b.Hot().Refuse(r.now, 1); refused {
			t.Errorf("%+v, and one token is held", v)
		}
		if _, ok, _ := r.b.Hot().Take(r.now, 1); !ok {
			t.Error("the last token is not given")
		}
		if _, refused := r.b.Hot().Refuse(r.now, 1); !refused {
			t.Error("nothing is held, and Redis has no more")
		}
	})
}
