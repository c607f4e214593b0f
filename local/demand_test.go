package local

import (
	"math"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestDemandFollowsARiseFasterThanAFall(t *testing.T) {
	var d demand
	offers := int64(0)
	at := time.Duration(0)
	feed := func(rate float64, length time.Duration) {
		for end := at + length; at < end; at += 10 * ms {
			offers += int64(rate / 100)
			d.sample(at, offers, 1<<40, false)
		}
	}
	feed(1000, 300*ms)
	if d.rate < 550 || d.rate > 700 {
		t.Errorf("%.0f/s after 0.3 s of 1000/s, want 1 − 1/e of it", d.rate)
	}
	feed(1000, 3*time.Second)
	if math.Abs(d.rate-1000) > 10 {
		t.Errorf("%.0f/s after 3 s of 1000/s", d.rate)
	}
	feed(0, time.Second)
	if d.rate < 330 || d.rate > 410 {
		t.Errorf("%.0f/s one second after the end, want 1/e of it", d.rate)
	}
}

// While tokens are scarce what a process wanted a second ago counts against those who want it now:
// it forgets as fast as it learns, and both within about a tenth of a second.
func TestDemandFollowsSoonWhileTokensAreScarce(t *testing.T) {
	d := demand{rate: 1000, at: time.Second}
	d.sample(time.Second+100*ms, 0, 1<<40, true)
	if d.rate < 330 || d.rate > 410 {
		t.Errorf("%.0f/s 0.1 s after the end of 1000/s, want 1/e of it", d.rate)
	}
	d = demand{at: time.Second}
	d.sample(time.Second+100*ms, 100, 1<<40, true)
	if d.rate < 590 || d.rate > 670 {
		t.Errorf("%.0f/s after 0.1 s of 1000/s, want 1 − 1/e of it", d.rate)
	}
}

func TestDemandCountsAtMostOneBurstPerSample(t *testing.T) {
	var d demand
	d.sample(time.Second, 0, 100, false) // not at 0, which is never
	d.sample(time.Second+100*ms, 1_000_000, 100, false)
	if d.rate > 1000 || d.rate < 200 {
		t.Errorf("%.0f/s, want at most 100 tokens per 100 ms, and some of that", d.rate)
	}
}

func TestDemandStaysFinite(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var d demand
		var at time.Duration
		var offers int64
		for range 20 {
			at += time.Duration(rapid.Int64Range(-1e9, 1e15).Draw(t, "step"))
			offers += rapid.Int64Range(0, 1<<45).Draw(t, "offers")
			d.sample(at, offers, 1<<40, false)
			if math.IsNaN(d.rate) || math.IsInf(d.rate, 0) || d.rate < 0 {
				t.Fatalf("rate %v", d.rate)
			}
		}
	})
}
