package rls_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	bootstrap "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	cluster "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	route "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	ratelimit "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	filter "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ratelimit/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/router/v3"
	hcm "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/upstreams/http/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protopath"
	"google.golang.org/protobuf/reflect/protorange"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/anypb"
	istio "istio.io/api/networking/v1alpha3"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/tiered-limiter/tiered-limiter/internal/defaults"
	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/fatal"
	"github.com/tiered-limiter/tiered-limiter/remote"
)

// snippet is what a file in envoy/ makes Envoy do.
type snippet struct {
	filter *filter.RateLimit
	limits []*route.RateLimit
	host   string // where Envoy asks
	port   uint32
	byDNS  bool // of each pod
}

// documents returns the parts of a YAML file.
func documents(t *testing.T, name string) [][]byte {
	t.Helper()
	text := fatal.Get(os.ReadFile(name))(t)
	return bytes.Split(text, []byte("\n---\n"))
}

// message reads JSON into a message of Envoy or Istio, and refuses fields that it does not have.
func message[T proto.Message](t *testing.T, text []byte, m T) T {
	t.Helper()
	if err := protojson.Unmarshal(text, m); err != nil {
		t.Fatalf("%T: %v", m, err)
	}
	return m
}

// validate checks the rules of Envoy's API for a message and for all that are in it, also where the
// type is "Any".
func validate(t *testing.T, m proto.Message) {
	t.Helper()
	checked := 0
	err := protorange.Range(m.ProtoReflect(), func(p protopath.Values) error {
		is, ok := p.Index(-1).Value.Interface().(protoreflect.Message)
		if !ok {
			return nil
		}
		if v, ok := is.Interface().(interface{ ValidateAll() error }); ok {
			checked++
			return v.ValidateAll()
		}
		return nil
	})
	if err != nil || checked == 0 {
		t.Errorf("%T, %d messages: %v", m, checked, err)
	}
}

// unpack returns the message in an Any.
func unpack[T proto.Message](t *testing.T, a *anypb.Any, m T) T {
	t.Helper()
	fatal.If(t, a.UnmarshalTo(m))
	return m
}

// address takes the place where Envoy asks from a cluster.
func (s *snippet) address(t *testing.T, c *cluster.Cluster) {
	t.Helper()
	at := c.GetLoadAssignment().GetEndpoints()[0].GetLbEndpoints()[0].GetEndpoint().GetAddress().GetSocketAddress()
	s.host, s.port, s.byDNS = at.GetAddress(), at.GetPortValue(), c.GetType() == cluster.Cluster_STRICT_DNS
	if name := s.filter.GetRateLimitService().GetGrpcService().GetEnvoyGrpc().GetClusterName(); name != c.GetName() {
		t.Errorf("the filter asks %s, and the cluster is %s", name, c.GetName())
	}
	if c.GetTypedExtensionProtocolOptions()["envoy.extensions.upstreams.http.v3.HttpProtocolOptions"] == nil {
		t.Error("the cluster has not HTTP/2, which gRPC needs")
	}
}

// readBootstrap returns envoy/envoy.yaml.
func readBootstrap(t *testing.T) *bootstrap.Bootstrap {
	t.Helper()
	text := fatal.Get(yaml.YAMLToJSONStrict(documents(t, "envoy/envoy.yaml")[0]))(t)
	b := message(t, text, &bootstrap.Bootstrap{})
	validate(t, b)
	return b
}

func ofEnvoy(t *testing.T) (s snippet) {
	b := readBootstrap(t).GetStaticResources()
	chain := b.GetListeners()[0].GetFilterChains()[0]
	manager := unpack(t, chain.GetFilters()[0].GetTypedConfig(), &hcm.HttpConnectionManager{})
	s.filter = unpack(t, manager.GetHttpFilters()[0].GetTypedConfig(), &filter.RateLimit{})
	s.limits = manager.GetRouteConfig().GetVirtualHosts()[0].GetRateLimits()
	s.address(t, b.GetClusters()[0])
	return s
}

