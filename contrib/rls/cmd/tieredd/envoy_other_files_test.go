package main_test

import (
	"encoding/json"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	istio "istio.io/api/networking/v1alpha3"
	"sigs.k8s.io/yaml"

	"github.com/tiered-limiter/tiered-limiter/contrib/rls/internal/envoytest"
	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/fatal"
)

// patched returns envoy/envoy.yaml with all that another file patches into an Envoy in place of its
// own.
func patched(t *testing.T, c *envoytest.Config, filter, limits any, cluster envoytest.Tree) {
	t.Helper()
	c.Manager["http_filters"].([]any)[0] = filter
	c.Filter = envoytest.Under(t, filter, "typed_config")
	c.Host["rate_limits"] = limits
	cluster["load_assignment"], cluster["type"] = c.Cluster["load_assignment"], "STATIC"
	c.All["static_resources"].(envoytest.Tree)["clusters"].([]any)[0] = cluster
	c.Cluster = cluster
}

// ofGateway patches what envoy/gateway.yaml makes Envoy Gateway patch.
func ofGateway(t *testing.T, c *envoytest.Config) {
	t.Helper()
	text := fatal.Get(os.ReadFile("../../envoy/gateway.yaml"))(t)
	patches := envoytest.Under(t, envoytest.Parsed(t, string(text)), "spec")["jsonPatches"].([]any)
	value := func(i int) any { return envoytest.Under(t, patches, i, "operation")["value"] }
	patched(t, c, value(0), value(1), value(2).(envoytest.Tree))
}

// ofIstio patches what envoy/istio.yaml makes Istio patch, without some lines of its
// DestinationRule's outlier detection. The cluster is the one that Istio makes for a Service by
// such a rule (pilot, cluster_traffic_policy.go): without bounds of requests, and without a panic
// threshold unless the rule has one.
func ofIstio(t *testing.T, c *envoytest.Config, without ...string) {
	t.Helper()
	text := fatal.Get(os.ReadFile("../../envoy/istio.yaml"))(t)
	filter, rule, _ := strings.Cut(string(text), "\n---\n")
	patches := envoytest.Under(t, envoytest.Parsed(t, filter), "spec")["configPatches"].([]any)
	value := func(i int) envoytest.Tree { return envoytest.Under(t, patches, i, "patch", "value") }
	tree := envoytest.Under(t, envoytest.Parsed(t, rule), "spec")
	for _, line := range without {
		delete(envoytest.Under(t, tree, "trafficPolicy", "outlierDetection"), line)
	}
	specText := fatal.Get(json.Marshal(tree))(t)
	var spec istio.DestinationRule
	fatal.If(t, protojson.Unmarshal(specText, &spec))
	d := spec.GetTrafficPolicy().GetOutlierDetection()
	name := envoytest.Under(t, value(0), "typed_config", "rate_limit_service", "grpc_service", "envoy_grpc")["cluster_name"].(string)
	if !strings.HasSuffix(name, "||"+spec.GetHost()) {
		t.Fatalf("the rule is about %s, and the cluster is %s", spec.GetHost(), name)
	}
	out := envoytest.Tree{"enforcing_success_rate": 0}
	if n := d.GetConsecutive_5XxErrors(); n != nil {
		out["consecutive_5xx"], out["enforcing_consecutive_5xx"] = n.GetValue(), min(100*n.GetValue(), 100)
	}
	if n := d.GetMaxEjectionPercent(); n > 0 {
		out["max_ejection_percent"] = n
	}
	if d.GetSplitExternalLocalOriginErrors() {
		out["split_external_local_origin_errors"], out["enforcing_local_origin_success_rate"] = true, 0
		if n := d.GetConsecutiveLocalOriginFailures().GetValue(); n > 0 {
			out["consecutive_local_origin_failure"], out["enforcing_consecutive_local_origin_failure"] = n, 100
		}
	}
	patched(t, c, value(0), value(1)["rate_limits"], envoytest.Tree{
		"name": name, "connect_timeout": "10s", "typed_extension_protocol_options": c.Cluster["typed_extension_protocol_options"],
		"circuit_breakers":  envoytest.Tree{"thresholds": []any{envoytest.Tree{"max_requests": 4294967295, "max_pending_requests": 4294967295}}},
		"outlier_detection": out,
		"common_lb_config":  envoytest.Tree{"healthy_panic_threshold": envoytest.Tree{"value": d.GetMinHealthPercent()}},
	})
}

