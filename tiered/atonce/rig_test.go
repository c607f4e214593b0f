package atonce_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tiered-limiter/tiered-limiter/lua"
	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
	"github.com/tiered-limiter/tiered-limiter/tiered/atonce"
)

// process is one process on a store that others have too.
type process struct {
	*atonce.Limiter
	group *tiered.Group
	link  *link
}

// link is a process' way to the store. It may be cut, and it counts.
type link struct {
	remote.Store
	cut    atomic.Bool
	frozen atomic.Bool // Claim blocks
	claims atomic.Int64
	trip   time.Duration // from a claim to its answer
}

func (s *link) Claim(ctx context.Context, timeout time.Duration, c *lua.Claims, results []remote.ClaimResult) {
	s.claims.Add(1)
	for s.frozen.Load() {
		time.Sleep(time.Millisecond)
	}
	if s.cut.Load() {
		for i := range c.Each {
			results[i] = remote.ClaimResult{Err: io.EOF}
		}
		return
	}
	time.Sleep(s.trip / 2)
	s.Store.Claim(ctx, timeout, c, results)
	time.Sleep(s.trip / 2)
}

func (s *link) Presence(ctx context.Context, timeout time.Duration, node remote.Node, p remote.Process) (remote.Census, error) {
	if s.cut.Load() || s.frozen.Load() {
		return remote.Census{}, io.EOF
	}
	return s.Store.Presence(ctx, timeout, node, p)
}

func start(t testing.TB, store remote.Store, p atonce.Policy, o *tiered.Options) *process {
	t.Helper()
	if o == nil {
		o = &tiered.Options{}
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	l := &link{Store: store}
	g, err := tiered.NewGroup(l, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := g.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	limiter, err := atonce.New(g, p)
	if err != nil {
		t.Fatal(err)
	}
	return &process{limiter, g, l}
}

// bubble runs a test in virtual time.
func bubble(t *testing.T, do func(t *testing.T)) {
	t.Helper()
	synctest.Test(t, do)
}

func ctx() context.Context { return context.Background() }

// acquire takes a place, which must be there.
func (p *process) acquire(t testing.TB, key string) *atonce.Place {
	t.Helper()
	place, err := p.Acquire(ctx(), key)
	if err != nil {
		t.Fatalf("Acquire: %v", err)
	}
	return place
}

// refused checks that a request gets no place, for a reason.
func (p *process) refused(t testing.TB, key string, why error) {
	t.Helper()
	if place, err := p.Acquire(ctx(), key); !errors.Is(err, why) {
		place.Release()
		t.Fatalf("Acquire: %v, want %v", err, why)
	}
}
