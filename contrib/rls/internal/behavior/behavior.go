// Package behavior is what a user of envoyproxy/ratelimit relies on, as requests and the answers to
// them. The tests ask both services.
package behavior

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"

	ratelimit "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	envoy "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// Config is the configuration that the requests are made for. A unit of a year does not end during
// a test.
const Config = `domain: shop
descriptors:
  - key: user
    rate_limit: {unit: year, requests_per_unit: 3}
  - key: user
    value: vip
    rate_limit: {unit: year, requests_per_unit: 5}
  - key: nobody
    rate_limit: {unit: year, requests_per_unit: 0}
  - key: batch
    rate_limit: {unit: year, requests_per_unit: 10}
  - key: tried
    rate_limit: {unit: year, requests_per_unit: 1}
    shadow_mode: true
  - key: admin
    rate_limit: {unlimited: true}
  - key: tenant
    descriptors:
      - key: path
        rate_limit: {unit: year, requests_per_unit: 2}
      - key: path
        value: /free
      - key: route
        value: "/a*"
        rate_limit: {unit: year, requests_per_unit: 2}
      - key: file
        value: "f*"
        share_threshold: true
        rate_limit: {unit: year, requests_per_unit: 2}
  - key: cheap
    rate_limit: {unit: year, requests_per_unit: 2, name: cheap}
  - key: dear
    rate_limit: {unit: year, requests_per_unit: 4, name: dear, replaces: [{name: cheap}]}
  - key: all
    rate_limit: {unlimited: true, name: all, replaces: [{name: dear}]}
  - key: glob
    value: "a*b*c"
    rate_limit: {unit: year, requests_per_unit: 2}
  - key: glob
    value: "a*"
    rate_limit: {unit: year, requests_per_unit: 5}
  - key: path.to
    rate_limit: {unit: year, requests_per_unit: 1}
  - key: path
    descriptors:
      - key: to
        rate_limit: {unit: year, requests_per_unit: 2}
  - key: quota
    rate_limit: {unit: year, requests_per_unit: 1}
    quota_mode: true
  - key: quota2
    rate_limit: {unit: year, requests_per_unit: 2}
    quota_mode: true
`

// Counted is the configuration of what is counted: it has all that names of statistics depend on.
const Counted = `domain: shop
descriptors:
  - key: user
    rate_limit: {unit: year, requests_per_unit: 10}
  - key: user
    value: vip
    rate_limit: {unit: year, requests_per_unit: 4000000000}
  - key: tried
    rate_limit: {unit: year, requests_per_unit: 2}
    shadow_mode: true
  - key: each
    rate_limit: {unit: year, requests_per_unit: 4000000000}
    detailed_metric: true
  - key: tenant
    value_to_metric: true
    descriptors:
      - key: path
        rate_limit: {unit: year, requests_per_unit: 4000000000}
      - key: path
        value: /a
        value_to_metric: true
        rate_limit: {unit: year, requests_per_unit: 10}
      - key: path
        value: /b*
        rate_limit: {unit: year, requests_per_unit: 10}
      - key: path
        value: /c*
        value_to_metric: true
        rate_limit: {unit: year, requests_per_unit: 10}
      - key: path
        value: /d*
        value_to_metric: true
        share_threshold: true
        rate_limit: {unit: year, requests_per_unit: 10}
      - key: path
        value: /e*
        detailed_metric: true
        share_threshold: true
        rate_limit: {unit: year, requests_per_unit: 10}
      - key: remote_address
        value_to_metric: true
        rate_limit: {unit: year, requests_per_unit: 10}
  - key: free
    rate_limit: {unlimited: true}
  - key: cheap
    rate_limit: {unit: year, requests_per_unit: 10, name: cheap}
  - key: dear
    rate_limit: {unit: year, requests_per_unit: 10, replaces: [{name: cheap}]}
`

// merged is a second file, for MERGE_DOMAIN_CONFIG.
const merged = `domain: shop
descriptors:
  - key: late
    rate_limit: {unit: year, requests_per_unit: 6}
`

