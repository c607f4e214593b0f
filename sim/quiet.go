package sim

import (
	"context"
	"net"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"
)

// go-redis writes a line to stderr for each connection that it cannot make, some thousand in a scenario on the Lua engine, and
// that is what we came for. Its one logger is the whole program's and cannot be asked for, so that Run could not put back
// what a user has set. Therefore it is set here, before any test begins, and never again: the one that go-redis has by itself,
// less the lines about connections that failed because a scenario says so. Whoever sets another afterwards keeps theirs.
func init() { redis.SetLogger(logging.NewBlacklistLogger([]string{simulatedPrefix})) }

const simulatedPrefix = "simulated: "

// simulated is an error of a network that a scenario has broken.
type simulated struct{ error }

func (e simulated) Error() string { return simulatedPrefix + e.error.Error() }
func (e simulated) Unwrap() error { return e.error }

// silence is a logger of go-redis that says nothing.
type silence struct{}

func (silence) Printf(context.Context, string, ...any) {}

// dialer is one for go-redis.
type dialer func(ctx context.Context, network, address string) (net.Conn, error)

// quietly is a dialer of a broken network.
func quietly(dial dialer) dialer {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		c, err := dial(ctx, network, address)
		if err != nil {
			return nil, simulated{err}
		}
		return c, nil
	}
}
