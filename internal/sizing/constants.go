package main

// constant is one number behind the knobs Size and Period, and how it is judged.
type constant struct {
	name string
	why  string // what the table shows
	file string
	line string // that has it, without the white space around it
	// values that it is tried at; one of them is the shipped one.
	values []value
	see    []string // "load|figure" of TestSizing
}

// value is a constant's value; line is the line that has it, empty for the shipped one.
type value struct{ label, line string }

// Loads and figures, as TestSizing prints them.
const (
	big, plain, tight     = "0.8 of 20000 per s", "0.8 of 1000 per s", "0.95 of 1000 per s, burst 200"
	stalls, stalls4000    = "0.8 of 20000 per s, stalls", "0.8 of 20000 per s, burst 4000, stalls"
	broad                 = "0.8 of 20000 per s, burst 80000"
	over, slow            = "3 times 1000 per s, burst 200", "3 times 10 per s"
	moving12, moving08    = "1.2 times 1000 per s, burst 200, moving", "0.8 of 1000 per s, burst 200, moving"
	surges200, surges1000 = "surges, burst 200", "surges, burst 1000"
	little, littleMoving  = "0.9 of 40 per s", "1.2 times 10 per s, moving"
	lukewarm, far, tiny   = "6 per s, key and process", "far away, short period", "tiny burst"

	use, calls, price = "|utilisation %", "|calls per 1000 decisions", "|calls per 1000 tokens"
	waited, burnt     = "|waited per million", "|burnt per million tokens"
	parked            = "|most parked in one process, % of the burst"
)

