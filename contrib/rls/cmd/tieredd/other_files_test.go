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
)

// patched returns envoy/envoy.yaml with all that another file patches into an Envoy in place of its own.
func patched(t *testing.T, c *envoyConfig, filter, limits any, cluster tree) {
	t.Helper()
	c.manager["http_filters"].([]any)[0] = filter
	c.filter = under(t, filter, "typed_config")
	c.host["rate_limits"] = limits
	cluster["load_assignment"], cluster["type"] = c.cluster["load_assignment"], "STATIC"
	c.all["static_resources"].(tree)["clusters"].([]any)[0] = cluster
	c.cluster = cluster
}

// ofGateway patches what envoy/gateway.yaml makes Envoy Gateway patch.
func ofGateway(t *testing.T, c *envoyConfig) {
	t.Helper()
	text, err := os.ReadFile("../../envoy/gateway.yaml")
	if err != nil {
		t.Fatal(err)
	}
	patches := under(t, parsed(t, string(text)), "spec")["jsonPatches"].([]any)
	value := func(i int) any { return under(t, patches, i, "operation")["value"] }
	patched(t, c, value(0), value(1), value(2).(tree))
}

// ofIstio patches what envoy/istio.yaml makes Istio patch. The cluster is the one that Istio makes for a Service: without
// bounds of requests, and with the outlier detection of the DestinationRule.
func ofIstio(t *testing.T, c *envoyConfig) {
	t.Helper()
	text, err := os.ReadFile("../../envoy/istio.yaml")
	if err != nil {
		t.Fatal(err)
	}
	filter, rule, _ := strings.Cut(string(text), "\n---\n")
	patches := under(t, parsed(t, filter), "spec")["configPatches"].([]any)
	value := func(i int) tree { return under(t, patches, i, "patch", "value") }
	specText, err := json.Marshal(under(t, parsed(t, rule), "spec"))
	if err != nil {
		t.Fatal(err)
	}
	var spec istio.DestinationRule
	if err := protojson.Unmarshal(specText, &spec); err != nil {
		t.Fatal(err)
	}
	d := spec.GetTrafficPolicy().GetOutlierDetection()
	name := under(t, value(0), "typed_config", "rate_limit_service", "grpc_service", "envoy_grpc")["cluster_name"].(string)
	if !strings.HasSuffix(name, "||"+spec.GetHost()) || !d.GetSplitExternalLocalOriginErrors() || d.GetConsecutive_5XxErrors() == nil ||
		d.GetConsecutive_5XxErrors().GetValue() != 0 {
		t.Fatalf("the rule is about %s with %v, and the cluster is %s", spec.GetHost(), d, name)
	}
	patched(t, c, value(0), value(1)["rate_limits"], tree{
		"name": name, "connect_timeout": "10s", "typed_extension_protocol_options": c.cluster["typed_extension_protocol_options"],
		"circuit_breakers": tree{"thresholds": []any{tree{"max_requests": 4294967295, "max_pending_requests": 4294967295}}},
		"outlier_detection": tree{
			"split_external_local_origin_errors": true, "consecutive_local_origin_failure": d.GetConsecutiveLocalOriginFailures().GetValue(),
			"enforcing_consecutive_local_origin_failure": 100, "consecutive_5xx": 0, "enforcing_consecutive_5xx": 0, "enforcing_success_rate": 0,
			"enforcing_local_origin_success_rate": 0, "base_ejection_time": d.GetBaseEjectionTime().AsDuration().String(),
			"max_ejection_percent": d.GetMaxEjectionPercent(),
		},
		"common_lb_config": tree{"healthy_panic_threshold": tree{"value": d.GetMinHealthPercent()}},
	})
}

// An Envoy with what the files for Istio and Envoy Gateway make of it leaves a replica out that is killed or frozen, and
// limits as the manifests say.
func TestEnvoyOtherFiles(t *testing.T) {
	envoyProgram(t)
	f := startReplicas(t, 3, rulesHandedOut)
	behind := upstream(t)
	for name, of := range map[string]func(*testing.T, *envoyConfig){"gateway": ofGateway, "istio": ofIstio} {
		for _, scenario := range []string{"a replica is killed", "a replica is frozen"} {
			t.Run(name+": "+scenario, func(t *testing.T) {
				var wrong string
				for range 3 { // a busy machine answers late by itself
					c := handedOut(t, behind, f.addresses()...)
					of(t, c)
					s := &stage{f, startEnvoy(t, c), c.cluster["name"].(string)}
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
	gateway, envoy := handedOut(t, behind), handedOut(t, behind)
	ofGateway(t, gateway)
	for _, part := range []string{"load_assignment", "type"} {
		delete(gateway.cluster, part)
		delete(envoy.cluster, part)
	}
	a, _ := yaml.Marshal(gateway.cluster)
	b, _ := yaml.Marshal(envoy.cluster)
	if string(a) != string(b) {
		t.Errorf("gateway.yaml has another cluster than envoy.yaml:\n%s\n%s", a, b)
	}
}
