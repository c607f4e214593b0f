package measure

import "time"

// Keys is how many keys the meter keeps: what it takes in memory shows in no figure.
func (m *Meter) Keys() (n int) {
	for _, k := range m.keys {
		n += len(k.all)
	}
	return n
}

// Forget sweeps now. Else it comes only with thousands of keys.
func (m *Meter) Forget(now time.Duration) {
	for _, k := range m.keys {
		k.forget(now)
	}
}

// Recovered is the figure for steps of 100 ms, of which each admits what it says and should admit
// as much as ideal.
func Recovered(steps int, ideal int64, admitted func(i int) int64) time.Duration {
	bins := make([]bin, steps)
	for i := range bins {
		bins[i] = bin{admitted(i), ideal}
	}
	return recovered(bins)
}
