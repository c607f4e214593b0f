package docs_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// From docs/waiting.md.

func waitForMailbox(
	ctx context.Context, sends *tiered.Limiter, mailbox string, send, later func(mailbox string) error,
) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	switch err := sends.Wait(ctx, mailbox); {
	case err == nil:
		return send(mailbox)
	case errors.Is(err, context.DeadlineExceeded):
		return later(mailbox) // 2 s would not be enough, or are over: nothing was taken
	default:
		return err // ctx was canceled, or a *LimitedError: waiting does not help
	}
}

// Two seconds are enough for the first wait, and not for one behind another: it is refused at once.
func TestWaitWithDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sends, err := tiered.New(remote.NewMemory(), tiered.Policy{Name: "sends", Limit: tiered.Every(1500 * time.Millisecond)}, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer sends.Close(context.Background())
		var sent, postponed atomic.Int64
		send := func(string) error { sent.Add(1); return nil }
		later := func(string) error { postponed.Add(1); return nil }
		wait := func() (time.Duration, error) {
			begun := time.Now()
			err := waitForMailbox(t.Context(), sends, "ann", send, later)
			return time.Since(begun).Round(10 * time.Millisecond), err
		}
		for _, want := range []time.Duration{0, 1500 * time.Millisecond} {
			if d, err := wait(); err != nil || d != want {
				t.Errorf("%v after %v, want %v", err, d, want)
			}
		}
		go wait()
		synctest.Wait()
		if d, err := wait(); err != nil || d > 0 || sent.Load() != 2 || postponed.Load() != 1 {
			t.Errorf("%v after %v; %d sent, %d postponed", err, d, sent.Load(), postponed.Load())
		}
		time.Sleep(3 * time.Second)
	})
}
