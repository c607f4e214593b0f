package sim

import (
	"context"
	"os"
	"testing"

	"github.com/redis/go-redis/v9"
)

// Main runs body where scenarios can be run, in an ordinary program, and exits with the status that it returns. Call it
// last in main, when the command line is read: it hides os.Args.
//
// A bubble belongs to a test, so the program becomes one: testing.Main is exported for those who imitate go test, and
// this is the only use of it. Where a release of Go should take it away, a test that calls [Run] does the same.
func Main(body func(t *testing.T) int) {
	Child()
	redis.SetLogger(silence{}) // it has a line for each connection that could not be made: that is what we came for
	os.Args = os.Args[:1]      // package testing would read the flags
	match := func(string, string) (bool, error) { return true, nil }
	testing.Main(match, []testing.InternalTest{{Name: "sim", F: func(t *testing.T) {
		os.Exit(body(t)) // else package testing prints a verdict of its own
	}}}, nil, nil)
}

// silence is a logger of go-redis that says nothing.
type silence struct{}

func (silence) Printf(context.Context, string, ...any) {}
