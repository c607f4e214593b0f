package watch_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"testing"
	"time"

	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/redistest"
	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/watch"
	"github.com/tiered-limiter/tiered-limiter/lua"
	"github.com/tiered-limiter/tiered-limiter/remote"
)

func TestRefused(t *testing.T) {
	for text, want := range map[error]bool{
		nil: false, io.EOF: false, context.DeadlineExceeded: false, errors.New("NOPERM no"): false,
		errors.New("LOADING"): false,
		//nolint:revive // Redis ends it so
		errors.New("NOSCRIPT No matching script."):                             true,
		errors.New("remote: wrong reply shape"):                                true,
		fmt.Errorf("first: %w", &remote.ScriptError{Text: "RLARG argument 3"}): true,
	} {
		if watch.Refused(text) != want {
			t.Errorf("%v: %v, want %v", text, !want, want)
		}
	}
}

// call is one that breaks no rule but those that a change breaks.
func call(s remote.Store, change func(*lua.Call)) lua.Call {
	c := lua.Call{Bucket: s.Key("p", "secret"), Cap: 1, Tokens: 1, Period: 1, Want: 1, Min: 1, TTL: 1, Fleet: 1}
	change(&c)
	return c
}

// What is watched is what a store refuses, on a real Redis and in memory.
func TestWatchedStores(t *testing.T) {
	server := redistest.Start(t)
	redis, err := remote.Open(server.URL(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer redis.Close()
	for name, s := range map[string]remote.Store{"memory": remote.NewMemory(), "redis": redis} {
		t.Run(name, func(t *testing.T) {
			w := watch.Of(s)
			run := func(change func(*lua.Call)) {
				w.Run(t.Context(), 5*time.Second, []lua.Call{call(s, change)}, make([]remote.Result, 1))
			}
			run(func(*lua.Call) {})
			if err := w.Err(); err != nil {
				t.Fatal(err)
			}
			run(func(c *lua.Call) { c.Period = 0 })
			run(func(c *lua.Call) { c.Cap = 0 })
			if err := w.Err(); err == nil || !watch.Refused(err) {
				t.Errorf("refused calls are not noticed: %v", err)
			}
		})
	}
}

// recorder is a test that notes that it failed.
type recorder struct {
	testing.TB
	cleanup func()
	failed  bool
}

func (r *recorder) Cleanup(f func())      { r.cleanup = f }
func (r *recorder) Errorf(string, ...any) { r.failed = true }

func TestWatchFailsTheTest(t *testing.T) {
	for _, damaged := range []bool{false, true} {
		var s remote.Store = remote.NewMemory()
		if damaged {
			s = watch.Damaged{Store: s}
		}
		r := &recorder{TB: t, cleanup: func() {}}
		watched := watch.Over(r, s)
		watched.Run(t.Context(), time.Second, []lua.Call{call(s, func(c *lua.Call) { c.TTL = 0 })},
			make([]remote.Result, 1))
		if r.cleanup(); r.failed == damaged {
			t.Errorf("damaged %t: failed %t", damaged, r.failed)
		}
	}
}
