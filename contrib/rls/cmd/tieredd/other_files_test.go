package main

import (
	"encoding/json"
	"os"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	istio "istio.io/api/networking/v1alpha3"
	"sigs.k8s.io/yaml"

	"github.com/tiered-limiter/tiered-limiter/contrib/rls/internal/envoytest"
)

// patched returns envoy/envoy.yaml with all that another file patches into an Envoy in place of its own.
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
	text, err := os.ReadFile("../../envoy/gateway.yaml")
	if err != nil {
		t.Fatal(err)
	}
	patches := envoytest.Under(t, envoytest.Parsed(t, string(text)), "spec")["jsonPatches"].([]any)
	value := func(i int) any { return envoytest.Under(t, patches, i, "operation")["value"] }
	patched(t, c, value(0), value(1), value(2).(envoytest.Tree))
}

// ofIstio patches what envoy/istio.yaml makes Istio patch. The cluster is the one that Istio makes for a Service: without
// bounds of requests, and with the outlier detection of the DestinationRule.
func ofIstio(t *testing.T, c *envoytest.Config) {
	t.Helper()
	text, err := os.ReadFile("../../envoy/istio.yaml")
	if err != nil {
		t.Fatal(err)
	}
	filter, rule, _ := strings.Cut(string(text), "\n---\n")
	patches := envoytest.Under(t, envoytest.Parsed(t, filter), "spec")["configPatches"].([]any)
	value := func(i int) envoytest.Tree { return envoytest.Under(t, patches, i, "patch", "value") }
	specText, err := json.Marshal(envoytest.Under(t, envoytest.Parsed(t, rule), "spec"))
	if err != nil {
		t.Fatal(err)
	}
	var spec istio.DestinationRule
	if err := protojson.Unmarshal(specText, &spec); err != nil {
		t.Fatal(err)
	}
	d := spec.GetTrafficPolicy().GetOutlierDetection()
	name := envoytest.Under(t, value(0), "typed_config", "rate_limit_service", "grpc_service", "envoy_grpc")["cluster_name"].(string)
	if !strings.HasSuffix(name, "||"+spec.GetHost()) || !d.GetSplitExternalLocalOriginErrors() || d.GetConsecutive_5XxErrors() == nil ||
		d.GetConsecutive_5XxErrors().GetValue() != 0 {
		t.Fatalf("the rule is about %s with %v, and the cluster is %s", spec.GetHost(), d, name)
	}
	patched(t, c, value(0), value(1)["rate_limits"], envoytest.Tree{
		"name": name, "connect_timeout": "10s", "typed_extension_protocol_options": c.Cluster["typed_extension_protocol_options"],
		"circuit_breakers": envoytest.Tree{"thresholds": []any{envoytest.Tree{"max_requests": 4294967295, "max_pending_requests": 4294967295}}},
		"outlier_detection": envoytest.Tree{
			"split_external_local_origin_errors": true, "consecutive_local_origin_failure": d.GetConsecutiveLocalOriginFailures().GetValue(),
			"enforcing_consecutive_local_origin_failure": 100, "consecutive_5xx": 0, "enforcing_consecutive_5xx": 0, "enforcing_success_rate": 0,
			"enforcing_local_origin_success_rate": 0, "max_ejection_percent": d.GetMaxEjectionPercent(),
		},
		"common_lb_config": envoytest.Tree{"healthy_panic_threshold": envoytest.Tree{"value": d.GetMinHealthPercent()}},
	})
}

// An Envoy with what the files for Istio and Envoy Gateway make of it leaves a replica out that is killed or frozen, and
// limits as the manifests say.
func TestEnvoyOtherFiles(t *testing.T) {
	envoytest.Program(t)
	f := startReplicas(t, 3, rulesHandedOut)
	behind := envoytest.Upstream(t)
	for name, of := range map[string]func(*testing.T, *envoytest.Config){"gateway": ofGateway, "istio": ofIstio} {
		for _, scenario := range []string{"a replica is killed", "a replica is frozen"} {
			t.Run(name+": "+scenario, func(t *testing.T) {
				var wrong string
				for range 3 { // a busy machine answers late by itself
					c := envoytest.HandedOut(t, behind, f.addresses()...)
					of(t, c)
					s := &stage{f, envoytest.Start(t, c), c.Cluster["name"].(string)}
					time.Sleep(1100 * time.Millisecond) // changes of the first second are merged
					wrong = scenarios[scenario](t, s)
					if wrong == "" {
						wrong = s.spellings(t, "/checkout")
					}
					_ = s.envoy.Process.Kill()
					if wrong == "" {
						return
					}
					t.Log(wrong)
				}
				t.Error(wrong)
			})
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
