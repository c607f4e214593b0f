package tiered

import (
	"fmt"
	"time"
)

// Standing says whether the processes have standing shares of a policy's limits: see [Policy].Standing.
type Standing uint8

// The values of Standing.
const (
	StandingOff   Standing = iota // Redis has the whole limit
	StandingSplit                 // Redis has 7/8 of the limit; nobody uses the rest. For the deploy between Off and On
	StandingOn                    // Redis has 7/8 of the limit, and the processes share the rest
)

var standings = [...]string{StandingOff: "off", StandingSplit: "split", StandingOn: "on"}

// String returns "off", "split" or "on".
func (s Standing) String() string {
	if int(s) < len(standings) {
		return standings[s]
	}
	return fmt.Sprintf("standing %d", uint8(s))
}

// MarshalText returns what String does. An error means that s is none of the values.
func (s Standing) MarshalText() ([]byte, error) {
	if int(s) >= len(standings) {
		return nil, fmt.Errorf("tiered: Standing is %d: must be StandingOff, StandingSplit or StandingOn", uint8(s))
	}
	return []byte(s.String()), nil
}

// UnmarshalText reads what MarshalText returns: "off", "split" or "on".
func (s *Standing) UnmarshalText(text []byte) error {
	for i, name := range standings {
		if name == string(text) {
			*s = Standing(i)
			return nil
		}
	}
	return fmt.Errorf("tiered: Standing is %.80q: must be off, split or on", text)
}

// StandingStats are about the standing shares of this process, of all policies that have some.
type StandingStats struct {
	Fraction   float64       // part of all standing shares that this process leases from Redis: 0 … 1
	Left       time.Duration // how long that lease still lasts; it is renewed every 3 s
	Members    int64         // processes that have a part of them, as last seen
	Quarantine bool          // the table of shares in Redis is less than 65 s old: no process gets more than it had before
}
