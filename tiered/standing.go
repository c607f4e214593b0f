package tiered

import "fmt"

// Standing says whether processes have standing shares: see [Policy].
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
