package promlimit

// NewHistogram shows how a histogram is written, because no test waits for durations of each bucket
// up to 2^63 ns.
var NewHistogram = newHistogram
