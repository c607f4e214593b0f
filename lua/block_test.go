package lua_test

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/tiered-limiter/tiered-limiter/lua"
)

// The default block is the documented part of the window: 1/40 below a minute, and 1/60 from a
// minute on.
func TestDefaultBlock(t *testing.T) {
	for _, c := range []struct{ per, block time.Duration }{
		{time.Microsecond, time.Microsecond},
		{41 * time.Microsecond, 2 * time.Microsecond},
		{time.Second, 25 * time.Millisecond},
		{59 * time.Second, 1475 * time.Millisecond},
		{time.Minute, time.Second},
		{time.Hour, time.Minute},
	} {
		if got := lua.DefaultBlock(c.per); got != c.block {
			t.Errorf("a window of %v counts in blocks of %v, want %v", c.per, got, c.block)
		}
	}
}

// The default blocks are whole microseconds, and no more of them are needed than the documentation
// says.
func TestDefaultBlocksCoverTheWindow(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		per := time.Duration(rapid.Int64Range(1, int64(lua.LongestWindow)/3).Draw(t, "per")) * time.Microsecond
		most := time.Duration(40)
		if per >= time.Minute {
			most = 60
		}
		block := lua.DefaultBlock(per)
		if n := (per + block - 1) / block; n > most || block%time.Microsecond != 0 {
			t.Fatalf("a window of %v counts in %d blocks of %v", per, n, block)
		}
	})
}