// Files returns the files of the configuration with an environment.
func Files(env string) []string {
	if env == "MERGE_DOMAIN_CONFIG=true" {
		return []string{Config, merged}
	}
	return []string{Config}
}

// Row is a sequence of requests, each with its answer.
//
// A request is "domain | descriptor | descriptor", with "+n" after the domain for the hits of all.
// A descriptor is "key=value key=value", with "+n" for its own hits and "limit=n/unit" for its own
// limit, or "limit=n/3unit". An answer is "code | status | status". A status is its code, and the
// hits that are left of the limit: "OK 2/3", "OVER 0/3", "OK" without a limit, and "OK max" without
// an end. "2/3×12" is a limit of 12 units. Headers and metadata follow, if there are any. In
// headers the time until the year ends is "…".
type Row struct {
	Name  string
	Env   string // what the services are started with, besides what all are: NAME=value
	Steps [][2]string

	// Differs, if not "", says why envoyproxy/ratelimit answers otherwise. Theirs are its answers.
	Differs string
	Theirs  []string
}

// later says why a row differs: the Go module proxy has no later commit of envoyproxy/ratelimit.
const later = "the version that is compared is older than f2fb157, which answers so"

// Rows are all sequences. Each has users of its own, so their order does not matter.
var Rows = []Row{
	{Name: "a limit", Steps: [][2]string{
		{"shop | user=a", "OK | OK 2/3"},
		{"shop | user=a", "OK | OK 1/3"},
		{"shop | user=a", "OK | OK 0/3"},
		{"shop | user=a", "OVER | OVER 0/3"},
		{"shop | user=a", "OVER | OVER 0/3"},
		{"shop | user=a2", "OK | OK 2/3"},
	}},
	{Name: "no value is a value", Steps: [][2]string{
		{"shop | user=", "OK | OK 2/3"},
		{"shop | user=", "OK | OK 1/3"},
	}},
	{Name: "a value with a limit of its own", Steps: [][2]string{{"shop | user=vip", "OK | OK 4/5"}}},
	{Name: "what is not in the configuration", Steps: [][2]string{
		{"other | user=b", "OK | OK"},
		{"shop | color=red", "OK | OK"},
		{"shop | tenant=b", "OK | OK"},
		{"shop | user=b path=/x", "OK | OK"},
		{"shop | user=b", "OK | OK 2/3"},
	}},
	{Name: "descriptors within descriptors", Steps: [][2]string{
		{"shop | tenant=c path=/x", "OK | OK 1/2"},
		{"shop | tenant=c path=/y", "OK | OK 1/2"},
		{"shop | tenant=c2 path=/x", "OK | OK 1/2"},
		{"shop | tenant=c path=/free", "OK | OK"},
		{"shop | path=/x tenant=c", "OK | OK"},
	}},
	{Name: "a limit of nothing", Steps: [][2]string{{"shop | nobody=d", "OVER | OVER 0/0"}}},
	{Name: "hits", Steps: [][2]string{
		{"shop +4 | batch=e", "OK | OK 6/10"},
		{"shop +2 | batch=e | batch=e2 +3", "OK | OK 4/10 | OK 7/10"},
		{"shop +0 | batch=e", "OK | OK 3/10"},
		{"shop +5 | batch=e +0", "OK | OK 3/10"},
	}},
	{Name: "unlimited", Steps: [][2]string{{"shop | admin=f", "OK | OK max"}}},
	{Name: "shadow mode", Steps: [][2]string{
		{"shop | tried=g", "OK | OK 0/1"},
		{"shop | tried=g", "OK | OK 0/1"},
	}},
	{Name: "several descriptors", Steps: [][2]string{
		{"shop | user=h | user=vip2 | admin=h | color=red", "OK | OK 2/3 | OK 2/3 | OK max | OK"},
		{"shop | user=h +3", "OVER | OVER 0/3"},
	}},
	{Name: "one descriptor twice", Steps: [][2]string{
		{"shop | user=h2 | user=h2", "OK | OK 2/3 | OK 1/3"},
		{"shop | user=h2 | user=h2", "OVER | OK 0/3 | OVER 0/3"},
	}},
	{Name: "one is over", Steps: [][2]string{
		{"shop | batch=i +10", "OK | OK 0/10"},
		{"shop | user=i | batch=i", "OVER | OK 2/3 | OVER 0/10"},
		{"shop | user=i", "OK | OK 1/3"},
	}},
	{Name: "refused hits", Steps: [][2]string{
		{"shop | batch=j +8", "OK | OK 2/10"},
		{"shop | batch=j +3", "OVER | OVER 0/10"},
		{"shop | batch=j +2", "OVER | OVER 0/10"},
		{"shop | batch=j +0", "OVER | OVER 0/10"},
	}},
	{Name: "wildcards", Steps: [][2]string{
		{"shop | tenant=k route=/a1", "OK | OK 1/2"},
		{"shop | tenant=k route=/a2", "OK | OK 1/2"},
		{"shop | tenant=k route=/a", "OK | OK 1/2"},
		{"shop | tenant=k route=/b", "OK | OK"},
	}},
	{Name: "a wildcard whose values share the limit", Steps: [][2]string{
		{"shop | tenant=l file=f1", "OK | OK 1/2"},
		{"shop | tenant=l file=f2", "OK | OK 0/2"},
		{"shop | tenant=l file=f3", "OVER | OVER 0/2"},
		{"shop | tenant=l2 file=f1", "OK | OK 1/2"},
	}},
	{Name: "limits that replace others", Steps: [][2]string{
		{"shop | cheap=m", "OK | OK 1/2"},
		{"shop | cheap=m | dear=m", "OK | OK | OK 3/4"},
		{"shop | dear=m | all=m", "OK | OK | OK max"},
		{"shop | cheap=m", "OK | OK 0/2"},
	}},
	{Name: "a limit that comes with the request", Steps: [][2]string{
		{"shop | user=n limit=7/year", "OK | OK 6/7"},
		{"shop | color=n limit=2/year", "OK | OK 1/2"},
		{"shop | color=n limit=2/year", "OK | OK 0/2"},
		{"shop | color=n limit=2/year", "OVER | OVER 0/2"},
		{"other | color=n limit=2/year", "OK | OK"},
	}},
	{Name: "a limit that comes with the request, and that of the rule", Steps: [][2]string{
		{"shop | user=o limit=7/year", "OK | OK 6/7"},
		{"shop | user=o", "OK | OK 1/3"},
		{"shop | user=o", "OK | OK 0/3"},
		{"shop | user=o limit=1/day", "OK | OK 0/1"},
		{"shop | user=o2", "OK | OK 2/3"},
		{"shop | user=o2 limit=4/year", "OK | OK 2/4"},
		{"shop | tried=o limit=1/year", "OK | OK 0/1"},
		{"shop | tried=o limit=1/year", "OVER | OVER 0/1"},
	}},
	{
		Name: "a rule, soon after a larger limit that came with a request", Steps: [][2]string{
			{"shop | user=o3 +3", "OK | OK 0/3"},
			{"shop | user=o3 limit=7/year", "OK | OK 3/7"},
			{"shop | user=o3", "OK | OK 0/3"},
		}, Differs: "the larger limit counts for requests without one too, until none has had it for ten seconds",
		Theirs: []string{"OK | OK 0/3", "OK | OK 3/7", "OVER | OVER 0/3"},
	},
	{
		Name: "a limit that comes with the request, for several units", Steps: [][2]string{
			{"shop | color=z limit=7/12month", "OK | OK 6/7×12"},
			{"shop | color=z limit=7/month", "OK | OK 6/7"},
			{"shop | color=z limit=7/1month", "OK | OK 5/7×1"},
		}, Differs: "the version that is compared does not know unit_multiplier",
		Theirs: []string{"OK | OK 6/7", "OK | OK 5/7", "OK | OK 4/7"},
	},
	{Name: "a shadow rule does not hide another one", Steps: [][2]string{
		{"shop | tried=p | nobody=p", "OVER | OK 0/1 | OVER 0/0"},
		{"shop | tried=p | user=p", "OK | OK 0/1 | OK 2/3"},
	}},
	{
		Name: "asterisks that are not at the end, and a wildcard before a value of its own", Steps: [][2]string{
			{"shop | glob=a-b-c", "OK | OK 1/2"},
			{"shop | glob=abc", "OK | OK 1/2"},
			{"shop | glob=abcbc", "OK | OK 1/2"},
			{"shop | glob=ac-b", "OK | OK 4/5"},
			{"shop | glob=a-b", "OK | OK 4/5"},
			{"shop | glob=a*b*c", "OK | OK 1/2"},
			{"shop | glob=a*b*c", "OK | OK 0/2"},
			{"shop | glob=a*", "OK | OK 4/5"},
			{"shop | glob=a", "OK | OK 4/5"},
			{"shop | glob=b", "OK | OK"},
		}, Differs: later,
		Theirs: []string{
			"OK | OK 4/5", "OK | OK 4/5", "OK | OK 4/5", "OK | OK 4/5", "OK | OK 4/5", "OK | OK 1/2", "OK | OK 0/2", "OK | OK 4/5", "OK | OK 4/5", "OK | OK",
		},
	},
	{
		Name: "a look at a limit that is used up", Steps: [][2]string{
			{"shop | batch=q +10", "OK | OK 0/10"},
			{"shop | batch=q +0", "OVER | OVER 0/10"},
		}, Differs: "envoyproxy/ratelimit says OK until more than the limit was asked for: one request too many",
		Theirs: []string{"OK | OK 0/10", "OK | OK 0/10"},
	},
	{
		Name: "a look at nothing", Steps: [][2]string{{"shop | nobody=r +0", "OVER | OVER 0/0"}},
		Differs: "the same", Theirs: []string{"OK | OK 0/0"},
	},
	{Name: "a limit of nothing that comes with the request", Steps: [][2]string{
		{"shop | user=s limit=0/year", "OVER | OVER 0/0"},
		{"shop | user=s limit=0/year +0", "OVER | OVER 0/0"},
	}},
	{Name: "keys and values with the separators of both", Steps: [][2]string{
		{"shop | path.to=a_b", "OK | OK 0/1"},
		{"shop | path.to=a", "OK | OK 0/1"},
		{"shop | path=x to=a_b", "OK | OK 1/2"},
		{"shop | user=a:1 | user=a: | user=_", "OK | OK 2/3 | OK 2/3 | OK 2/3"},
	}},
	{Name: "a cost that is known afterwards", Steps: [][2]string{
		{"shop | batch=u +30", "OVER | OVER 0/10"},
		{"shop | batch=u +1", "OVER | OVER 0/10"},
		{"shop | batch=u2 +4", "OK | OK 6/10"},
		{"shop | batch=u2 +7", "OVER | OVER 0/10"},
		{"shop | batch=u2 +0", "OVER | OVER 0/10"},
	}},
	{Name: "a look after such a cost", Steps: [][2]string{
		{"shop | batch=v +30", "OVER | OVER 0/10"},
		{"shop | batch=v +0", "OVER | OVER 0/10"},
	}},
	{Name: "such a cost, of a limit that comes with the request", Steps: [][2]string{
		{"shop | color=w limit=10/year +30", "OVER | OVER 0/10"},
		{"shop | color=w limit=10/year +0", "OVER | OVER 0/10"},
		{"shop | color=w limit=10/year", "OVER | OVER 0/10"},
	}},
	{Name: "such a cost, in shadow mode", Steps: [][2]string{
		{"shop | tried=x +2", "OK | OK 0/1"},
		{"shop | tried=x +0", "OK | OK 0/1"},
	}},
	{
		Name: "quota mode", Steps: [][2]string{
			{"shop | quota=t | quota2=t | user=t", "OK | OK 0/1 | OK 1/2 | OK 2/3"},
			{"shop | quota=t | quota2=t | user=t", "OK | OVER 0/1 | OK 0/2 | OK 1/3"},
			{"shop | quota=t | quota2=t", "OVER | OVER 0/1 | OVER 0/2"},
			{"shop | quota=t", "OVER | OVER 0/1"},
			{"shop | quota=t | color=t", "OVER | OVER 0/1 | OK"},
			{"shop | quota=t | user=t +3", "OVER | OVER 0/1 | OVER 0/3"},
		}, Differs: later,
		Theirs: []string{
			"OK | OK 0/1 | OK 1/2 | OK 2/3", "OK | OK 0/1 reset in 0 s | OK 0/2 | OK 1/3", "OK | OK 0/1 reset in 0 s | OK 0/2 reset in 0 s",
			"OK | OK 0/1 reset in 0 s", "OK | OK 0/1 reset in 0 s | OK", "OVER | OK 0/1 reset in 0 s | OVER 0/3",
		},
	},
	{
		Name: "quota mode for all", Env: "QUOTA_MODE=true", Steps: [][2]string{
			{"shop | nobody=a", "OVER | OVER 0/0"},
			{"shop | nobody=a | admin=a", "OVER | OVER 0/0 | OK max"},
			{"shop | nobody=a | user=a | color=a | admin=a", "OK | OVER 0/0 | OK 2/3 | OK | OK max"},
			{"shop | user=a +3 | tried=a +2", "OK | OVER 0/3 | OK 0/1"},
			{"shop | user=b limit=1/year +2", "OVER | OVER 0/1"},
		}, Differs: later,
		Theirs: []string{
			"OK | OK 0/0 reset in 0 s", "OK | OK 0/0 reset in 0 s | OK max", "OK | OK 0/0 reset in 0 s | OK 2/3 | OK | OK max",
			"OK | OK 0/3 reset in 0 s | OK 0/1", "OK | OK 0/1 reset in 0 s",
		},
	},
	{
		Name: "shadow mode for all", Env: "SHADOW_MODE=true", Steps: [][2]string{
			{"shop | nobody=a", "OK | OVER 0/0"},
			{"shop | quota=a +2 | user=a +4", "OK | OVER 0/1 | OVER 0/3"},
		}, Differs: later,
		Theirs: []string{"OK | OVER 0/0", "OK | OK 0/1 reset in 0 s | OVER 0/3"},
	},
	{Name: "headers", Env: "LIMIT_RESPONSE_HEADERS_ENABLED=true", Steps: [][2]string{
		{"shop | color=a", "OK | OK"},
		{"shop | admin=a", "OK | OK max"},
		{"shop | batch=a | user=a | color=a", "OK | OK 9/10 | OK 2/3 | OK | RateLimit-Limit: 3, RateLimit-Remaining: 2, RateLimit-Reset: …"},
		{"shop | batch=b +8 | vip=b | user=b", "OK | OK 2/10 | OK | OK 2/3 | RateLimit-Limit: 10, RateLimit-Remaining: 2, RateLimit-Reset: …"},
		{"shop | batch=a +10 | user=a +2", "OVER | OVER 0/10 | OK 0/3 | RateLimit-Limit: 10, RateLimit-Remaining: 0, RateLimit-Reset: …"},
		{"shop | nobody=a | batch=a", "OVER | OVER 0/0 | OVER 0/10 | RateLimit-Limit: 10, RateLimit-Remaining: 0, RateLimit-Reset: …"},
	}},
	{
		Name: "headers with quota mode", Env: "LIMIT_RESPONSE_HEADERS_ENABLED=true", Steps: [][2]string{
			{"shop | user=c | quota=c +2", "OVER | OK 2/3 | OVER 0/1 | RateLimit-Limit: 1, RateLimit-Remaining: 0, RateLimit-Reset: …"},
			{"shop | quota=c | user=c +9", "OVER | OVER 0/1 | OVER 0/3 | RateLimit-Limit: 3, RateLimit-Remaining: 0, RateLimit-Reset: …"},
		}, Differs: later,
		Theirs: []string{
			"OK | OK 2/3 | OK 0/1 reset in 0 s | RateLimit-Limit: 1, RateLimit-Remaining: 0, RateLimit-Reset: …",
			"OVER | OK 0/1 reset in 0 s | OVER 0/3 | RateLimit-Limit: 3, RateLimit-Remaining: 0, RateLimit-Reset: …",
		},
	},
	{
		Name: "headers of other names",
		Env:  "LIMIT_RESPONSE_HEADERS_ENABLED=true LIMIT_LIMIT_HEADER=X-Limit LIMIT_REMAINING_HEADER=X-Left LIMIT_RESET_HEADER=X-Reset",
		Steps: [][2]string{
			{"shop | user=a", "OK | OK 2/3 | X-Limit: 3, X-Left: 2, X-Reset: …"},
		},
	},
	{
		Name: "metadata", Env: "RESPONSE_DYNAMIC_METADATA=true", Steps: [][2]string{
			{"shop +2 | user=a | quota=a +3", `OVER | OK 1/3 | OVER 0/1 | {"descriptors":[{"entries":["user=a"]},` +
				`{"entries":["quota=a"],"hitsAddend":3}],"domain":"shop","hitsAddend":2}`},
			{"shop | tenant=a path=/x", `OK | OK 1/2 | {"descriptors":[{"entries":["tenant=a","path=/x"]}],"domain":"shop"}`},
			{"shop | quota=b", `OK | OK 0/1 | {"descriptors":[{"entries":["quota=b"]}],"domain":"shop"}`},
		}, Differs: later,
		Theirs: []string{
			`OK | OK 1/3 | OK 0/1 reset in 0 s | {"descriptors":[{"entries":["user=a"]},{"entries":["quota=a"],"hitsAddend":3}],` +
				`"domain":"shop","hitsAddend":2,"quotaModeEnabled":true,"quotaModeViolations":[1]}`,
			`OK | OK 1/2 | {"descriptors":[{"entries":["tenant=a","path=/x"]}],"domain":"shop","quotaModeEnabled":false}`,
			`OK | OK 0/1 | {"descriptors":[{"entries":["quota=b"]}],"domain":"shop","quotaModeEnabled":true}`,
		},
	},
	{Name: "a domain in two files", Env: "MERGE_DOMAIN_CONFIG=true", Steps: [][2]string{
		{"shop | user=a | late=a", "OK | OK 2/3 | OK 5/6"},
	}},
}

