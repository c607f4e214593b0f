package sim

import (
	"context"
	"net"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"
)

// go-redis logs a line for each connection that it cannot make: some thousand in a scenario on the Lua engine. It has
// one logger for the whole program, which cannot be read, so Run could not restore a user's logger. Therefore it is set
// here, once, before any test begins: to go-redis' own, less the lines about connections that failed because a scenario
// says so. A logger that is set later stays.
func init() { redis.SetLogger(logging.NewBlacklistLogger([]string{simulatedPrefix})) }

const simulatedPrefix = "simulated: "

// simulated is an error of a network that a scenario has broken.
type simulated struct{ error }

func (e simulated) Error() string { return simulatedPrefix + e.error.Error() }
func (e simulated) Unwrap() error { return e.error }

// dialer is one for go-redis.
type dialer func(ctx context.Context, network, address string) (net.Conn, error)

// quietly marks the errors of a dialer as simulated.
func quietly(dial dialer) dialer {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		c, err := dial(ctx, network, address)
		if err != nil {
			return nil, simulated{err}
		}
		return c, nil
	}
}
