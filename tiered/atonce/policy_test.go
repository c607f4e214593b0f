package atonce_test

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
	"github.com/tiered-limiter/tiered-limiter/tiered/atonce"
)

func TestFewerPlaces(t *testing.T) {
	bubble(t, func(t *testing.T) {
		policy := atonce.Policy{Name: "p", Places: 5}
		a := start(t, remote.NewMemory(), policy, nil)
		var held []*atonce.Place
		for range 5 {
			held = append(held, a.acquire(t, "k"))
		}
		policy.Places = 2
		if err := a.SetPolicy(policy); err != nil {
			t.Fatal(err)
		}
		for i, p := range held {
			select {
			case <-p.Lost():
				t.Error("what runs must end in peace")
			default:
			}
			a.refused(t, "k", atonce.ErrFull)
			p.Release()
			time.Sleep(200 * time.Millisecond)
			if i == 3 {
				a.acquire(t, "k").Release()
				time.Sleep(200 * time.Millisecond)
				break
			}
		}
		held[4].Release()
		policy.Name = "q"
		if a.SetPolicy(policy) == nil {
			t.Error("the name must not change")
		}
	})
}

// TestDifferentPlaces: the larger number may run, and each process is told once.
func TestDifferentPlaces(t *testing.T) {
	bubble(t, func(t *testing.T) {
		store := remote.NewMemory()
		var log bytes.Buffer
		few := start(t, store, atonce.Policy{Name: "p", Places: 2}, &tiered.Options{Logger: slog.New(slog.NewTextHandler(&log, nil))})
		many := start(t, store, atonce.Policy{Name: "p", Places: 4}, nil)
		held := []*atonce.Place{few.acquire(t, "k"), few.acquire(t, "k"), many.acquire(t, "k")}
		for range 3 {
			time.Sleep(time.Second)
			few.refused(t, "k", atonce.ErrFull)
		}
		held = append(held, many.acquire(t, "k"))
		many.refused(t, "k", atonce.ErrFull)
		for _, p := range held {
			p.Release()
		}
		time.Sleep(2 * time.Second)
		if err := few.group.Close(ctx()); err != nil {
			t.Error(err)
		}
		if n := strings.Count(log.String(), "another number of places"); n != 1 {
			t.Errorf("told %d times:\n%s", n, &log)
		}
	})
}

func TestPlansAndKeys(t *testing.T) {
	bubble(t, func(t *testing.T) {
		store := remote.NewMemory()
		plans := start(t, store, atonce.Policy{Name: "p", Places: 1, Plans: map[string]int{"pro": 3}}, nil)
		p, err := plans.For("k").WithPlan("pro").N(3).Acquire(ctx())
		if err != nil {
			t.Fatal(err)
		}
		p.Release()
		if _, err := plans.For("k").WithPlan("unknown").N(2).Acquire(ctx()); !errors.Is(err, atonce.ErrInvalid) {
			t.Errorf("2 of 1: %v", err)
		}
		keys := start(t, store, atonce.Policy{Name: "q", Places: 2, PerKey: func(key string) int {
			switch key {
			case "one":
				return 1
			case "panic":
				panic("x")
			}
			return -1
		}}, nil)
		for key, want := range map[string]int{"one": 1, "panic": 2, "wrong": 2} {
			if u, err := keys.Peek(ctx(), key); err != nil || u.Places != want {
				t.Errorf("%s: %+v, %v", key, u, err)
			}
		}
	})
}

// TestSetPolicies: a Group gets the policies of a file, all or none, and keeps hooks.
func TestSetPolicies(t *testing.T) {
	bubble(t, func(t *testing.T) {
		refused := 0
		a := start(t, remote.NewMemory(), atonce.Policy{Name: "p", Places: 1, Refused: func(string, error) { refused++ }}, nil)
		held := a.acquire(t, "k")
		if err := atonce.SetPolicies(a.group, []atonce.Policy{{Name: "p", Places: 2}, {Name: "q"}}); err == nil || atonce.Of(a.group, "q") != nil {
			t.Errorf("a policy without places was taken: %v", err)
		}
		twice := []atonce.Policy{{Name: "p", Places: 2}, {Name: "q", Places: 1}, {Name: "p", Places: 3}}
		if err := atonce.SetPolicies(a.group, twice); err == nil ||
			err.Error() != `atonce: Policy.Name is "p": must differ from the names of the other policies` {
			t.Errorf("two policies of one name: %v", err)
		}
		a.refused(t, "k", atonce.ErrFull)
		if err := atonce.SetPolicies(a.group, []atonce.Policy{{Name: "p", Places: 2}, {Name: "q", Places: 1}}); err != nil {
			t.Fatal(err)
		}
		if atonce.Of(a.group, "p") != a.Limiter || atonce.Of(a.group, "q") == nil || atonce.Of(nil, "p") != nil {
			t.Error("the Limiters are not found by their names")
		}
		time.Sleep(100 * time.Millisecond)
		second := a.acquire(t, "k")
		a.refused(t, "k", atonce.ErrFull)
		if refused != 2 {
			t.Errorf("the hook heard of %d refusals", refused)
		}
		held.Release()
		second.Release()
		if err := a.group.Close(ctx()); err != nil || atonce.Of(a.group, "p") != nil {
			t.Errorf("a closed Group has a Limiter, %v", err)
		}
		if err := atonce.SetPolicies(a.group, []atonce.Policy{{Name: "p", Places: 2}}); err == nil {
			t.Error("a closed Group was taken")
		}
	})
}
