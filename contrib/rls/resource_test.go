package rls_test

import (
	"fmt"
	"strings"
	"testing"

	pb "github.com/envoyproxy/go-control-plane/ratelimit/config/ratelimit/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/tiered-limiter/tiered-limiter/contrib/rls"
	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/fatal"
)

func parseResources(t *testing.T, all ...*pb.RateLimitConfig) (*rls.Config, error) {
	t.Helper()
	var resources []*anypb.Any
	for _, c := range all {
		resources = append(resources, fatal.Get(anypb.New(c))(t))
	}
	return rls.Parse(fatal.Get(rls.Resources(resources))(t)...)
}

// A resource is understood as a file with the same rules, whatever characters its texts have.
func TestResourceIsFile(t *testing.T) {
	const odd = "a\"b\\c\n\t: #{}[]&*!|>'%@`\u0085\ufeff\u2028\x7f\x00é𝄞"
	month, unlimited := &pb.RateLimitPolicy{Unit: pb.RateLimitUnit_MONTH, RequestsPerUnit: 7, Name: "n"}, &pb.RateLimitPolicy{Unlimited: true}
	got := fatal.Get(parseResources(t, &pb.RateLimitConfig{Name: "r", Domain: "d: " + odd, Descriptors: []*pb.RateLimitDescriptor{
		{Key: odd, Value: odd, RateLimit: month, ShadowMode: true, DetailedMetric: true},
		{Key: "k", Value: "~", Descriptors: []*pb.RateLimitDescriptor{
			{Key: "null", Value: "true", RateLimit: unlimited},
			{Key: "b", QuotaMode: true, RateLimit: &pb.RateLimitPolicy{
				Unit: pb.RateLimitUnit_SECOND, Replaces: []*pb.RateLimitReplace{{Name: "n"}, {Name: odd}},
			}},
		}},
	}}))(t)
	text := fmt.Sprintf(`domain: %q
descriptors:
  - {key: %[2]q, value: %[2]q, shadow_mode: true, rate_limit: {unit: month, requests_per_unit: 7, name: n}}
  - key: k
    value: "~"
    descriptors:
      - {key: "null", value: "true", rate_limit: {unlimited: true}}
      - {key: b, quota_mode: true, rate_limit: {unit: second, requests_per_unit: 0, replaces: [{name: n}, {name: %[2]q}]}}
`, "d: "+odd, odd)
	want := fatal.Get(rls.Parse(rls.File{Name: "f", Text: []byte(text)}))(t)
	if got.String() != want.String() || len(got.Policies()) != 2 {
		t.Errorf("%s\nwant\n%s", got, want)
	}
}

// A mistake is told by the place in the resource that has it, also in one that is read in parts.
func TestMistakesOfResources(t *testing.T) {
	large := &pb.RateLimitConfig{Name: "large", Domain: "large"}
	for i := range 5000 {
		large.Descriptors = append(large.Descriptors, &pb.RateLimitDescriptor{Key: "k", Value: fmt.Sprint(i), Descriptors: []*pb.RateLimitDescriptor{
			{Key: "a"}, {Key: "b", RateLimit: &pb.RateLimitPolicy{Unit: pb.RateLimitUnit_DAY, RequestsPerUnit: 1}},
		}})
	}
	large.Descriptors[4321].Descriptors[1].RateLimit.Unit = 99
	for want, c := range map[string]*pb.RateLimitConfig{
		`large: descriptors[4321].descriptors[1], key "b": unit is "99": must be second`: large,
		`a resource without a name: domain is empty: must be set`:                        {},
		`r: descriptors[0], key "": key is empty: must be set`:                           {Name: "r", Domain: "d", Descriptors: []*pb.RateLimitDescriptor{{}}},
		`r: descriptors[1], key "k": there is another descriptor with this key`:          {Name: "r", Domain: "d", Descriptors: []*pb.RateLimitDescriptor{{Key: "k"}, {Key: "k"}}},
	} {
		if _, err := parseResources(t, c); err == nil || !strings.HasPrefix(err.Error(), want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%v: want %s", err, want)
		}
	}
}

// A field that a newer control plane may send is told of.
func TestUnknownFieldsOfResources(t *testing.T) {
	c := &pb.RateLimitConfig{Name: "r", Domain: "d", Descriptors: []*pb.RateLimitDescriptor{
		{Key: "k", RateLimit: &pb.RateLimitPolicy{Unit: pb.RateLimitUnit_DAY, RequestsPerUnit: 1}},
	}}
	for want, m := range map[string]proto.Message{
		"r: field number 99 is not known, so it is ignored":                          c,
		`r: descriptors[0], key "k": field number 99 is not known, so it is ignored`: c.GetDescriptors()[0],
	} {
		m.ProtoReflect().SetUnknown([]byte{0x98, 0x06, 1}) // 99, a number
		got := fatal.Get(parseResources(t, c))(t)
		m.ProtoReflect().SetUnknown(nil)
		if all := got.Warnings(); len(all) != 1 || all[0] != want {
			t.Errorf("%q: want %q", all, want)
		}
	}
}
