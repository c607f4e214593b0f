package atonce_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered/atonce"
)

func TestAKilledProcessLosesItsPlacesAfterTheLife(t *testing.T) {
	bubble(t, func(t *testing.T) {
		store := remote.NewMemory()
		a := start(t, store, atonce.Policy{Name: "p", Places: 1, Life: 5 * time.Second}, nil)
		b := start(t, store, atonce.Policy{Name: "p", Places: 1, Life: 5 * time.Second}, nil)
		place := a.acquire(t, "k")
		time.Sleep(10 * time.Second)
		a.link.cut.Store(true) // Redis hears no more of it
		began := time.Now()
		p, err := b.Wait(ctx(), "k")
		if err != nil {
			t.Fatal(err)
		}
		if took := time.Since(began); took < 3*time.Second || took > 5*time.Second+100*time.Millisecond {
			t.Errorf("the place came after %v", took)
		}
		// It comes back: it was a process that stood still.
		request, cancel := place.Context(ctx())
		defer cancel()
		select {
		case <-place.Lost():
			t.Error("told before Redis said so")
		default:
		}
		a.link.cut.Store(false)
		time.Sleep(3 * time.Second)
		select {
		case <-place.Lost():
		default:
			t.Error("nobody was told that the place was lost")
		}
		if !errors.Is(context.Cause(request), atonce.ErrLost) {
			t.Errorf("the context ended with %v", context.Cause(request))
		}
		if s := a.Stats(); s.Lost != 1 {
			t.Errorf("Stats: %+v", s)
		}
		p.Release()
		time.Sleep(100 * time.Millisecond)
		b.refused(t, "k", atonce.ErrFull) // the lost request runs, and counts
		place.Release()
		time.Sleep(100 * time.Millisecond)
		b.acquire(t, "k").Release()
	})
}

func TestMaxRun(t *testing.T) {
	bubble(t, func(t *testing.T) {
		key := strings.Repeat("x", 1000)
		lost, refused := make(chan int, 1), 0
		a := start(t, remote.NewMemory(), atonce.Policy{
			Name: "p", Places: 1, MaxRun: time.Minute,
			Lost: func(lostKey string, n int) {
				if lostKey != key {
					t.Errorf("the hook heard of a key of %d bytes", len(lostKey))
				}
				lost <- n
				panic("a hook")
			},
			Refused: func(string, error) { refused++; panic("a hook") },
		}, nil)
		p := a.acquire(t, key) // and nobody releases it
		time.Sleep(59 * time.Second)
		a.refused(t, key, atonce.ErrFull)
		time.Sleep(3 * time.Second)
		<-p.Lost()
		if n := <-lost; n != 1 {
			t.Errorf("the hook heard of %d places", n)
		}
		if refused != 1 {
			t.Errorf("the hook heard of %d refusals", refused)
		}
		q := a.acquire(t, key)
		p.Release() // counts no more
		time.Sleep(200 * time.Millisecond)
		a.refused(t, key, atonce.ErrFull)
		q.Release()
	})
}

// TestRedisLosesTheKey: what runs is stated again within a second, and counts.
func TestRedisLosesTheKey(t *testing.T) {
	bubble(t, func(t *testing.T) {
		store := remote.NewMemory()
		a := start(t, store, atonce.Policy{Name: "p", Places: 2}, nil)
		b := start(t, store, atonce.Policy{Name: "p", Places: 2}, nil)
		held := []*atonce.Place{a.acquire(t, "k"), b.acquire(t, "k")}
		store.Del(store.PlacesName("p", "k"))
		time.Sleep(1600 * time.Millisecond)
		a.refused(t, "k", atonce.ErrFull)
		for _, p := range held {
			select {
			case <-p.Lost():
				t.Error("nobody else got the place")
			default:
			}
			p.Release()
		}
	})
}
