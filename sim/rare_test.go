package sim_test

import (
	"fmt"
	"testing"
)

// The README says from how many requests a second of a key and replica on most decisions are made
// in memory: eight. With half as many most ask Redis.
func TestBusyKeysAreDecidedInMemory(t *testing.T) {
	const replicas = 3
	for perSecond, memory := range map[int]bool{4: false, 8: true, 16: true} {
		r := rehearse(t, fmt.Sprintf("name: busy\nlimits:\n  - {name: api, rate: 1000/s, burst: 1000}\nfleet: {n: %d}\n"+
			"traffic:\n  - {shape: poisson, limit: api, rate: %d/s}\nrun: 65s\nwarmup: 5s\nexpect: [over_admission <= 1]\n",
			replicas, perSecond*replicas), nil)
		asked := float64(count(r, "waited")) / float64(r.Metrics.Offered)
		calls := r.Metrics.RedisCalls / float64(perSecond*replicas)
		t.Logf("%d requests a second and replica: %.2f of them wait for Redis, %.2f calls each", perSecond, asked, calls)
		if memory != (calls < 0.5) {
			t.Errorf("%d requests a second and replica: %.2f calls each", perSecond, calls)
		}
	}
}