var constants = []constant{
	{
		name: "`Period`, 250 ms",
		why:  "Half the period costs nearly twice the calls, twice the period parks twice as much. Where burst/rate is a second or less, a longer one changes nothing: the next constant counts.",
		file: "tiered/policy.go", line: "DefaultPeriod = 250 * time.Millisecond",
		values: []value{{"125 ms", "DefaultPeriod = 125 * time.Millisecond"}, {"**250 ms**", ""}, {"500 ms", "DefaultPeriod = 500 * time.Millisecond"}},
		see:    []string{broad + calls, broad + waited, broad + parked, plain + calls, plain + waited, slow + price, surges1000 + use},
	},
	{
		name:   "period: at most so much of burst/rate",
		why:    "Tokens that wait in Redis while processes hold off are lost when they reach the burst. At 1/8 nothing is gained below the limit, and calls at overload nearly double.",
		file:   "local/policy.go",
		line:   "return max(min(t, p.wait(float64(p.Cap)/4)), 1)",
		values: []value{{"1/8", "return max(min(t, p.wait(float64(p.Cap)/8)), 1)"}, {"**1/4**", ""}, {"1/2", "return max(min(t, p.wait(float64(p.Cap)/2)), 1)"}, {"1", "return max(min(t, p.wait(float64(p.Cap))), 1)"}},
		see:    []string{over + use, over + price, tight + use, moving12 + use, moving12 + price, surges200 + use},
	},
	{
		name: "period: doubled up to, while trips are long",
		why:  "Round trips of 15 ms and a period of 20 ms: each doubling nearly halves the calls. No more than four, for a lease lives for four periods, and so long a crash parks it.",
		file: "local/policy.go", line: "for t < 4*p.Period && trip > t/4 {",
		values: []value{{"1×", "for t < 1*p.Period && trip > t/4 {"}, {"2×", "for t < 2*p.Period && trip > t/4 {"}, {"**4×**", ""}, {"8×", "for t < 8*p.Period && trip > t/4 {"}},
		see:    []string{far + calls, far + waited, far + use},
	},
	{
		name: "period: doubled when a trip is more than",
		why:  "It hardly matters where round trips are long: the period ends at four times in each case.",
		file: "local/policy.go", line: "for t < 4*p.Period && trip > t/4 {",
		values: []value{{"T/8", "for t < 4*p.Period && trip > t/8 {"}, {"**T/4**", ""}, {"T/2", "for t < 4*p.Period && trip > t/2 {"}},
		see:    []string{far + calls, far + waited, far + use},
	},
	{
		name: "demand: time constant of a rise",
		why:  "A faster rise serves a process that becomes hot with fewer calls, but follows noise: at 0.95 of a limit it refuses one in a thousand.",
		file: "local/demand.go", line: "riseTime = 300 * time.Millisecond",
		values: []value{{"0.15 s", "riseTime = 150 * time.Millisecond"}, {"**0.3 s**", ""}, {"0.6 s", "riseTime = 600 * time.Millisecond"}},
		see:    []string{tight + use, moving12 + use, moving08 + calls, moving08 + waited, surges200 + use, surges200 + price},
	},
	{
		name: "demand: time constant of a fall",
		why:  "What is forgotten too soon is asked for again: a fall as fast as the rise gains two points in surges, and costs a fifth more calls everywhere else.",
		file: "local/demand.go", line: "fallTime = time.Second",
		values: []value{{"0.3 s, as a rise", "fallTime = 300 * time.Millisecond"}, {"0.5 s", "fallTime = 500 * time.Millisecond"}, {"**1 s**", ""}, {"2 s", "fallTime = 2 * time.Second"}},
		see:    []string{tight + calls, tight + waited, moving12 + use, moving08 + waited, surges200 + use, surges200 + price, surges1000 + burnt},
	},
	{
		name: "leasing begins at requests per period",
		why:  "Sooner, fewer requests wait; but a small burst then lies in processes that do not need it, while another one is refused.",
		file: "local/size.go", line: "return s.need >= 2*s.unit",
		values: []value{{"1", "return s.need >= 1*s.unit"}, {"**2**", ""}, {"4", "return s.need >= 4*s.unit"}},
		see:    []string{lukewarm + calls, lukewarm + waited, moving08 + waited, little + use, little + calls, little + waited, littleMoving + use},
	},
	{
		name: "leasing ends below",
		why:  "Ending where it begins, a key at the threshold goes to and fro. Later, a small burst is parked for longer.",
		file: "local/size.go", line: "return s.need >= s.unit",
		values: []value{{"0.5", "return s.need >= 0.5*s.unit"}, {"**1**", ""}, {"2, as it begins", "return s.need >= 2.0*s.unit"}},
		see:    []string{lukewarm + calls, lukewarm + waited, little + use, little + calls, little + waited},
	},
	{
		name:   "a lease and the low-water mark: at most so much of the burst",
		why:    "It bounds what a crash burns, which is twice this. Less costs calls where one process has all the demand; more changes nothing, for the period ends at the refill of a quarter.",
		file:   "local/policy.go",
		line:   "func (p *Policy) quarter() int64 { return (p.Cap + 3) / 4 }",
		values: []value{{"1/16", "func (p *Policy) quarter() int64 { return (p.Cap + 15) / 16 }"}, {"1/8", "func (p *Policy) quarter() int64 { return (p.Cap + 7) / 8 }"}, {"**1/4**", ""}, {"1/2", "func (p *Policy) quarter() int64 { return (p.Cap + 1) / 2 }"}},
		see:    []string{moving08 + calls, moving08 + waited, moving12 + use, moving12 + price, tiny + use, tiny + calls},
	},
	{
		name:   "low-water mark: standard deviations of what a round trip uses",
		why:    "They count where round trips are long. More than three spare the last few of a million.",
		file:   "local/size.go",
		line:   "low := int64(math.Ceil(flight + 3*math.Sqrt(flight)))",
		values: []value{{"1.5", "low := int64(math.Ceil(flight + 1.5*math.Sqrt(flight)))"}, {"**3**", ""}, {"6", "low := int64(math.Ceil(flight + 6*math.Sqrt(flight)))"}},
		see:    []string{plain + calls, plain + waited, stalls4000 + waited, tight + calls, tight + waited, far + waited},
	},
	{
		name:   "low-water mark: so much of the grant at least",
		why:    "One call in 200 takes 10 ms more in the columns with stalls: the 99th percentile knows nothing of it. A half would spare the last few of a million, and makes more wait near the limit.",
		file:   "local/size.go",
		line:   "low = min(max(low, grant/4), p.quarter())",
		values: []value{{"0: the formula alone", "low = min(low, p.quarter())"}, {"1/8", "low = min(max(low, grant/8), p.quarter())"}, {"**1/4**", ""}, {"1/2", "low = min(max(low, grant/2), p.quarter())"}},
		see:    []string{big + calls, big + waited, stalls + waited, stalls4000 + calls, stalls4000 + waited, tight + calls, tight + waited},
	},
	{
		name:   "hold-off after a short grant, periods",
		why:    "Without it overload costs 2.5 calls per token. Half of it costs 0.36, more than the 0.3 that we promise, for two points in surges; twice as much loses a tenth of the limit. The jitter costs nothing here, and keeps processes apart that were refused together.",
		file:   "local/reply.go",
		line:   "renewal = c.sent + b.Policy().between(0.75, 1.25, b.Policy().holdOff(c.period))",
		values: []value{{"none", "renewal = 0"}, {"0.375 to 0.625", "renewal = c.sent + b.Policy().between(0.375, 0.625, b.Policy().holdOff(c.period))"}, {"1, no jitter", "renewal = c.sent + b.Policy().between(1, 1, b.Policy().holdOff(c.period))"}, {"**0.75 to 1.25**", ""}, {"1.5 to 2.5", "renewal = c.sent + b.Policy().between(1.5, 2.5, b.Policy().holdOff(c.period))"}},
		see:    []string{over + use, over + price, moving12 + use, moving12 + price, surges200 + use, surges200 + price, tight + use},
	},
	{
		name: "longest denial",
		why:  "Of a key that is refused for an hour. What is returned, refunded or raised is seen within this time.",
		file: "local/denial.go", line: "const longestDenial = 5 * time.Second",
		values: []value{{"2.5 s", "const longestDenial = 2500 * time.Millisecond"}, {"**5 s**", ""}, {"10 s", "const longestDenial = 10 * time.Second"}},
		see:    []string{"a denied key|calls per s"},
	},
	{
		name:   "idle: a lease goes back after periods",
		why:    "Never: what lies in processes that are no longer asked is missing to the one that is. Sooner than 2, a key that is asked for now and then gives back what it needs next.",
		file:   "local/policy.go",
		line:   "func idle(period time.Duration) time.Duration { return max(2*period, minIdle) }",
		values: []value{{"1", "func idle(period time.Duration) time.Duration { return max(period, minIdle) }"}, {"**2**", ""}, {"4", "func idle(period time.Duration) time.Duration { return max(4*period, minIdle) }"}, {"never", "func idle(time.Duration) time.Duration { return time.Hour }"}},
		see:    []string{moving12 + use, moving12 + price, moving08 + use, moving08 + calls, lukewarm + calls},
	},
	{
		name: "idle: never sooner than",
		why:  "Only where the burst is refilled within 20 ms, and there it hardly matters: the calls are direct takes.",
		file: "local/policy.go", line: "minIdle = 10 * time.Millisecond",
		values: []value{{"5 ms", "minIdle = 5 * time.Millisecond"}, {"**10 ms**", ""}, {"20 ms", "minIdle = 20 * time.Millisecond"}},
		see:    []string{tiny + use, tiny + calls, moving08 + calls},
	},
	{
		name: "life of a lease: at least",
		why:  "Measured, it hardly matters while leases in use are prolonged; it is long for the pauses of a process and its clock, which no load here has.",
		file: "local/policy.go", line: "minTTL = time.Second",
		values: []value{{"0.5 s", "minTTL = time.Second / 2"}, {"**1 s**", ""}, {"2 s", "minTTL = 2 * time.Second"}},
		see:    []string{surges1000 + burnt, surges1000 + use, lukewarm + calls, lukewarm + burnt, moving08 + calls},
	},
	{
		name:   "a lease in use is seen to before its end: so much of its life",
		why:    "A lease that is used too slowly to be renewed would burn what is left. An eighth is 125 ms, a quarter leaves time for a call that fails and is repeated.",
		file:   "local/life.go",
		line:   "return time.Duration(b.deadline.Load()) - b.Policy().ttl(b.Policy().period(0))/4",
		values: []value{{"0: at its end", "return time.Duration(b.deadline.Load())"}, {"1/8", "return time.Duration(b.deadline.Load()) - b.Policy().ttl(b.Policy().period(0))/8"}, {"**1/4**", ""}, {"1/2", "return time.Duration(b.deadline.Load()) - b.Policy().ttl(b.Policy().period(0))/2"}},
		see:    []string{surges1000 + burnt, surges1000 + price, lukewarm + burnt, lukewarm + calls},
	},
	{
		name: "a refund waits for a call to ride on",
		why:  "Half the delay brings the token back 7 ms sooner, for a fourteenth more calls.",
		file: "local/call.go", line: "const refundDelay = 25 * time.Millisecond",
		values: []value{{"12.5 ms", "const refundDelay = 12500 * time.Microsecond"}, {"**25 ms**", ""}, {"50 ms", "const refundDelay = 50 * time.Millisecond"}},
		see:    []string{"canceled reservations|calls per reservation", "canceled reservations|ms until the token is back"},
	},
	{
		name: "round trips that the 99th percentile is of",
		why:  "Fewer miss what is rare. More change little, and remember a slow time for twice as long.",
		file: "tiered/clock.go", line: "tripSamples = 128",
		values: []value{{"32", "tripSamples = 32"}, {"64", "tripSamples = 64"}, {"**128**", ""}, {"256", "tripSamples = 256"}},
		see:    []string{big + waited, stalls4000 + calls, stalls4000 + waited, far + calls, far + waited},
	},
}
