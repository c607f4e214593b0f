package tiered_test

import (
	"context"
	"go/ast"
	"go/doc"
	"go/parser"
	"go/token"
	"math"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tiered-limiter/tiered-limiter/lua"
	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// tape is a store that remembers the calls, as Redis executes them.
type tape struct {
	*distant
	mu    sync.Mutex
	calls []taped
}

type taped struct {
	lua.Call
	at    time.Time // when it left
	reply lua.Reply
}

func newTape() *tape { return &tape{distant: newDistant(ms)} }

func (s *tape) Run(ctx context.Context, timeout time.Duration, calls []lua.Call, results []remote.Result) {
	at := time.Now()
	s.distant.Run(ctx, timeout, calls, results)
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, c := range calls {
		s.calls = append(s.calls, taped{c, at, results[i].Reply})
	}
}

// since returns what left at a time or later.
func (s *tape) since(at time.Time) []taped {
	s.mu.Lock()
	defer s.mu.Unlock()
	var late []taped
	for _, c := range s.calls {
		if !c.at.Before(at) {
			late = append(late, c)
		}
	}
	return late
}

func settle(actual int64) func(tiered.Reservation) {
	return func(r tiered.Reservation) { r.Settle(actual) }
}

func TestSettle(t *testing.T) {
	for _, c := range []struct {
		before, cost, actual int64
		level                int64 // 50 ms later, of a burst of 10
		calls                int
	}{
		{0, 5, 2, 8, 1},
		{0, 5, 5, 5, 0},
		{0, 5, 0, 10, 1},
		{0, 5, -3, 10, 1},
		{0, 5, math.MinInt64, 10, 1},
		{0, 5, 8, 2, 1},
		{3, 5, 12, -5, 1},
		{3, 5, 500, -10, 1}, // a burst below zero at most
		{3, 5, math.MaxInt64, -10, 1},
		{5, 5, math.MaxInt64, -10, 1},
	} {
		synctest.Test(t, func(t *testing.T) {
			store := newTape()
			l := limiter(t, store, tiered.Policy{Limit: tiered.PerDay(10)}, nil)
			time.Sleep(10 * ms)
			if c.before > 0 {
				want(t, l.AllowN(ctx, "k", c.before), tiered.Granted)
			}
			r := l.ReserveN(ctx, "k", c.cost)
			want(t, r.Decision, tiered.Granted)
			start := time.Now()
			r.Settle(c.actual)
			var all sync.WaitGroup // and no other end counts, not even of a copy
			for range 10 {
				all.Go(r.Cancel)
				all.Go(func() { r.Settle(c.cost + 1) })
			}
			all.Wait()
			time.Sleep(tiered.DefaultTimeout)
			if n := level(t, store.Memory, l, "k"); n != c.level {
				t.Errorf("%+v: %d in Redis", c, n)
			}
			time.Sleep(time.Minute)
			if calls := store.since(start); len(calls) != c.calls {
				t.Errorf("%+v: %d calls: %+v", c, len(calls), calls)
			}
			if n := level(t, store.Memory, l, "k"); n != c.level {
				t.Errorf("%+v: %d in Redis a minute later", c, n)
			}
			books(t, l.Group())
		})
	}
}

// Who knows x/time/rate expects Reserve to promise tokens of the future. The first sentence of each
// one's documentation, which is what an editor and a list of methods show, says that it does not.
func TestReserveSaysFirstThatItTakesNow(t *testing.T) {
	found := 0
	for _, name := range []string{"reserve.go", "uses.go"} {
		file := must(parser.ParseFile(token.NewFileSet(), name, nil, parser.ParseComments))
		for _, d := range file.Decls {
			f, ok := d.(*ast.FuncDecl)
			if !ok || f.Recv == nil || f.Name.Name != "Reserve" && f.Name.Name != "ReserveN" {
				continue
			}
			found++
			if first := new(doc.Package).Synopsis(f.Doc.Text()); !strings.Contains(first, "never reserves the future") {
				t.Errorf("%s: %s: %q", name, f.Name, first)
			}
		}
	}
	if found != 3 {
		t.Errorf("%d methods", found)
	}
}