// An Envoy with what the files for Istio and Envoy Gateway make of it limits as the manifests say.
// How it leaves replicas out: TestEnvoyIstioIsShown, and the cluster of Envoy Gateway is that of
// envoy.yaml.
func TestEnvoyOtherFiles(t *testing.T) {
	envoytest.Program(t)
	f := startReplicas(t, 1, rulesHandedOut)
	behind := envoytest.Upstream(t)
	for name, of := range map[string]func(*testing.T, *envoytest.Config){
		"gateway": ofGateway, "istio": func(t *testing.T, c *envoytest.Config) { ofIstio(t, c) },
	} {
		c := envoytest.HandedOut(t, behind, f.addresses()...)
		of(t, c)
		c.Filter["timeout"] = "60s" // a busy machine is no outage
		s := &stage{f, envoytest.Start(t, c), c.Cluster["name"].(string)}
		if wrong := s.spellings(t, "/checkout"); wrong != "" {
			t.Errorf("%s: %s", name, wrong)
		}
	}
	gateway, envoy := envoytest.HandedOut(t, behind), envoytest.HandedOut(t, behind)
	ofGateway(t, gateway)
	for _, part := range []string{"load_assignment", "type"} {
		delete(gateway.Cluster, part)
		delete(envoy.Cluster, part)
	}
	a, _ := yaml.Marshal(gateway.Cluster)
	b, _ := yaml.Marshal(envoy.Cluster)
	if string(a) != string(b) {
		t.Errorf("gateway.yaml has another cluster than envoy.yaml:\n%s\n%s", a, b)
	}
}

// Each line of envoy/istio.yaml about how a replica is left out, and the timeout, is needed: with
// it all is well, and without it a real Envoy, made as Istio makes it, lets calls pass or leaves
// replicas out that answer.
func TestEnvoyIstioIsShown(t *testing.T) {
	envoytest.Program(t)
	f := startReplicas(t, 3, rulesHandedOut)
	behind := envoytest.Upstream(t)
	play := func(t *testing.T, scenario string, without ...string) string {
		c := envoytest.HandedOut(t, behind, f.addresses()...)
		ofIstio(t, c, without...)
		c.Host["rate_limits"] = append(c.Host["rate_limits"].([]any), closedPath(t))
		if !strings.Contains(scenario, "still") && !strings.Contains(scenario, "frozen") {
			c.Filter["timeout"] = "60s" // a busy machine is no outage
		}
		if slices.Contains(without, "timeout") {
			delete(c.Filter, "timeout")
		}
		s := &stage{f, envoytest.Start(t, c), c.Cluster["name"].(string)}
		defer s.envoy.Process.Kill()        //nolint:errcheck // it has ended
		time.Sleep(1100 * time.Millisecond) // changes of the first second are merged
		return scenarios[scenario](t, s)
	}
	lines := map[string]string{
		"splitExternalLocalOriginErrors": "a replica is killed",
		"consecutiveLocalOriginFailures": "a replica is frozen",
		"consecutive5xxErrors":           "a rule with fail-closed, and Redis is away",
		"maxEjectionPercent":             "a replica is killed", // by itself Envoy leaves out a tenth: none of three
		"timeout":                        "replicas stand still for 40 ms now and then",
	}
	text := fatal.Get(os.ReadFile("../../envoy/istio.yaml"))(t)
	_, rule, _ := strings.Cut(string(text), "\n---\n")
	for line := range envoytest.Under(t, envoytest.Parsed(t, rule), "spec", "trafficPolicy", "outlierDetection") {
		if lines[line] == "" {
			t.Errorf("nothing shows what %s is for", line)
		}
	}
	for line, scenario := range lines {
		t.Run(line+": "+scenario, func(t *testing.T) {
			wrong := ""
			for range 3 { // a busy machine answers late by itself
				if wrong = play(t, scenario); wrong == "" {
					break
				}
				t.Log(wrong)
			}
			if wrong != "" {
				t.Error(wrong)
			}
			for range 3 { // a busy machine may be too late for the outage
				if wrong := play(t, scenario, line); wrong != "" {
					t.Log("without it: ", wrong)
					return
				}
			}
			t.Error("nothing is wrong without it: the line is not needed")
		})
	}
}