func ofIstio(t *testing.T) (s snippet) {
	var resource struct {
		metav1.TypeMeta   `json:",inline"`
		metav1.ObjectMeta `json:"metadata"`
		Spec              json.RawMessage `json:"spec"`
	}
	fatal.If(t, yaml.UnmarshalStrict(documents(t, "envoy/istio.yaml")[0], &resource))
	spec := message(t, resource.Spec, &istio.EnvoyFilter{})
	for _, p := range spec.GetConfigPatches() {
		value := fatal.Get(p.GetPatch().GetValue().MarshalJSON())(t)
		switch p.GetApplyTo() {
		case istio.EnvoyFilter_HTTP_FILTER:
			f := message(t, value, &hcm.HttpFilter{})
			validate(t, f)
			s.filter = unpack(t, f.GetTypedConfig(), &filter.RateLimit{})
		case istio.EnvoyFilter_VIRTUAL_HOST: // a part of one: its name and domains are there already
			s.limits = message(t, value, &route.VirtualHost{}).GetRateLimits()
		default:
			t.Errorf("a patch of %v", p.GetApplyTo())
		}
	}
	service := s.filter.GetRateLimitService().GetGrpcService().GetEnvoyGrpc()
	parts := strings.Split(service.GetClusterName(), "|") // outbound|port|subset|host
	if len(parts) != 4 || parts[0] != "outbound" || parts[2] != "" || parts[3] != service.GetAuthority() {
		t.Fatalf("%q is not a cluster that Istio makes", parts)
	}
	s.host = parts[3]
	fatal.Get(fmt.Sscan(parts[1], &s.port))(t)
	return s
}

// patchPolicy is the part of Envoy Gateway's EnvoyPatchPolicy that the snippet has. Its module is
// too large for a test.
type patchPolicy struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              struct {
		TargetRef struct {
			Group string `json:"group"`
			Kind  string `json:"kind"`
			Name  string `json:"name"`
		} `json:"targetRef"`
		Type        string `json:"type"`
		JSONPatches []struct {
			Type      string `json:"type"`
			Name      string `json:"name"`
			Operation struct {
				Op       string          `json:"op"`
				Path     string          `json:"path"`
				JSONPath string          `json:"jsonPath"`
				Value    json.RawMessage `json:"value"`
			} `json:"operation"`
		} `json:"jsonPatches"`
	} `json:"spec"`
}

func ofEnvoyGateway(t *testing.T) (s snippet) {
	var policy patchPolicy
	fatal.If(t, yaml.UnmarshalStrict(documents(t, "envoy/gateway.yaml")[0], &policy))
	for _, p := range policy.Spec.JSONPatches {
		listener := strings.Join([]string{policy.Namespace, policy.Spec.TargetRef.Name, "http"}, "/")
		kind := strings.TrimPrefix(p.Type, "type.googleapis.com/envoy.config.")
		if kind != "cluster.v3.Cluster" && p.Name != listener || p.Operation.Op != "add" {
			t.Errorf("%s is patched by %s, the listener is %s", p.Name, p.Operation.Op, listener)
		}
		switch kind {
		case "listener.v3.Listener":
			f := message(t, p.Operation.Value, &hcm.HttpFilter{})
			validate(t, f)
			s.filter = unpack(t, f.GetTypedConfig(), &filter.RateLimit{})
		case "route.v3.RouteConfiguration":
			host := fmt.Appendf(nil, `{"rate_limits": %s}`, p.Operation.Value)
			s.limits = message(t, host, &route.VirtualHost{}).GetRateLimits()
		case "cluster.v3.Cluster":
			c := message(t, p.Operation.Value, &cluster.Cluster{})
			validate(t, c)
			s.address(t, c)
		default:
			t.Errorf("a patch of %s", p.Type)
		}
	}
	return s
}

// A crowd is asked about, also while it waits for a connection: the clusters that we hand out bound
// neither at Envoy's 1024. Istio's have no such bound.
func TestEnvoyAsksAboutACrowd(t *testing.T) {
	var all []*cluster.Cluster
	for _, c := range message(t, fatal.Get(yaml.YAMLToJSON(documents(t, "envoy/envoy.yaml")[0]))(t), &bootstrap.Bootstrap{}).GetStaticResources().GetClusters() {
		if c.GetName() == "tieredd" {
			all = append(all, c)
		}
	}
	var policy patchPolicy
	fatal.If(t, yaml.UnmarshalStrict(documents(t, "envoy/gateway.yaml")[0], &policy))
	for _, p := range policy.Spec.JSONPatches {
		if p.Name == "tieredd" {
			all = append(all, message(t, p.Operation.Value, &cluster.Cluster{}))
		}
	}
	if len(all) != 2 {
		t.Fatalf("%d clusters, want 2", len(all))
	}
	for i, c := range all {
		bound := c.GetCircuitBreakers().GetThresholds()[0]
		if bound.GetMaxRequests().GetValue() < 100_000 || bound.GetMaxPendingRequests().GetValue() < 100_000 {
			t.Errorf("cluster %d: %v, want both bounds to be 100 000 at least", i, bound)
		}
	}
}

