package tiered_test

import (
	"context"
	"testing"

	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// What All joined can be changed, joined with more and charged like one use, and what it was made of stays as it was.
func TestJoinedUsesAreAUse(t *testing.T) {
	ctx := context.Background()
	l := several(t, remote.NewMemory(), nil, direct("a", 100), direct("b", 100))
	six := make([]tiered.Use, 0, 6)
	for _, key := range []string{"1", "2", "3", "4", "5", "6"} {
		six = append(six, l[0].For(key))
	}
	pair, many := tiered.All(l[1].For("x"), l[0].For("y")), tiered.All(six...)
	each := make([]tiered.Decision, 9)
	tell := func(u tiered.Use) { u.AllowEach(ctx, each) }

	tell(tiered.All(pair.N(3), many.N(2), l[0].For("z")))
	for i, want := range []struct {
		key  string
		cost int64
	}{{"x", 3}, {"y", 3}, {"1", 2}, {"2", 2}, {"3", 2}, {"4", 2}, {"5", 2}, {"6", 2}, {"z", 1}} {
		if d := each[i]; d.Key != want.key || d.Cost != want.cost || d.Reason != tiered.Granted {
			t.Errorf("use %d: %v of %q, want %+v", i, d, d.Key, want)
		}
	}
	tell(tiered.All(pair, many))
	for i, d := range each[:8] {
		if d.Cost != 1 {
			t.Errorf("use %d costs %d after a copy of it was changed", i, d.Cost)
		}
	}
	if err := tiered.All(pair.N(5), l[0].For("")).Charge(); err == nil {
		t.Error("a use that is not valid was charged")
	}
	if d := l[1].Peek(ctx, "x"); d.Remaining != 96 {
		t.Errorf("%v, want 96 left: a charge that is not valid takes nothing", d)
	}
	if err := pair.N(5).Charge(); err != nil {
		t.Fatal(err)
	}
	for i, key := range []string{"y", "x"} {
		if d := l[i].Peek(ctx, key); d.Remaining != 91 {
			t.Errorf("%v of %q, want 91 left", d, key)
		}
	}
}
