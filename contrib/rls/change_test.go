package rls_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/tiered-limiter/tiered-limiter/contrib/rls"
	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/fatal"
	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/testgroup"
	"github.com/tiered-limiter/tiered-limiter/remote"
)

// Each configuration that is right can be used after each other one: a file that `tieredd check`
// accepts is never refused by replicas that run, so that only those that start have it.
func TestEveryConfigurationCanFollowEachOther(t *testing.T) {
	var texts []string
	for _, limit := range []string{
		"unit: minute, requests_per_unit: 5", "unit: minute, requests_per_unit: 6", "unit: minute, requests_per_unit: 0",
		"unit: hour, requests_per_unit: 5", "unlimited: true", "name: a, unit: minute, requests_per_unit: 5",
		"replaces: [{name: b}], unit: minute, requests_per_unit: 5",
	} {
		for _, own := range []string{
			"", ", count_refused: false", ", fail_mode: fail-closed", ", also: [{unit: hour, requests_per_unit: 50}]",
			", also: [{unit: hour, requests_per_unit: 60}]", ", also: [{unit: day, requests_per_unit: 50}]",
			", also: [{unit: hour, requests_per_unit: 50}, {unit: day, requests_per_unit: 90}]",
			", also: [{unit: day, requests_per_unit: 90}, {unit: hour, requests_per_unit: 50}]",
			", unit_multiplier: 5", ", unit_multiplier: 7", ", unit_multiplier: 5, also: [{unit: hour, unit_multiplier: 2, requests_per_unit: 50}]",
			", burst: 7", ", max_debt: 9", ", standing: 1/8",
		} {
			for _, algorithm := range []string{"fixed window", "token bucket", "sliding window", "sliding log"} {
				texts = append(texts, "domain: d\ndescriptors:\n- key: k\n  rate_limit: {"+limit+"}\n  tiered: {algorithm: "+algorithm+own+"}")
			}
		}
		texts = append(texts, "domain: d\ndescriptors:\n- key: k\n  rate_limit: {"+limit+"}\n  shadow_mode: true\n  quota_mode: true",
			"domain: d\ntiered: {together: true}\ndescriptors:\n- key: k\n  rate_limit: {"+limit+"}")
	}
	g := testgroup.New(t, remote.NewMemory(), nil)
	s := fatal.Get(rls.New(g, nil))(t)
	var right []*rls.Config
	for _, text := range texts {
		if c, err := rls.Parse(rls.File{Name: "a.yaml", Text: []byte(text)}); err == nil {
			right = append(right, c)
		}
	}
	pairs := 0
	for _, before := range right {
		for _, after := range right {
			if err := errors.Join(s.Use(before), s.Use(after)); err != nil {
				t.Fatalf("%safter\n%s%v", after, before, err)
			}
			pairs++
		}
	}
	if len(right) < 150 {
		t.Errorf("only %d of %d configurations are right", len(right), len(texts))
	}
	t.Logf("%d configurations, %d pairs", len(right), pairs)
}

// A file that is cut anywhere, and two of them, are read or refused, and never end the process.
func TestCutFiles(t *testing.T) {
	const text = "domain: shop\ntiered: {together: true}\ndescriptors:\n- key: é\n  value: v*\n  share_threshold: true\n" +
		"  rate_limit: &a {unit: day, requests_per_unit: 3, name: n, replaces: [{name: m}]}\n" +
		"  tiered: {algorithm: token bucket, burst: 4, also: [{unit: hour, requests_per_unit: 2}], fail_mode: fail-open}\n" +
		"- {key: ip, rate_limit: {<<: *a}, descriptors: [{key: b, rate_limit: {unlimited: true}}]}\n---\n# end\n"
	fatal.Get(rls.Parse(rls.File{Name: "a.yaml", Text: []byte(text)}))(t)
	for from := range len(text) {
		for _, part := range []string{text[:from], text[from:], text[:from] + "\x00", text[:from] + "\xff"} {
			f := rls.File{Name: "a.yaml", Text: []byte(part)}
			if c, err := rls.Parse(f); err == nil && strings.Join(c.Domains(), "") == "" {
				t.Errorf("%q has the domain %q", part, c.Domains())
			}
			if _, err := rls.Parse(f, f); err == nil {
				t.Errorf("twice %q is fine", part)
			}
			f.Merge = true
			_, _ = rls.Parse(f, f)
		}
	}
}
