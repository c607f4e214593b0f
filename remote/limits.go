package remote

// The ends of what every script takes; times in µs. Validation goes by them, so that no call of a policy that it
// accepts is refused. With all of them an instant plus a period stays below 2⁵³, where the scripts' numbers stop
// being exact.
const (
	MostTokens = 1 << 40 // a cap, tokens per period, and what a lease holds: sums over thousands of leases stay exact
	MostLimits = 8       // of a bucket

	LongestPeriod = 1 << 52 // 142 years; levels are doubles, and the longest period of a window is less
	LongestLease  = 1 << 50 // 35 years

	MostSpan      = 512     // blocks of a SlidingWindow
	LongestWindow = 1 << 51 // all of them together
)
