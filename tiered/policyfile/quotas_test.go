package policyfile_test

import (
	"strings"
	"testing"
	_ "time/tzdata" // so that the test does not depend on the machine

	"github.com/tiered-limiter/tiered-limiter/tiered/policyfile"
)

// What is wrong with a quota, or with limits that are several, is one line with place, field, value
// and rule.
func TestBadQuotas(t *testing.T) {
	const fixed = ", algorithm: fixed window"
	for policy, want := range map[string]string{
		"limit: 9/month in Europe/Atlantis" + fixed:                                          `: policies[0].limit: limit "9/month in Europe/Atlantis": "Europe/Atlantis" at position 12 must be a time zone`,
		"limit: 9/month from day 0" + fixed:                                                  `: policies[0].limit: limit "9/month from day 0": "0" at position 18 must be a day, 1 to 31`,
		"limit: 9/month from day 32" + fixed:                                                 `: policies[0].limit: limit "9/month from day 32": "32" at position 18 must be a day, 1 to 31`,
		"limit: 9/week from day 8" + fixed:                                                   `: policies[0].limit: limit "9/week from day 8": "8" at position 17 must be a day, 1 to 7`,
		"limit: 9/min in UTC" + fixed:                                                        `: policies[0].limit: limit "9/min in UTC": "in" at position 7 is for days, weeks, months`,
		"limit: 9/10months" + fixed:                                                          `: policies[0].limit: limit "9/10months": "10months" at position 3 must be s, min`,
		"limit: 9/month, calendar: true" + fixed:                                             `: policies[0]: Policy.Calendar is true: must be false beside Limit.Calendar`,
		"limit: 9/month":                                                                     `: policies[0]: Policy.Limit.Calendar is a month: only a FixedWindow has it, and Algorithm is token bucket`,
		"limit: 9/min and 9/month":                                                           `: policies[0]: Policy.Limit.Also[0].Calendar is a month: only a FixedWindow has it, and Algorithm is token bucket`,
		"limit: 9/month and 5/day in UTC" + fixed:                                            `: policies[0]: Policy.Limit.Also is 1 limit: only a TokenBucket or SlidingWindow has it, and Algorithm is fixed window`,
		"limit: 9/month, plans: {pro: 9/month and 5/day in UTC}" + fixed:                     `: policies[0]: Policy.Plans["pro"].Also is 1 limit: only a TokenBucket or SlidingWindow has it, and Algorithm is fixed window`,
		"limit: 9/month, plans: {pro: 9/year}" + fixed:                                       `: policies[0]: Policy.Plans["pro"].Per is year: must be that of Limit, month, because the buckets in Redis count by it`,
		"limit: 9/min, plans: {pro: 9/min and 90/h}":                                         `: policies[0]: Policy.Plans["pro"] is 2 limits: must be 1 limit, as Limit is, because the buckets in Redis count by them`,
		"limit: 9/min and 90/h, plans: {pro: 9/min}":                                         `: policies[0]: Policy.Plans["pro"] is 1 limit: must be 2 limits, as Limit is, because the buckets in Redis count by them`,
		"limit: 9/min and 90/h, plans: {pro: 9/min and 90/2h}":                               `: policies[0]: Policy.Plans["pro"].Also[0].Per is 2h0m0s: must be that of Limit.Also[0], 1h0m0s, because the buckets in Redis count by it`,
		"limit: 9/min and 90/h, keys: {ann: 9/min and 90/2h}":                                `: policies[0]: the limit of this key: Policy.Limit.Also[0].Per is 2h0m0s: must be that of Limit.Also[0], 1h0m0s`,
		"limit: 9/min and 90/h, keys: {ann: 9/min}":                                          `: policies[0]: the limit of this key: Policy.Limit is 1 limit: must be 2 limits, as Limit is`,
		"limit: blocked, plans: {pro: 9/min and 90/h}":                                       `: policies[0]: Policy.Plans["pro"] is 2 limits: must be 1 limit, as Limit is`,
		"limit: 9/min and 90/h, plans: {pro: [9/min, 90/h]}":                                 `: policies[0].plans.pro is a list: must be a text, such as 100/min or, of several limits, 100/min and 1000/h`,
		"limit: 9/min and 9/min":                                                             `: policies[0]: Policy.Limit.Also[0].Per is 1m0s: must differ from that of Limit`,
		"limit: 9/min and 90/h, algorithm: sliding log":                                      `: policies[0]: Policy.Limit.Also is 1 limit: only a TokenBucket or SlidingWindow has it, and Algorithm is sliding log`,
		"limit: 9/s and 9/min and 9/h and 9/2h and 9/3h and 9/4h and 9/5h and 9/6h and 9/7h": "must stand between 8 limits at most",
	} {
		_, err := policyfile.Parse("", []byte("version: 1\npolicies:\n  - {name: p, "+strings.Replace(policy, "limit:", " limit:", 1)+"}\n"))
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s:\n%v\nwant\n%s", policy, err, want)
		}
	}
}
