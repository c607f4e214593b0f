package tiered_test

import (
	"bytes"
	"fmt"
	"log/slog"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/tiered-limiter/tiered-limiter/tiered"
	"github.com/tiered-limiter/tiered-limiter/tiered/httplimit"
)

// A Decision in words says what was decided.
func TestDecisionInWords(t *testing.T) {
	for want, d := range map[string]tiered.Decision{
		"refused: unknown, none, cost 0": {},
		`admitted by policy "api": granted, local, cost 1, 9 of 10 left, full in 6s`: {
			Allowed: true, Reason: tiered.Granted, Tier: tiered.Local, Policy: "api", Key: "ann", Cost: 1, Burst: 10, Remaining: 9,
			ResetAfter: 6 * time.Second,
		},
		`refused by policy "api": limited by limit 2, remote, cost 3, 1 of 10 left, retry after 12s, full in 54s`: {
			Reason: tiered.Limited, Tier: tiered.Remote, LimitNumber: 2, Policy: "api", Key: "ann", Cost: 3, Burst: 10, Remaining: 1,
			RetryAfter: 12 * time.Second, ResetAfter: 54 * time.Second,
		},
		`admitted by policy "api": granted, remote, cost 1, 4 of 5 left, full in 1s`: {
			Allowed: true, Reason: tiered.Granted, Tier: tiered.Remote, LimitNumber: 2, Policy: "api", Cost: 1, Burst: 5, Remaining: 4,
			ResetAfter: time.Second,
		},
		`admitted by policy "api": granted, local, cost 7, no limit`: {
			Allowed: true, Reason: tiered.Granted, Tier: tiered.Local, Policy: "api", Cost: 7, Burst: math.MaxInt64,
			Remaining: math.MaxInt64,
		},
		`refused by policy "api": exceeds burst, local, cost 7`: {
			Reason: tiered.ExceedsBurst, Tier: tiered.Local, Policy: "api", Cost: 7,
		},
	} {
		if got := d.String(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// What prints or logs a Decision, or what has one, does not print the key, which may be a secret.
func TestKeysAreNotPrinted(t *testing.T) {
	d := tiered.Decision{Reason: tiered.Limited, Policy: "api", Key: "ann@example.org"}
	for name, v := range map[string]any{
		"Decision": d, "pointer": &d, "error": d.Err(), "Reservation": tiered.Reservation{Decision: d},
		"Refusal": httplimit.Refusal{Decision: d, Status: 429}, "list": []tiered.Decision{d},
	} {
		var out bytes.Buffer
		_, _ = fmt.Fprintf(&out, "%v %+v %s\n", v, v, v)
		slog.New(slog.NewTextHandler(&out, nil)).Info("refused", "what", v)
		if name != "list" { // encoding/json writes its fields, as it must for one that is stored
			slog.New(slog.NewJSONHandler(&out, nil)).Info("refused", "what", v)
		}
		if s := out.String(); strings.Contains(s, "example.org") || !strings.Contains(s, "api") {
			t.Errorf("%s: %s", name, s)
		}
	}
}
