package ratetext_test

import (
	"testing"

	"github.com/tiered-limiter/tiered-limiter/internal/ratetext"
)

// What people write elsewhere names what they mean.
func TestMeant(t *testing.T) {
	for text, want := range map[string]string{
		"10 per minute": "10/minute", "10 requests per 5 minutes": "10/5minute", "1000-H": "1000/h", "5-M": "5/m", "10r/s": "10/s",
		"60rpm": "60/m", "60 rps": "60/s", "5 qps": "5/s", "0.5/s": "1/2s", "1.5/min": "3/2min", "2.5/10s": "5/20s",
		"1,000/h": "1000/h", "1 000/h": "1000/h", "5k/h": "5000/h", "1e6/day": "1000000/day", "10/MIN": "10/min",
		"10/mins": "10/min", "3 times a day": "3/day", "3x/day": "3/day", "10/mo": "10/month", "10/mnoth": "10/month",
		"10/mintue": "10/minute", "10/min, burst 20": "10/min burst 20", "10/min burst=20": "10/min burst 20",
		"10/min (burst of 20)": "10/min burst 20", "5 @ 1 hour": "5/1hour", "100/secs": "100/sec", "4/ms": "4/ms",

		"": "", "100": "", "ten/min": "", "1.000/h": "", "1,5/s": "", "10/60": "", "/min": "", "_/s": "",
	} {
		if got := ratetext.Meant(text); got != want {
			t.Errorf("%q is meant as %q, want %q", text, got, want)
		}
	}
}