// Play asks a service for a row. It returns what is wrong.
func (r Row) Play(ctx context.Context, client pb.RateLimitServiceClient, theirs bool) error {
	var wrong []error
	for i, step := range r.Steps {
		want := step[1]
		if theirs && r.Differs != "" {
			want = r.Theirs[i]
		}
		answer, err := client.ShouldRateLimit(ctx, Request(step[0]))
		if err != nil {
			return fmt.Errorf("%s: %w", step[0], err)
		}
		if got := Show(answer); got != want {
			wrong = append(wrong, fmt.Errorf("step %d, %s: %s, want %s", i, step[0], got, want))
		}
	}
	return errors.Join(wrong...)
}

// Test plays all rows. start starts a service with an environment, and the configuration that is
// for it.
func Test(t *testing.T, theirs bool, start func(t *testing.T, env string, files []string) pb.RateLimitServiceClient) {
	clients := map[string]pb.RateLimitServiceClient{}
	for _, r := range Rows {
		if clients[r.Env] == nil {
			clients[r.Env] = start(t, r.Env, Files(r.Env))
		}
		t.Run(r.Name, func(t *testing.T) {
			if err := r.Play(t.Context(), clients[r.Env], theirs); err != nil {
				t.Error(err)
			}
		})
	}
}

// Request reads a request. It panics if the text is wrong.
func Request(text string) *pb.RateLimitRequest {
	parts := strings.Split(text, " | ")
	domain, hits, ok := strings.Cut(parts[0], " +")
	r := &pb.RateLimitRequest{Domain: domain}
	if ok {
		r.HitsAddend = uint32(number(hits))
	}
	for _, part := range parts[1:] {
		d := &ratelimit.RateLimitDescriptor{}
		for word := range strings.FieldsSeq(part) {
			hits, ok := strings.CutPrefix(word, "+")
			limit, carried := strings.CutPrefix(word, "limit=")
			switch {
			case ok:
				d.HitsAddend = wrapperspb.UInt64(number(hits))
			case carried:
				n, unit, _ := strings.Cut(limit, "/")
				name := strings.TrimLeft(unit, "0123456789")
				d.Limit = &ratelimit.RateLimitDescriptor_RateLimitOverride{
					RequestsPerUnit: uint32(number(n)),
					Unit:            envoy.RateLimitUnit(envoy.RateLimitUnit_value[strings.ToUpper(name)]),
				}
				if multiplier := strings.TrimSuffix(unit, name); multiplier != "" {
					d.Limit.UnitMultiplier = wrapperspb.UInt32(uint32(number(multiplier)))
				}
			default:
				key, value, _ := strings.Cut(word, "=")
				d.Entries = append(d.Entries, &ratelimit.RateLimitDescriptor_Entry{Key: key, Value: value})
			}
		}
		r.Descriptors = append(r.Descriptors, d)
	}
	return r
}

