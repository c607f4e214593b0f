// Package watch holds tests to what no store does that nobody damages: refuse a call of the shipped client. Its
// arguments break no rule, its scripts are known or sent again, what it reads it has written itself, and the reply has
// the shape that it expects.
package watch

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tiered-limiter/tiered-limiter/lua"
	"github.com/tiered-limiter/tiered-limiter/remote"
)

// Refused reports whether an error of a call is a refusal that no outage explains, and no user without rights.
func Refused(err error) bool {
	var one *remote.ScriptError
	if err == nil || errors.As(err, &one) {
		return err != nil
	}
	return strings.HasPrefix(err.Error(), "NOSCRIPT") || strings.Contains(err.Error(), "wrong reply shape")
}

// Store is a store that counts refusals.
type Store struct {
	remote.Store
	mu    sync.Mutex
	count int
	first error
}

// Of watches a store.
func Of(s remote.Store) *Store { return &Store{Store: s} }

// Run executes calls; see [remote.Store].
func (s *Store) Run(ctx context.Context, timeout time.Duration, calls []lua.Call, results []remote.Result) {
	s.Store.Run(ctx, timeout, calls, results)
	for i := range calls {
		if Refused(results[i].Err) {
			s.mu.Lock()
			if s.count++; s.first == nil {
				c := calls[i]
				c.Bucket = "" // it has the user's key
				s.first = fmt.Errorf("watch: the store refuses %+v: %w", c, results[i].Err)
			}
			s.mu.Unlock()
		}
	}
}

// Err is the first refusal, nil if there was none.
func (s *Store) Err() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.first == nil {
		return nil
	}
	return fmt.Errorf("%w (%d refusals)", s.first, s.count)
}

// Damaged is a store whose buckets a test damages on purpose: it may refuse calls, and lose what it was told.
type Damaged struct{ remote.Store }

// Over returns a store in whose place a test uses another, and fails the test at its end if that refused a call. A
// Damaged one may.
func Over(t testing.TB, s remote.Store) remote.Store {
	switch s.(type) {
	case nil, Damaged:
		return s
	case interface{ Settle(order uint64) }: // a simulator's store has methods that a watched one has not
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
