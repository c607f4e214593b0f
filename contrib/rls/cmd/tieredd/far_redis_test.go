package main_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	tieredd "github.com/tiered-limiter/tiered-limiter/contrib/rls/cmd/tieredd"
	"github.com/tiered-limiter/tiered-limiter/lua"
	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// far is a Redis far away. The first call makes a connection, which takes six round trips in all.
type far struct {
	*remote.Memory
	trip      time.Duration
	mu        sync.Mutex
	connected bool
}

func (f *far) answers(within time.Duration) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	takes := f.trip
	if !f.connected {
		takes *= 6
	}
	time.Sleep(min(takes, within))
	if takes > within {
		return fmt.Errorf("read: %w", os.ErrDeadlineExceeded)
	}
	f.connected = true
	return nil
}

func (f *far) Run(ctx context.Context, timeout time.Duration, calls []lua.Call, results []remote.Result) {
	if err := f.answers(timeout); err != nil {
		for i := range calls {
			results[i] = remote.Result{Err: err}
		}
		return
	}
	f.Memory.Run(ctx, timeout, calls, results)
}

func (f *far) Presence(ctx context.Context, timeout time.Duration, node remote.Node, p remote.Process) (remote.Census, error) {
	if err := f.answers(timeout); err != nil {
		return remote.Census{}, err
	}
	return f.Memory.Presence(ctx, timeout, node, p)
}

// Of a Redis that is far, a process says that it answers late and how late, and not that it does
// not answer. Of one that does not answer it says that.
func TestStartFarFromRedis(t *testing.T) {
	const late = `level=WARN msg="redis answers later than TIERED_BUDGET: the fail modes decide for keys without a lease" node=memory "round trip"=`
	for _, c := range []struct {
		trip time.Duration
		want []string // the beginnings of its lines, in the order of the alphabet
	}{
		{time.Millisecond, nil},
		{12 * time.Millisecond, nil},
		{30 * time.Millisecond, []string{late + "30ms"}},
		{60 * time.Millisecond, []string{late + "60ms"}},
		{120 * time.Millisecond, []string{late + "120ms"}},
		{250 * time.Millisecond, []string{late + "250ms"}},
		{time.Hour, []string{`level=WARN msg="Redis does not answer: not ready until it does"`, `level=WARN msg="redis does not count this process`}},
	} {
		t.Run(c.trip.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var log bytes.Buffer
				logger := slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
					if a.Key == slog.TimeKey {
						return slog.Attr{}
					}
					return tieredd.SettingNames(nil, a)
				}}))
				group, err := tiered.NewGroup(&far{Memory: remote.NewMemory(), trip: c.trip}, &tiered.Options{Processes: 3, Logger: logger})
				if err != nil {
					t.Fatal(err)
				}
				ctx, stop := context.WithCancel(t.Context())
				begin := time.Now()
				var reaching sync.WaitGroup
				v := tieredd.Reaching(logger, group)
				reaching.Go(func() { v.Reach(ctx) })
				for time.Sleep(time.Millisecond); !v.Ready() && time.Since(begin) < 20*time.Second; time.Sleep(time.Millisecond) {
				}
				ready := time.Since(begin)
				time.Sleep(20 * time.Second)
				synctest.Wait()
				var lines []string
				if text := strings.TrimSpace(log.String()); text != "" {
					lines = strings.Split(text, "\n")
				}
				slices.Sort(lines)
				all := len(lines)
				lines = slices.DeleteFunc(lines, func(l string) bool { return strings.HasPrefix(l, `level=INFO msg="redis answers" node=memory`) })
				if greeted := all - len(lines); greeted != 1 && c.trip < time.Minute || greeted > 0 && c.trip > time.Minute {
					t.Errorf("%d lines say that Redis answers for the first time", greeted)
				}
				t.Logf("ready after %v: %q", ready, lines)
				right := len(lines) == len(c.want)
				for i := 0; right && i < len(lines); i++ {
					right = strings.HasPrefix(lines[i], c.want[i])
				}
				if !right {
					t.Errorf("the log is %q, want %q", lines, c.want)
				}
				if c.trip < time.Minute && ready > 4*time.Second {
					t.Errorf("ready after %v", ready)
				}
				stop()
				reaching.Wait()
				_ = group.Close(context.Background())
			})
		})
	}
}
