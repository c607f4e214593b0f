package benchmarks

import (
	"math"
	"math/rand/v2"
	"time"
)

// Users is a load as services have it: users who send requests to a fleet. Nobody waits for an
// answer before the next request is made, so a slow limiter gets no fewer of them.
type Users struct {
	First, Keys int     // the users' keys
	Zipf        float64 // user k sends a part ∝ 1/k^Zipf of all requests; 0 means that all send as many
	Rate        float64 // requests per second of all users together
	Sticky      bool    // each user always meets the same process; otherwise one at random
}

// arrival is a request that is due.
type arrival struct {
	at      time.Duration // since the start of the load
	key     int           // of the load's, from 0
	process int
}

// schedule draws the requests of a time. The gaps between them are exponential, as those of many
// users who know nothing of each other. The same seed gives the same requests.
func (u Users) schedule(seed uint64, length time.Duration) (all []arrival) {
	random := rand.New(rand.NewPCG(seed, 2))
	key := func() int { return random.IntN(u.Keys) }
	if u.Zipf > 0 {
		zipf := rand.NewZipf(random, u.Zipf, 1, uint64(u.Keys-1))
		key = func() int { return int(zipf.Uint64()) }
	}
	for at := 0.0; ; {
		at += random.ExpFloat64() / u.Rate
		if at >= length.Seconds() {
			return all
		}
		a := arrival{at: time.Duration(at * float64(time.Second)), key: key(), process: random.IntN(fleetSize)}
		if u.Sticky {
			a.process = a.key % fleetSize
		}
		all = append(all, a)
	}
}

// rates returns the expected requests per second of each user.
func (u Users) rates() []float64 {
	all, sum := make([]float64, u.Keys), 0.0
	for k := range all {
		all[k] = math.Pow(float64(k+1), -u.Zipf)
		sum += all[k]
	}
	for k := range all {
		all[k] *= u.Rate / sum
	}
	return all
}
