package report_test

import (
	"fmt"
	"testing"

	"pgregory.net/rapid"

	"github.com/tiered-limiter/tiered-limiter/internal/report"
)

// Requests are counted whatever they cost, with what is taken back, and a request of one token
// makes no counts.
func TestRequestsOfTokens(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var r report.Requests
		var tokens, requests [report.Kinds]int64
		large := false
		for range rapid.IntRange(0, 50).Draw(t, "requests") {
			k := report.Kind(rapid.IntRange(int(report.Granted), int(report.Kinds)-1).Draw(t, "kind"))
			n := rapid.Int64Range(1, 3).Draw(t, "tokens")
			key := fmt.Sprint(rapid.IntRange(0, 20).Draw(t, "key"))
			times := int64(1)
			if requests[k] > 0 && (k > report.Blocked || tokens[k] >= n) && rapid.Bool().Draw(t, "take back") {
				times = -1
			}
			requests[k] += times
			if k <= report.Blocked {
				tokens[k] += times * n
			}
			large = large || n > 1 || k > report.Blocked
			r.Add(key, k, n, times)
		}
		for k := report.Granted; k < report.Kinds; k++ {
			if got := r.Of(k, tokens[k]); got != max(requests[k], 0) {
				t.Errorf("%d requests of kind %d, want %d", got, k, requests[k])
			}
		}
		if made := r.Made(); made != large {
			t.Errorf("counts: %v, large requests: %v", made, large)
		}
	})
}
