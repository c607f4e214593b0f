package standing

import (
	"fmt"
	"math/rand/v2"
	"testing"
)

// A model of one key whose requests carry different limits, for a release in which shares serve
// these too. Nothing uses the rule yet.
//
// Each limit is split: its share is R = ⌊φ·b⌋ and φ·r, and Redis has b − R and (1 − φ)·r. Redis
// goes by the largest burst and the largest rate of the last hold, each by itself. A place of a key
// remembers which limit used it last. For another one it is empty.
//
// Every limit that requests carry is split, also one whose share would hold no token. Its burst is
// whole in Redis then, and its rate is (1 − φ)·r: if it were r, the share of another limit with the
// same rate would come on top. For the same reason no least burst is split: b − R must not fall
// where b rises. Then no key has more than the largest burst and rate that its requests carry.

// carried is one limit, and how it is split.
type carried struct {
	burst, rate         float64 // tokens, and tokens per second
	size, shared        float64 // of all shares
	restBurst, restRate float64 // in Redis
	number              int
}

// carry splits a limit.
func carry(mistake string, burst, rate, eighths int) carried {
	phi, size := float64(eighths)/8, burst*eighths/8
	c := carried{burst: float64(burst), rate: float64(rate), size: float64(size)}
	c.shared, c.restBurst, c.restRate = phi*c.rate, c.burst-c.size, (1-phi)*c.rate
	switch {
	case mistake == "a small burst has its whole rate in Redis" && size == 0:
		c.restRate = c.rate
	case mistake == "a least burst is split" && burst < MinBurst:
		c.size, c.restBurst = 0, c.burst
	case mistake == "Redis has the whole burst":
		c.restBurst = c.burst
	case mistake == "Redis has the whole rate":
		c.restRate = c.rate
	}
	return c
}

// term is the burst or the rate by which Redis goes.
type term struct{ is, used float64 }

// call is a call that has a term of its own. A smaller one governs after a while only.
func (g *term) call(now, its, holds float64) {
	if its >= g.is || now-g.used > holds {
		*g = term{its, now}
	}
}

// mixedKey is one history of one key.
type mixedKey struct {
	*rand.Rand
	mistake string
	limits  []carried
	parts   []float64    // of each process
	places  []mixedPlace // of each process, or of each process and limit
	now     float64      // s

	level, at   float64 // of Redis
	burst, rate term

	most, mostRate float64 // an ideal bucket of the largest limit
	ideal, idealAt float64
}

type mixedPlace struct {
	empty  float64 // virtual time at which it was empty
	number int     // of the limit
}

// place returns where a process keeps a limit's share.
func (k *mixedKey) place(process int, c *carried) *mixedPlace {
	if k.mistake == "each limit has a place" {
		return &k.places[process*len(k.limits)+c.number]
	}
	return &k.places[process]
}

// share takes tokens from a share.
func (k *mixedKey) share(process int, c *carried, n float64) bool {
	f := k.parts[process]
	v, p := f*k.now, k.place(process, c)
	if p.number != c.number && k.mistake != "a place serves all limits" {
		p.number, p.empty = c.number, max(p.empty, v)
		if k.mistake == "another limit begins with a full share" {
			p.empty = v - f*c.size/c.shared
		}
	}
	after := max(p.empty, v-f*c.size/c.shared) + n/c.shared
	if c.size == 0 || after > v+1e-9 {
		return false
	}
	p.empty = after
	return true
}

// redis takes tokens from Redis.
func (k *mixedKey) redis(c *carried, n float64) bool {
	const holds = float64(hold) / tenths
	k.level, k.at = min(k.level+(k.now-k.at)*k.rate.is, k.burst.is), k.now
	before := k.burst.is
	k.burst.call(k.now, c.restBurst, holds)
	k.rate.call(k.now, c.restRate, holds)
	if k.mistake == "a rise mints" && k.burst.is > before {
		k.level += k.burst.is - before
	}
	k.level = min(k.level, k.burst.is)
	if n > c.restBurst || n > k.level+1e-9 {
		return false
	}
	k.level -= n
	return true
}

// admit takes tokens that were admitted from the ideal bucket, and reports whether it had them.
func (k *mixedKey) admit(n float64) bool {
	k.ideal, k.idealAt = min(k.ideal+(k.now-k.idealAt)*k.mostRate, k.most)-n, k.now
	return k.ideal >= -1e-6
}

// play plays a history, and says how it broke the limit.
func (k *mixedKey) play(requests int) string {
	eighths := 1 + k.IntN(most)
	for i := range 2 + k.IntN(3) {
		burst := 1 + k.IntN(40)
		if i > 0 && k.IntN(2) == 0 {
			burst = max(1, int(k.limits[0].burst)-1+k.IntN(3))
		}
		c := carry(k.mistake, burst, 1+k.IntN(8), eighths)
		c.number = i
		k.limits = append(k.limits, c)
		k.most, k.mostRate = max(k.most, c.burst), max(k.mostRate, c.rate)
	}
	k.parts = make([]float64, 1+k.IntN(3))
	for i := range k.parts {
		k.parts[i] = 1 / float64(len(k.parts))
	}
	k.places = make([]mixedPlace, len(k.parts)*len(k.limits))
	for i := range k.places {
		k.places[i].number = -1
	}
	first := k.limits[0]
	k.burst, k.rate, k.level, k.ideal = term{first.restBurst, 0}, term{first.restRate, 0}, first.restBurst, k.most
	process, c := 0, &k.limits[0]
	for i := range requests {
		if k.IntN(4) == 0 {
			process = k.IntN(len(k.parts))
		}
		if k.IntN(3) == 0 {
			c = &k.limits[k.IntN(len(k.limits))]
		}
		switch k.IntN(40) {
		case 0:
			k.now += 60 * k.Float64()
		case 1, 2, 3, 4, 5:
			k.now += k.Float64()
		}
		n := 1.0
		if k.IntN(8) == 0 {
			n = float64(1 + k.IntN(int(c.burst)))
		}
		if (k.share(process, c, n) || k.redis(c, n)) && !k.admit(n) {
			return fmt.Sprintf("request %d, at %.3f s: %.4f tokens too many; φ %d/8, limits %v",
				i, k.now, -k.ideal, eighths, k.limits)
		}
	}
	return ""
}

// Requests with different limits never have more of a key than the largest of them, and each
// mistake in the rule gives more.
func TestLimitsThatDifferByRequest(t *testing.T) {
	histories := 20_000
	if testing.Short() {
		histories = 1000
	}
	broken := func(mistake string, histories int) (int, string) {
		for seed := range histories {
			k := &mixedKey{Rand: rand.New(rand.NewPCG(uint64(seed), 56)), mistake: mistake}
			if how := k.play(600); how != "" {
				return seed, how
			}
		}
		return 0, ""
	}
	if seed, how := broken("", histories); how != "" {
		t.Errorf("seed %d: %s", seed, how)
	}
	for _, mistake := range []string{
		"a small burst has its whole rate in Redis", "a least burst is split", "Redis has the whole burst",
		"Redis has the whole rate", "each limit has a place", "a place serves all limits",
		"another limit begins with a full share", "a rise mints",
	} {
		if seed, how := broken(mistake, 20_000); how == "" {
			t.Errorf("%s: no history shows it", mistake)
		} else {
			t.Logf("%s: seed %d: %s", mistake, seed, how)
		}
	}
}
