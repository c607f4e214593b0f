package atonce_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tiered-limiter/tiered-limiter/lua"
	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered/atonce"
)

func TestBadInput(t *testing.T) {
	for want, p := range map[string]atonce.Policy{
		"Policy.Name is \"a b\"":          {Name: "a b", Places: 1},
		"Policy.Places is 0":              {Name: "p"},
		"Policy.Places is -1":             {Name: "p", Places: -1},
		"Policy.Places is 1048577":        {Name: "p", Places: 1<<20 + 1},
		"Policy.Life is 1ms":              {Name: "p", Places: 1, Life: time.Millisecond},
		"Policy.MaxRun is 25h0m0s":        {Name: "p", Places: 1, MaxRun: 25 * time.Hour},
		"Policy.FailMode is 9":            {Name: "p", Places: 1, FailMode: 9},
		"Policy.Plans[\"x\"] is 0":        {Name: "p", Places: 1, Plans: map[string]int{"x": 0}},
		"Policy.Plans is a plan named \"": {Name: "p", Places: 1, Plans: map[string]int{"": 1}},
		"Policy.PerKey is set":            {Name: "p", Places: 1, Plans: map[string]int{"x": 1}, PerKey: func(string) int { return 1 }},
	} {
		if err := p.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	if _, err := atonce.New(nil, atonce.Policy{Name: "p", Places: 1}); err == nil {
		t.Error("a nil Group was taken")
	}
	var none *atonce.Place
	none.Release()
	var zero *atonce.Limiter
	if _, err := zero.Acquire(ctx(), "k"); !errors.Is(err, atonce.ErrInvalid) {
		t.Errorf("a nil Limiter: %v", err)
	}
	for _, l := range []*atonce.Limiter{nil, {}} {
		if err := l.SetPolicy(atonce.Policy{Name: "p", Places: 1}); err == nil {
			t.Errorf("SetPolicy of %v: no error", l)
		}
	}
	bubble(t, func(t *testing.T) {
		store := remote.NewMemory()
		a := start(t, store, atonce.Policy{Name: "p", Places: 2}, nil)
		a.refused(t, "", atonce.ErrInvalid)
		for _, n := range []int{0, -1, 3} {
			if _, err := a.For("k").N(n).Acquire(ctx()); !errors.Is(err, atonce.ErrInvalid) || strings.Contains(err.Error(), "secret") {
				t.Errorf("%d places: %v", n, err)
			}
		}
		ended, cancel := context.WithCancel(ctx())
		cancel()
		if _, err := a.Acquire(ended, "k"); !errors.Is(err, context.Canceled) {
			t.Errorf("a context that has ended: %v", err)
		}
		long := strings.Repeat("x", 64<<10)
		p := a.acquire(t, long)
		if u, err := a.Peek(nil, long); err != nil || u.Running < 1 { //nolint:staticcheck // nil is what is tested
			t.Errorf("a key of 64 KiB: %+v, %v", u, err)
		}
		p.Release()
		p = a.acquire(t, "k")
		request, end := p.Context(nil) //nolint:staticcheck // nil is what is tested
		if end(); request.Err() == nil {
			t.Error("a nil context: it goes on")
		}
		waits := make(chan error, 1)
		go func() {
			_, err := a.For("k").N(2).Wait(ctx())
			waits <- err
		}()
		synctest.Wait()
		if err := a.group.Close(ctx()); err != nil {
			t.Error(err)
		}
		if err := <-waits; !errors.Is(err, atonce.ErrClosed) {
			t.Errorf("who waited got %v", err)
		}
		p.Release()
		p.Release()
		a.refused(t, "k", atonce.ErrClosed)
		if _, err := a.Peek(ctx(), "k"); !errors.Is(err, atonce.ErrClosed) {
			t.Errorf("Peek: %v", err)
		}
		if _, err := atonce.New(a.group, atonce.Policy{Name: "q", Places: 1}); err == nil {
			t.Error("a closed Group was taken")
		}
	})
}

// TestKeysOfAnAttacker: what is kept follows what runs, not how many keys there were.
func TestKeysOfAnAttacker(t *testing.T) {
	bubble(t, func(t *testing.T) {
		a := start(t, remote.NewMemory(), atonce.Policy{Name: "p", Places: 2}, nil)
		most, keys := 0, 1_000_000
		if testing.Short() {
			keys = 30_000
		}
		for i := range keys {
			if p, err := a.Acquire(ctx(), fmt.Sprint(i)); err == nil {
				p.Release()
			}
			if i%100 == 0 {
				time.Sleep(time.Millisecond)
				most = max(most, a.Stats().Keys)
			}
		}
		if most > 15_000 {
			t.Errorf("%d of %d keys were kept", most, keys)
		}
		time.Sleep(time.Second)
		if n := a.Stats().Keys; n != 0 {
			t.Errorf("%d keys are kept", n)
		}
	})
}

// foreign is a store in which somebody else uses the names of keys.
type foreign struct{ remote.Store }

func (foreign) Claim(_ context.Context, _ time.Duration, _ *lua.Claims, results []remote.ClaimResult) {
	for i := range results {
		results[i].Reply.Code = lua.ClaimForeign
	}
}

// TestPeekOfAForeignKey: that nothing runs would be a guess.
func TestPeekOfAForeignKey(t *testing.T) {
	bubble(t, func(t *testing.T) {
		a := start(t, foreign{remote.NewMemory()}, atonce.Policy{Name: "p", Places: 2}, nil)
		if u, err := a.Peek(ctx(), "k"); !errors.Is(err, atonce.ErrUnavailable) {
			t.Errorf("%+v, %v", u, err)
		}
	})
}