func number(s string) uint64 {
	n, err := strconv.ParseUint(s, 10, 64)
	if err != nil {
		panic(err)
	}
	return n
}

// Show writes an answer.
func Show(r *pb.RateLimitResponse) string {
	codes := map[pb.RateLimitResponse_Code]string{pb.RateLimitResponse_OK: "OK", pb.RateLimitResponse_OVER_LIMIT: "OVER"}
	parts := []string{codes[r.GetOverallCode()]}
	for _, s := range r.GetStatuses() {
		text := codes[s.GetCode()]
		switch {
		case s.GetCurrentLimit() != nil:
			text += fmt.Sprintf(" %d/%d", s.GetLimitRemaining(), s.GetCurrentLimit().GetRequestsPerUnit())
			if m := s.GetCurrentLimit().GetUnitMultiplier(); m != nil {
				text += fmt.Sprintf("×%d", m.GetValue())
			}
			if d := s.GetDurationUntilReset().GetSeconds(); d < 1 || d > 366*24*3600 {
				text += fmt.Sprintf(" reset in %d s", d)
			}
		case s.GetLimitRemaining() == 1<<32-1:
			text += " max"
		}
		parts = append(parts, text)
	}
	var headers []string
	for _, h := range r.GetResponseHeadersToAdd() {
		value := h.GetValue()
		if n, err := strconv.Atoi(value); err == nil && strings.HasSuffix(h.GetKey(), "-Reset") && n >= 1 && n <= 366*24*3600 {
			value = "…"
		}
		headers = append(headers, h.GetKey()+": "+value)
	}
	if headers != nil {
		parts = append(parts, strings.Join(headers, ", "))
	}
	if m := r.GetDynamicMetadata(); m != nil {
		for _, d := range m.GetFields()["descriptors"].GetListValue().GetValues() {
			delete(d.GetStructValue().GetFields(), "decision") // envoyproxy/ratelimit does not tell it
		}
		text, err := json.Marshal(m.AsMap())
		if err != nil {
			text = []byte(err.Error())
		}
		parts = append(parts, string(text))
	}
	return strings.Join(parts, " | ")
}
