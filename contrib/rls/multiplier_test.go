package rls_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tiered-limiter/tiered-limiter/contrib/rls"
	"github.com/tiered-limiter/tiered-limiter/contrib/rls/internal/behavior"
	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/fatal"
	"github.com/tiered-limiter/tiered-limiter/remote"
)

// A rule may count by several units: ten in five minutes, and the next ten when they have passed.
// The answer tells so.
func TestSeveralUnits(t *testing.T) {
	for algorithm, refill := range map[string]int{"fixed window": 0, "token bucket": 9, "sliding window": 0, "sliding log": 0} {
		t.Run(algorithm, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newService(t, remote.NewMemory(), "domain: d\ndescriptors:\n- key: a\n  rate_limit: {unit: minute, requests_per_unit: 10}\n"+
					"  tiered: {algorithm: "+algorithm+", unit_multiplier: 5}\n", nil)
				time.Sleep(time.Second)
				admitted := func(length time.Duration) (n int) {
					for until := time.Now().Add(length); time.Now().Before(until); time.Sleep(time.Second) {
						r := fatal.Get(s.ShouldRateLimit(t.Context(), behavior.Request("d | a=x")))(t)
						is := r.GetStatuses()[0]
						if is.GetCode().String() == "OK" {
							n++
						}
						if l := is.GetCurrentLimit(); l.GetUnitMultiplier().GetValue() != 5 || is.GetDurationUntilReset().AsDuration() > 5*time.Minute+10*time.Second {
							t.Fatalf("%v", is)
						}
					}
					return n
				}
				if n := admitted(4*time.Minute + 50*time.Second); n != 10+refill {
					t.Errorf("%d in the first five minutes, want %d", n, 10+refill)
				}
				time.Sleep(5*time.Minute + 15*time.Second)
				if n := admitted(time.Minute); n < 10 || n > 12 {
					t.Errorf("%d in the next, want 10", n)
				}
			})
		})
	}
	c, err := rls.Parse(rls.File{Name: "a.yaml", Text: []byte("domain: d\ndescriptors:\n- key: a\n  rate_limit: {unit: minute, requests_per_unit: 10}\n" +
		"  tiered: {unit_multiplier: 5}\n- key: b\n  rate_limit: {unit: minute, requests_per_unit: 10}\n  tiered: {unit_multiplier: 1}\n")})
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, p := range c.Policies() {
		names = append(names, p.Name)
	}
	if fmt.Sprint(names) != "[d.a.5-minute d.b.minute]" {
		t.Error(names)
	}
}
