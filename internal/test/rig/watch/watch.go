// Package watch fails a test if an undamaged store refuses a call. The shipped client sends only
// legal arguments, resends unknown scripts, and reads only what it has written itself, so no call
// of it may be refused.
package watch

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/tiered-limiter/tiered-limiter/lua"
	"github.com/tiered-limiter/tiered-limiter/remote"
)

// Refused reports whether a call's error is a refusal, and not an outage or a missing right.
func Refused(err error) bool {
	var one *remote.ScriptError
	if err == nil || errors.As(err, &one) {
		return err != nil
	}
	return strings.HasPrefix(err.Error(), "NOSCRIPT") || strings.Contains(err.Error(), "wrong reply shape")
}

// Short reports whether a call was granted less than it wanted.
func Short(c *lua.Call, r *remote.Result) bool {
	return r.Err == nil && r.Reply.Code == lua.Granted && r.Reply.Grant < c.Want
}

// Store is a store that counts refusals.
type Store struct {
	remote.Store
	mu    sync.Mutex
	count int
	first error
}

// Of returns a store that passes calls to s and counts refusals.
func Of(s remote.Store) *Store { return &Store{Store: s} }

// KeepsTimeout is that of the store that is watched; see [remote.KeepsTimeout].
func (s *Store) KeepsTimeout() bool { return remote.KeepsTimeout(s.Store) }

// Run executes calls; see [remote.Store].
func (s *Store) Run(ctx context.Context, timeout time.Duration, calls []lua.Call, results []remote.Result) {
	s.Store.Run(ctx, timeout, calls, results)
	for i := range calls {
		if Refused(results[i].Err) {
			s.mu.Lock()
			if s.count++; s.first == nil {
				c := calls[i]
				c.Bucket = "" // it contains the user's key
				s.first = fmt.Errorf("watch: the store refuses %+v: %w", c, results[i].Err)
			}
			s.mu.Unlock()
		}
	}
}

// Err returns the first refusal and the number of all, or nil if there was none.
func (s *Store) Err() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.first == nil {
		return nil
	}
	return fmt.Errorf("%w (%d refusals)", s.first, s.count)
}

// Damaged is a store whose buckets a test damages on purpose. It may refuse calls, and lose data.
type Damaged struct{ remote.Store }

// TB is what Over needs of a testing.TB: programs that are no tests import this package too.
type TB interface {
	Cleanup(f func())
	Errorf(format string, args ...any)
}

// Over returns a store to use in place of s. At its end the test fails if the store has refused a
// call. A Damaged store is returned as it is.
func Over(t TB, s remote.Store) remote.Store {
	switch s.(type) {
	case nil, Damaged:
		return s
	case interface{ Yield(order uint64) }: // a simulator's store has methods that a Store has not
		return s
	}
	watched := Of(s)
	t.Cleanup(func() {
		if err := watched.Err(); err != nil {
			t.Errorf("on a store that nobody damaged: %v", err)
		}
	})
	return watched
}