// request makes the descriptors that Envoy would make: an action without its header makes none.
func (s snippet) request(t *testing.T, address, path, apiKey string) *pb.RateLimitRequest {
	t.Helper()
	headers := map[string]string{":path": path}
	if apiKey != "" {
		headers["x-api-key"] = apiKey
	}
	r := &pb.RateLimitRequest{Domain: s.filter.GetDomain()}
	for _, limit := range s.limits {
		d := &ratelimit.RateLimitDescriptor{}
		for _, a := range limit.GetActions() {
			key, value, ok := "", "", false
			switch is := a.GetActionSpecifier().(type) {
			case *route.RateLimit_Action_RemoteAddress_:
				key, value, ok = "remote_address", address, true
			case *route.RateLimit_Action_RequestHeaders_:
				key = is.RequestHeaders.GetDescriptorKey()
				value, ok = headers[is.RequestHeaders.GetHeaderName()]
			case *route.RateLimit_Action_HeaderValueMatch_:
				key, value = is.HeaderValueMatch.GetDescriptorKey(), is.HeaderValueMatch.GetDescriptorValue()
				ok = !slices.ContainsFunc(is.HeaderValueMatch.GetHeaders(), func(h *route.HeaderMatcher) bool {
					prefix := h.GetStringMatch().GetPrefix()
					return prefix == "" || !strings.HasPrefix(headers[h.GetName()], prefix)
				})
			default:
				t.Fatalf("the test does not know %v", a)
			}
			if !ok {
				d = nil
				break
			}
			d.Entries = append(d.Entries, &ratelimit.RateLimitDescriptor_Entry{Key: key, Value: value})
		}
		if d != nil {
			r.Descriptors = append(r.Descriptors, d)
		}
	}
	return r
}

// rulesOfManifest returns the rules in kubernetes/limits.yaml.
func rulesOfManifest(t *testing.T) string {
	t.Helper()
	var limits corev1.ConfigMap
	fatal.If(t, yaml.UnmarshalStrict(documents(t, "kubernetes/limits.yaml")[0], &limits))
	return limits.Data["shop.yaml"]
}

// What the snippets make Envoy ask meets the rules of the manifests, at the address of the
// manifests.
func TestSnippets(t *testing.T) {
	services := map[string]corev1.Service{} // by address
	for _, text := range documents(t, "kubernetes/tieredd.yaml") {
		if bytes.Contains(text, []byte("\nkind: Service\n")) {
			var s corev1.Service
			fatal.If(t, yaml.UnmarshalStrict(text, &s))
			services[s.Name+".ratelimit.svc.cluster.local"] = s
		}
	}
	for name, of := range map[string]func(*testing.T) snippet{
		"envoy": ofEnvoy, "istio": ofIstio, "gateway": ofEnvoyGateway,
	} {
		t.Run(name, func(t *testing.T) {
			s := of(t)
			for _, l := range s.limits {
				validate(t, l)
			}
			service := services[s.host]
			if (service.Spec.ClusterIP == corev1.ClusterIPNone) != s.byDNS || !slices.ContainsFunc(service.Spec.Ports,
				func(p corev1.ServicePort) bool { return p.Name == "grpc" && uint32(p.Port) == s.port }) {
				t.Errorf("%s:%d is not the gRPC port of a Service: %+v", s.host, s.port, service.Spec)
			}
			if s.filter.GetTimeout().AsDuration() <= defaults.Budget {
				t.Errorf("a timeout of %v: Envoy gives up before the fail mode decides", s.filter.GetTimeout().AsDuration())
			}
			synctest.Test(t, func(t *testing.T) { // in which no minute ends
				service := newService(t, remote.NewMemory(), rulesOfManifest(t), nil)
				ask := func(address, path, key string) string {
					answer := fatal.Get(service.ShouldRateLimit(t.Context(), s.request(t, address, path, key)))(t)
					text := answer.GetOverallCode().String()
					for _, s := range answer.GetStatuses() {
						text += fmt.Sprintf(" %d/%s", s.GetCurrentLimit().GetRequestsPerUnit(), s.GetCurrentLimit().GetUnit())
					}
					return text
				}
				for i, step := range []struct{ address, path, key, want string }{
					{"10.0.0.1", "/", "", "OK 600/MINUTE"},
					{"10.0.0.1", "/checkout", "", "OK 600/MINUTE"},
					{"10.0.0.1", "/", "ann", "OK 600/MINUTE 100/SECOND"},
					{"10.0.0.1", "/checkout/pay", "ann", "OK 600/MINUTE 100/SECOND 10/MINUTE"},
				} {
					if got := ask(step.address, step.path, step.key); got != step.want {
						t.Errorf("step %d: %s, want %s", i, got, step.want)
					}
				}
				for range 9 {
					ask("10.0.0.1", "/checkout", "ann")
				}
				if got := ask("10.0.0.2", "/checkout", "ann"); !strings.HasPrefix(got, "OVER_LIMIT") {
					t.Errorf("the 11th checkout: %s", got)
				}
				if got := ask("10.0.0.2", "/checkout", "bob"); !strings.HasPrefix(got, "OK") {
					t.Errorf("another's checkout: %s", got)
				}
			})
		})
	}
}
