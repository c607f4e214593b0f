package tiered_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tiered-limiter/tiered-limiter/lua"
	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// link is the connection of one process to a store.
type link struct {
	*remote.Memory
	mu  sync.Mutex
	err error // of each call, if it is cut
}

func (l *link) cut(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.err = err
}

func (l *link) down() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err
}

func (l *link) Run(ctx context.Context, timeout time.Duration, calls []lua.Call, results []remote.Result) {
	if err := l.down(); err != nil {
		for i := range results {
			results[i].Err = err
		}
		return
	}
	l.Memory.Run(ctx, timeout, calls, results)
}

func (l *link) Presence(ctx context.Context, d time.Duration, n remote.Node, p remote.Process) (remote.Census, error) {
	if err := l.down(); err != nil {
		return remote.Census{}, err
	}
	return l.Memory.Presence(ctx, d, n, p)
}

// A Redis that comes back empty after an outage is reported: its keys may admit a burst more. One that has kept its data
// is not, nor one that others have used meanwhile.
func TestRedisThatComesBackEmpty(t *testing.T) {
	for _, algorithm := range algorithms {
		for _, mode := range failModes {
			for _, down := range []time.Duration{2 * time.Second, 10 * time.Second, time.Minute} {
				for _, what := range []string{"empty", "kept", "used by others"} {
					t.Run(fmt.Sprintf("%v, %v, %v, %s", algorithm, mode, down, what), func(t *testing.T) {
						synctest.Test(t, func(t *testing.T) { comesBack(t, algorithm, mode, down, what) })
					})
				}
			}
		}
	}
}

func comesBack(t *testing.T, algorithm tiered.Algorithm, mode tiered.FailMode, down time.Duration, what string) {
	store, ctx := remote.NewMemory(), context.Background()
	var log bytes.Buffer // of the first process; only its journal writes, and it has ended when it is read
	links, limiters := make([]*link, 3), make([]*tiered.Limiter, 3)
	groups := make([]*tiered.Group, 3)
	for i := range links {
		links[i] = &link{Memory: store}
		o := &tiered.Options{Logger: slog.New(slog.DiscardHandler)}
		if i == 0 {
			o.Logger = slog.New(slog.NewTextHandler(&log, nil))
		}
		g, err := tiered.NewGroup(links[i], o)
		if err != nil {
			t.Fatal(err)
		}
		groups[i] = g
		limiters[i], err = g.NewLimiter(tiered.Policy{
			Name: "api", Limit: tiered.PerHour(1000), Algorithm: algorithm, FailMode: mode,
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	ask := func(d time.Duration) {
		for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
			for i, l := range limiters {
				l.Allow(ctx, "hot")
				l.AllowN(ctx, fmt.Sprint("rare", i), 20)
			}
		}
	}
	time.Sleep(time.Second)
	ask(6 * time.Second) // most of the limit
	for i, l := range links {
		if i == 0 || what != "used by others" {
			l.cut(errors.New("connection refused"))
		}
	}
	ask(down)
	if what == "empty" {
		for _, b := range store.Buckets() {
			store.Del(b)
		}
	}
	for _, l := range links {
		l.cut(nil)
	}
	ask(5 * time.Second)
	losses := groups[0].Stats().Nodes["memory"].Faults.StateLosses
	for _, g := range groups {
		_ = g.Close(ctx)
	}
	line := strings.Contains(log.String(), "redis lost buckets")
	if empty := what == "empty"; (losses > 0) != empty || line != empty {
		t.Errorf("%d losses were counted; the log:\n%s", losses, log.String())
	}
}
