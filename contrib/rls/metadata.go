package rls

import (
	"strconv"
	"unicode/utf8"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// printable returns a text for an answer, which has to be UTF-8: as it is, or quoted.
func printable(text string) string {
	if utf8.ValidString(text) {
		return text
	}
	return strconv.Quote(text)
}

// metadataOf returns the dynamic metadata that envoyproxy/ratelimit answers with: what was asked,
// and the metadata of the rules whose limits the descriptors are within. Envoy can write it into
// its access log. "decision" of a descriptor is ours: what was decided about it.
func metadataOf(r *pb.RateLimitRequest, checks []check, statuses []*pb.RateLimitResponse_DescriptorStatus) *structpb.Struct {
	var descriptors []*structpb.Value
	within := &structpb.Struct{Fields: map[string]*structpb.Value{}}
	for i, d := range r.GetDescriptors() {
		var entries []*structpb.Value
		for _, e := range d.GetEntries() {
			entries = append(entries, structpb.NewStringValue(printable(e.GetKey())+"="+printable(e.GetValue())))
		}
		is := map[string]*structpb.Value{"entries": listOf(entries)}
		if l := d.GetLimit(); l != nil {
			is["limit"] = structpb.NewStringValue(l.String())
		}
		if h := d.GetHitsAddend(); h != nil {
			is["hitsAddend"] = structpb.NewNumberValue(float64(h.GetValue()))
		}
		c := &checks[i]
		is["decision"] = decisionOf(c, statuses[i])
		descriptors = append(descriptors, structpb.NewStructValue(&structpb.Struct{Fields: is}))
		if c.limiter != nil && statuses[i].GetCode() == pb.RateLimitResponse_OK {
			merge(within, c.rule.metadata)
		}
	}
	all := map[string]*structpb.Value{"domain": structpb.NewStringValue(printable(r.GetDomain())), "descriptors": listOf(descriptors)}
	if r.GetHitsAddend() > 0 {
		all["hitsAddend"] = structpb.NewNumberValue(float64(r.GetHitsAddend()))
	}
	if len(within.GetFields()) > 0 {
		all["metadata"] = structpb.NewStructValue(within)
	}
	return &structpb.Struct{Fields: all}
}

// merge adds the fields that a struct does not have. Those that both have as structs are merged. It
// changes no struct of a rule.
func merge(to, from *structpb.Struct) {
	for name, v := range from.GetFields() {
		both := v.GetStructValue()
		switch has, ok := to.GetFields()[name]; {
		case !ok && both != nil:
			own := &structpb.Struct{Fields: map[string]*structpb.Value{}}
			merge(own, both)
			to.Fields[name] = structpb.NewStructValue(own)
		case !ok:
			to.Fields[name] = v
		case both != nil && has.GetStructValue() != nil:
			merge(has.GetStructValue(), both)
		}
	}
}

// decisionOf tells what was decided about a descriptor: the code, and of its limit the rule as
// metrics name it, the requests of a unit, and what is left. shadow is that a rule in shadow mode
// would have refused it.
func decisionOf(c *check, is *pb.RateLimitResponse_DescriptorStatus) *structpb.Value {
	all := map[string]*structpb.Value{"code": structpb.NewStringValue(is.GetCode().String())}
	if c.limiter != nil {
		all["limit"] = structpb.NewNumberValue(float64(is.GetCurrentLimit().GetRequestsPerUnit()))
		all["remaining"] = structpb.NewNumberValue(float64(is.GetLimitRemaining()))
		if c.decision.Reason == tiered.Shadowed {
			all["shadow"] = structpb.NewBoolValue(true)
		}
	}
	if c.rule != nil && c.rule.path != "" {
		all["rule"] = structpb.NewStringValue(printable(c.rule.path))
	}
	return structpb.NewStructValue(&structpb.Struct{Fields: all})
}

func listOf(all []*structpb.Value) *structpb.Value {
	return structpb.NewListValue(&structpb.ListValue{Values: all})
}
