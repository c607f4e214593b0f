package tiered_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// What is printed or marshaled does not say a key, which may be a secret, but it says the policy.
func TestPrintedValuesHaveNoKey(t *testing.T) {
	const secret = "ann@example.com"
	l := limiter(t, remote.NewMemory(), tiered.Policy{Limit: tiered.PerSecond(10)}, nil)
	use := l.For(secret).N(3)
	var stats tiered.PolicyStats
	stats.Top = []tiered.RefusedKey{{Key: secret, Limited: 7}}
	for _, c := range []struct {
		of   any
		says string
	}{
		{tiered.Event{What: "lease", Policy: "api", Key: secret, Asked: 3}, "api"},
		{&tiered.Event{What: "state loss", Policy: "api", Key: secret}, "api"},
		{use, "api"},
		{tiered.All(use, l.For(secret+"2")), "api"},
		{[]tiered.Use{use}, "api"},
		{tiered.Decision{Policy: "api", Key: secret}, "api"},
		{tiered.Reservation{Decision: tiered.Decision{Policy: "api", Key: secret}}, "api"},
		{stats, "7"},
	} {
		for _, verb := range []string{"%v", "%+v", "%s"} {
			if text := fmt.Sprintf(verb, c.of); strings.Contains(text, "ann") || !strings.Contains(text, c.says) {
				t.Errorf("%T by %s: %s", c.of, verb, text)
			}
		}
	}
	if b, err := json.Marshal(tiered.Event{Key: secret}); err != nil || strings.Contains(string(b), "ann") {
		t.Errorf("%s, %v", b, err)
	}
}
