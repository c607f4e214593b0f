package rls

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	pb "github.com/envoyproxy/go-control-plane/ratelimit/config/ratelimit/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
)

// ResourceType is the type of what a control plane sends: each resource is a RateLimitConfig.
const ResourceType = "type.googleapis.com/ratelimit.config.ratelimit.v3.RateLimitConfig"

// Resources returns what a control plane sends as the files of a configuration, in the order of
// their names. The error names each resource that is something else. A mistake that [Parse] finds
// is told with the resource's name and the place in it.
func Resources(all []*anypb.Any) ([]File, error) {
	var files []File
	var problems []error
	for i, r := range all {
		var c pb.RateLimitConfig
		if r.GetTypeUrl() != ResourceType {
			problems = append(problems, fmt.Errorf("resources[%d] has the type %.128q: must have %s", i, r.GetTypeUrl(), ResourceType))
			continue
		}
		if err := proto.Unmarshal(r.GetValue(), &c); err != nil {
			problems = append(problems, fmt.Errorf("resources[%d] has %d bytes that are no RateLimitConfig", i, len(r.GetValue())))
			continue
		}
		files = append(files, fileOf(&c))
	}
	slices.SortStableFunc(files, func(a, b File) int { return strings.Compare(a.Name, b.Name) })
	return files, errors.Join(problems...)
}

// ResourcesOfJSON is [Resources] for JSON: a DiscoveryResponse, a list of resources, or one of
// them.
func ResourcesOfJSON(text []byte) ([]File, error) {
	var response struct {
		Resources []json.RawMessage `json:"resources"`
	}
	all := []json.RawMessage{text}
	if json.Unmarshal(text, &response) == nil && response.Resources != nil {
		all = response.Resources
	} else if err := json.Unmarshal(text, &all); err != nil {
		all = []json.RawMessage{text}
	}
	var resources []*anypb.Any
	var problems []error
	for i, one := range all {
		var fields map[string]json.RawMessage
		var kind string
		if err := json.Unmarshal(one, &fields); err != nil {
			problems = append(problems, fmt.Errorf("resources[%d] is no object of JSON: %w", i, err))
			continue
		}
		if t, ok := fields["@type"]; ok && (json.Unmarshal(t, &kind) != nil || kind != ResourceType) {
			problems = append(problems, fmt.Errorf("resources[%d] has the type %.128s: must have %s", i, t, ResourceType))
			continue
		}
		delete(fields, "@type")
		plain, _ := json.Marshal(fields) // it was read
		var c pb.RateLimitConfig
		if err := protojson.Unmarshal(plain, &c); err != nil {
			problems = append(problems, fmt.Errorf("resources[%d] is no RateLimitConfig: %s", i, plainError(err)))
			continue
		}
		a, err := anypb.New(&c)
		if err != nil {
			problems = append(problems, fmt.Errorf("resources[%d]: %w", i, err))
		}
		resources = append(resources, a)
	}
	if problems != nil {
		return nil, errors.Join(problems...)
	}
	return Resources(resources)
}

// plainError is an error of package protojson, whose spaces are chance.
func plainError(err error) string {
	return strings.Join(strings.Fields(strings.TrimPrefix(strings.ReplaceAll(err.Error(), "\u00a0", " "), "proto:")), " ")
}

// fileOf writes a resource as a file.
func fileOf(c *pb.RateLimitConfig) File {
	name := c.GetName()
	if name == "" {
		name = "a resource without a name"
	}
	var w resourceWriter
	w.config(c)
	var places []*placed // of the lines, once somebody asks
	return File{Name: printable(name), Text: w.text, ignored: w.ignored, place: func(line int) string {
		if places == nil {
			again := resourceWriter{keeps: true}
			again.config(c)
			places = again.places
		}
		if line < 1 || line > len(places) {
			return ""
		}
		return places[line-1].String()
	}}
}

// resourceWriter writes a resource as YAML. Each descriptor has lines of its own, so that a large
// one is read in parts.
type resourceWriter struct {
	text    []byte
	ignored []string
	keeps   bool      // the places are wanted
	places  []*placed // of the lines
}

