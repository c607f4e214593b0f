package benchmarks

import (
	"time"

	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// perSecond returns the rate of a limit in tokens per second.
func perSecond(l tiered.Limit) float64 { return float64(l.Tokens) / l.Per.Seconds() }

// Load is a kind of work: the keys, the goroutines, and the expected answers.
type Load struct {
	Name       string
	Keys       int // asked for at random
	Limit      tiered.Limit
	Goroutines []int  // side by side, one measurement for each
	Expect     Expect // of every answer
}

// Expect is what must hold for a load's answers. Otherwise they were not the work to be measured.
type Expect struct {
	Refused bool // by the limit; else admitted
	Asking  bool // most decisions wait for Redis; else ours and the in-process ones decide at home
	Down    bool // Redis is gone, and the fail mode decides
}

var (
	// plenty is a limit that is never reached: about fifty times what one process can decide.
	plenty = tiered.PerSecond(1e9)

	// stock is never reached either, and its rate is so low that a lease may last.
	stock = tiered.Limit{Tokens: 1e9, Per: 24 * time.Hour}
)

// The loads.
var (
	// Hot is one key that is used all the time and never refused.
	Hot = Load{Name: "hot", Keys: 1, Limit: plenty, Goroutines: []int{1, 2, 16}}

	// Denied is one key that is used all the time and was exhausted long ago.
	Denied = Load{
		Name: "denied", Keys: 1, Limit: tiered.PerHour(100), Goroutines: []int{1, 16},
		Expect: Expect{Refused: true},
	}

	// Cold is keys that are each used about once a second, as with a limiter per user. With its
	// limit the buckets live long enough in Redis to be counted afterwards.
	Cold = Load{
		Name: "cold", Keys: 100_000, Limit: tiered.Limit{Tokens: 1000, Per: 24 * time.Hour}, Goroutines: []int{1, 16},
		Expect: Expect{Asking: true},
	}

	// Warm is as many keys, all of which the process can decide without a call: it measures the
	// look-up.
	Warm = Load{Name: "warm", Keys: 100_000, Limit: stock, Goroutines: []int{1, 2}}

	// Down is one key while Redis is gone and the breaker is open.
	Down = Load{Name: "down", Keys: 1, Limit: plenty, Goroutines: []int{1, 2}, Expect: Expect{Down: true}}
)

// Loads are all loads.
var Loads = []Load{Hot, Denied, Cold, Warm, Down}
