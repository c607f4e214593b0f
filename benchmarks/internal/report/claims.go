package report

import (
	"fmt"
	"strings"
)

// Claims renders the sentences about speed. Each has a quotient that `make ratios` measures too, with
// more care. It is an error when the run lacks one of the figures.
func (r *Results) Claims() (string, error) {
	var missing []string
	get := func(load, limiter string, goroutines int, unit string) float64 {
		x, ok := r.Median(load, limiter, goroutines, unit)
		if !ok {
			missing = append(missing, fmt.Sprintf("%s of %s under %s with %d", unit, limiter, load, goroutines))
		}
		return x
	}
	hot := func(limiter string, goroutines int, unit string) float64 {
		return get("hot", limiter, goroutines, unit)
	}
	cold := func(limiter, unit string) float64 { return get("cold", limiter, 16, unit) }
	const ours, bare, peer, leasing = "ours", "x-time-rate", "redis_rate", "vearne-batch-100"

	text := strings.Join([]string{
		fmt.Sprintf("- A decision about a hot key takes %s and %s allocations: %s what a bare x/time/rate limiter takes. With "+
			"two goroutines on two cores it is %s.",
			duration(hot(ours, 1, wall)), number(hot(ours, 1, allocs)), times(hot(ours, 1, wall)/hot(bare, 1, wall)),
			times(hot(ours, 2, wall)/hot(bare, 2, wall))),
		fmt.Sprintf("- A hot key at full speed costs %s Redis commands per decision. In the client, redis_rate needs %s the "+
			"processor time of this limiter. vearne/ratelimit, in batches of 100, needs %s.",
			number(hot(ours, 16, commands)), times(hot(peer, 16, client)/hot(ours, 16, client)),
			times(hot(leasing, 16, client)/hot(ours, 16, client))),
		fmt.Sprintf("- 16 goroutines that ask for cold keys get %s as many decisions per second as with redis_rate, for %s as much "+
			"processor time in Redis.",
			times(cold(peer, wall)/cold(ours, wall)), times(cold(ours, server)/cold(peer, server))),
	}, "\n") + "\n"
	if missing != nil {
		return "", fmt.Errorf("the run lacks %s", strings.Join(missing, ", "))
	}
	return text, nil
}

// times writes a quotient: two digits after the point are more than a busy machine knows.
func times(x float64) string {
	if x < 10 {
		return fmt.Sprintf("%.2f times", x)
	}
	return fmt.Sprintf("%.0f times", x)
}