// placed is where a descriptor is in a resource.
type placed struct {
	in     *placed // nil for those of the resource itself
	number int
	key    string
}

func (p *placed) String() string {
	if p == nil {
		return ""
	}
	text := ""
	for at := p; at != nil; at = at.in {
		text = fmt.Sprintf(".descriptors[%d]", at.number) + text
	}
	return fmt.Sprintf("%s, key %.64q: ", text[1:], p.key)
}

func (w *resourceWriter) line(p *placed, indent int, parts ...string) {
	if w.keeps {
		w.places = append(w.places, p)
	}
	if w.keeps {
		return
	}
	for range indent {
		w.text = append(w.text, ' ')
	}
	for _, part := range parts {
		w.text = append(w.text, part...)
	}
	w.text = append(w.text, '\n')
}

func (w *resourceWriter) config(c *pb.RateLimitConfig) {
	w.unknown(nil, c)
	w.line(nil, 0, "domain: ", strconv.Quote(c.GetDomain()))
	if all := c.GetDescriptors(); len(all) > 0 {
		w.line(nil, 0, "descriptors:")
		w.descriptors(nil, 0, all)
	}
}

// descriptors writes a list. What YAML understands of a quoted text is what strconv.Quote writes.
func (w *resourceWriter) descriptors(in *placed, indent int, all []*pb.RateLimitDescriptor) {
	for i, d := range all {
		p := &placed{in, i, d.GetKey()}
		w.unknown(p, d)
		w.line(p, indent, "- key: ", strconv.Quote(d.GetKey()))
		if v := d.GetValue(); v != "" {
			w.line(p, indent+2, "value: ", strconv.Quote(v))
		}
		for _, f := range []struct {
			name string
			is   bool
		}{{"shadow_mode", d.GetShadowMode()}, {"quota_mode", d.GetQuotaMode()}, {"detailed_metric", d.GetDetailedMetric()}} {
			if f.is {
				w.line(p, indent+2, f.name, ": true")
			}
		}
		if m := d.GetMetadata(); m != nil {
			text, err := protojson.Marshal(m)
			if err != nil { // a number that JSON does not have
				text = []byte(strconv.Quote(err.Error()))
			}
			w.line(p, indent+2, "metadata: ", string(text))
		}
		if l := d.GetRateLimit(); l != nil {
			w.unknown(p, l)
			w.line(p, indent+2, "rate_limit: {", limitFields(l), "}")
		}
		if within := d.GetDescriptors(); len(within) > 0 {
			w.line(p, indent+2, "descriptors:")
			w.descriptors(p, indent+2, within)
		}
	}
}

func limitFields(l *pb.RateLimitPolicy) string {
	var fields []string
	if !l.GetUnlimited() || l.GetUnit() != pb.RateLimitUnit_UNKNOWN {
		fields = append(fields, "unit: "+strconv.Quote(l.GetUnit().String()))
	}
	if l.GetUnlimited() {
		fields = append(fields, "unlimited: true")
	}
	fields = append(fields, "requests_per_unit: "+strconv.FormatUint(uint64(l.GetRequestsPerUnit()), 10))
	if n := l.GetName(); n != "" {
		fields = append(fields, "name: "+strconv.Quote(n))
	}
	if l.GetReplaces() != nil {
		var names []string
		for _, r := range l.GetReplaces() {
			names = append(names, "{name: "+strconv.Quote(r.GetName())+"}")
		}
		fields = append(fields, "replaces: ["+strings.Join(names, ", ")+"]")
	}
	return strings.Join(fields, ", ")
}

// unknown notes that a message has fields which this program does not know: a newer control plane
// may send them.
func (w *resourceWriter) unknown(p *placed, m proto.Message) {
	fields := m.ProtoReflect().GetUnknown()
	if len(fields) == 0 || w.keeps {
		return
	}
	number, _, _ := protowire.ConsumeTag(fields)
	w.ignored = append(w.ignored, p.String()+fmt.Sprintf("field number %d is not known, so it is ignored", number))
}
