package atonce_test

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
	"github.com/tiered-limiter/tiered-limiter/tiered/atonce"
)

func TestOutage(t *testing.T) {
	refusal := map[tiered.FailMode]error{tiered.FailLocal: atonce.ErrFull, tiered.FailClosed: atonce.ErrUnavailable}
	for mode, want := range map[tiered.FailMode]int{tiered.FailLocal: 3, tiered.FailOpen: 20, tiered.FailClosed: 0} {
		t.Run(mode.String(), func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				store := remote.NewMemory()
				policy := atonce.Policy{Name: "p", Places: 6, FailMode: mode}
				a := start(t, store, policy, &tiered.Options{Processes: 2})
				b := start(t, store, policy, &tiered.Options{Processes: 2})
				time.Sleep(4 * time.Second) // both are counted
				store.Fail(errors.New("down"))
				var held []*atonce.Place
				for range 20 {
					p, err := a.Acquire(ctx(), "k")
					if err == nil {
						held = append(held, p)
					} else if !errors.Is(err, refusal[mode]) {
						t.Fatal(err)
					}
				}
				if len(held) != want {
					t.Errorf("%d run, want %d", len(held), want)
				}
				time.Sleep(time.Minute)
				store.Fail(nil)
				time.Sleep(3 * time.Second) // the breaker closes, and what runs is told
				if u, err := b.Peek(ctx(), "k"); err != nil || u.Running != len(held) {
					t.Errorf("Redis knows of %d, %v; %d run", u.Running, err, len(held))
				}
				for range max(0, 6-len(held)) {
					held = append(held, b.acquire(t, "k"))
				}
				b.refused(t, "k", atonce.ErrFull)
				a.refused(t, "k", atonce.ErrFull)
				for _, p := range held {
					p.Release()
				}
				time.Sleep(2 * time.Second)
				if u, err := b.Peek(ctx(), "k"); err != nil || u.Running != 0 {
					t.Errorf("Redis knows of %d, %v; none runs", u.Running, err)
				}
			})
		})
	}
}

// TestWaitInAnOutage: a place of the process serves its waiter, and FailClosed ends the waiting.
func TestWaitInAnOutage(t *testing.T) {
	bubble(t, func(t *testing.T) {
		store := remote.NewMemory()
		local := start(t, store, atonce.Policy{Name: "p", Places: 1}, nil)
		closed := start(t, store, atonce.Policy{Name: "q", Places: 1, FailMode: tiered.FailClosed}, nil)
		store.Fail(errors.New("down"))
		p, err := local.Wait(ctx(), "k")
		if err != nil {
			t.Fatal(err)
		}
		time.AfterFunc(time.Second, p.Release)
		began := time.Now()
		if p, err = local.Wait(ctx(), "k"); err != nil || time.Since(began) != time.Second {
			t.Errorf("Wait: %v after %v", err, time.Since(began))
		}
		p.Release()
		if _, err := closed.Wait(ctx(), "k"); !errors.Is(err, atonce.ErrUnavailable) {
			t.Errorf("Wait: %v", err)
		}
		store.Fail(nil)
		time.Sleep(2 * time.Second)
	})
}

// TestAHungRedis: nobody waits for longer than Budget.
func TestAHungRedis(t *testing.T) {
	bubble(t, func(t *testing.T) {
		a := start(t, remote.NewMemory(), atonce.Policy{Name: "p", Places: 1}, nil)
		a.link.frozen.Store(true)
		var held []*atonce.Place
		for i := range 20 {
			began := time.Now()
			p, err := a.Acquire(ctx(), fmt.Sprint(i))
			if took := time.Since(began); err != nil || took > 20*time.Millisecond {
				t.Errorf("Acquire: %v after %v", err, took)
			}
			held = append(held, p)
		}
		time.Sleep(time.Second)
		a.link.frozen.Store(false)
		time.Sleep(3 * time.Second)
		for i, p := range held {
			if u, err := a.Peek(ctx(), fmt.Sprint(i)); err != nil || u.Running != 1 {
				t.Fatalf("Peek: %+v, %v", u, err)
			}
			p.Release()
		}
		time.Sleep(time.Second)
	})
}

// The log says of an outage how places are given meanwhile, and which policies there are.
func TestOutageIsTold(t *testing.T) {
	bubble(t, func(t *testing.T) {
		store, log := remote.NewMemory(), &bytes.Buffer{}
		o := &tiered.Options{Logger: slog.New(slog.NewTextHandler(log, nil))}
		l := start(t, store, atonce.Policy{Name: "flight", Places: 1, FailMode: tiered.FailOpen}, o)
		time.Sleep(10 * time.Second)
		store.Fail(errors.New("down"))
		_, _ = l.Acquire(ctx(), "k")
		time.Sleep(5 * time.Second)
		synctest.Wait()
		if s := log.String(); !strings.Contains(s, "policies=flight") || !strings.Contains(s, `decide="fail-open: flight"`) {
			t.Error(s)
		}
	})
}

// TestFiguresOfAWaiter: a place that a request of this process has given back is none that Redis
// gave.
func TestFiguresOfAWaiter(t *testing.T) {
	bubble(t, func(t *testing.T) {
		a := start(t, remote.NewMemory(), atonce.Policy{Name: "p", Places: 1}, nil)
		p := a.acquire(t, "k")
		a.link.cut.Store(true)
		time.AfterFunc(time.Second, p.Release)
		p, err := a.Wait(ctx(), "k")
		if err != nil {
			t.Fatal(err)
		}
		p.Release()
		if s := a.Stats(); s.Granted != 2 || s.Spare != 1 || s.FailMode != 0 {
			t.Errorf("%+v", s)
		}
		a.link.cut.Store(false)
	})
}
