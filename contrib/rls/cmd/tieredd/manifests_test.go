package main_test

import (
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	"sigs.k8s.io/yaml"

	"github.com/tiered-limiter/tiered-limiter/contrib/rls"
	tieredd "github.com/tiered-limiter/tiered-limiter/contrib/rls/cmd/tieredd"
	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/fatal"
)

// decode reads a manifest into the official type, and refuses fields that it does not have.
func decode[T any](t *testing.T, text string) (is T) {
	t.Helper()
	if err := yaml.UnmarshalStrict([]byte(text), &is); err != nil {
		t.Errorf("%v\n%s", err, text)
	}
	return is
}

func documents(t *testing.T, name string) []string {
	t.Helper()
	text := fatal.Get(os.ReadFile("../../kubernetes/" + name))(t)
	return strings.Split(string(text), "\n---\n")
}

// The manifests are valid, and agree with each other and with the settings.
func TestManifests(t *testing.T) {
	parts := documents(t, "tieredd.yaml")
	if len(parts) != 5 {
		t.Fatalf("%d documents", len(parts))
	}
	deployment := decode[appsv1.Deployment](t, parts[0])
	service, headless := decode[corev1.Service](t, parts[1]), decode[corev1.Service](t, parts[2])
	scaler := decode[autoscalingv2.HorizontalPodAutoscaler](t, parts[3])
	budget := decode[policyv1.PodDisruptionBudget](t, parts[4])
	limits := decode[corev1.ConfigMap](t, documents(t, "limits.yaml")[0])
	if headless.Spec.ClusterIP != corev1.ClusterIPNone || scaler.Spec.ScaleTargetRef.Name != deployment.Name ||
		deployment.Spec.Replicas != nil {
		t.Errorf("%+v, %+v", headless.Spec, scaler.Spec.ScaleTargetRef)
	}
	kinds := []string{deployment.Kind, service.Kind, headless.Kind, scaler.Kind, budget.Kind, limits.Kind}
	if !slices.Equal(kinds, []string{
		"Deployment", "Service", "Service", "HorizontalPodAutoscaler", "PodDisruptionBudget", "ConfigMap",
	}) {
		t.Errorf("%v", kinds)
	}
	pod := deployment.Spec.Template
	c := pod.Spec.Containers[0]
	for _, selector := range []map[string]string{
		deployment.Spec.Selector.MatchLabels, service.Spec.Selector, headless.Spec.Selector, budget.Spec.Selector.MatchLabels,
	} {
		if selector["app"] == "" || selector["app"] != pod.Labels["app"] {
			t.Errorf("%v does not select the pods %v", selector, pod.Labels)
		}
	}

	// The environment is what the program reads, and the rest of the manifests agrees with it.
	known := map[string]bool{} // without GOMEMLIMIT: it is taken from the limit
	for f := range reflect.TypeFor[tieredd.Settings]().Fields() {
		known[f.Tag.Get("env")] = true
	}
	fromSecret := 0
	for _, e := range c.Env {
		if !known[e.Name] {
			t.Errorf("%s is not a setting", e.Name)
		}
		value := e.Value
		if e.ValueFrom != nil {
			fromSecret++
			value = "redis://redis:6379"
			if e.Name != "REDIS_URL" || e.ValueFrom.SecretKeyRef == nil {
				t.Errorf("%+v", e)
			}
		}
		t.Setenv(e.Name, value)
	}
	s, err := tieredd.ReadSettings()
	if err != nil || fromSecret != 1 {
		t.Fatal(err, fromSecret)
	}
	if s.Processes != int(*scaler.Spec.MinReplicas) {
		t.Errorf("TIERED_PROCESSES is %d, minReplicas is %d", s.Processes, *scaler.Spec.MinReplicas)
	}
	ports := map[string]uint16{"http": s.Port, "grpc": s.GRPCPort, "debug": s.DebugPort}
	if len(c.Ports) != len(ports) || pod.Annotations["prometheus.io/port"] != strconv.Itoa(int(s.DebugPort)) {
		t.Errorf("%+v, %v", c.Ports, pod.Annotations)
	}
	for _, p := range c.Ports {
		if ports[p.Name] != uint16(p.ContainerPort) {
			t.Errorf("port %s is %d, the settings say %d", p.Name, p.ContainerPort, ports[p.Name])
		}
	}
	for _, p := range slices.Concat(service.Spec.Ports, headless.Spec.Ports) {
		if p.TargetPort.StrVal != p.Name || ports[p.Name] != uint16(p.Port) {
			t.Errorf("%+v", p)
		}
	}
	if live, ready := c.LivenessProbe.HTTPGet, c.ReadinessProbe.HTTPGet; live.Path != "/healthz" || ready.Path != "/readyz" ||
		live.Port.StrVal != "http" || ready.Port.StrVal != "http" {
		t.Errorf("%+v, %+v", live, ready)
	}
	grace := time.Duration(*pod.Spec.TerminationGracePeriodSeconds) * time.Second
	if grace <= s.Drain+tieredd.ReturnTime || s.Drain < 2*s.DrainDelay {
		t.Errorf("a grace period of %v, for %v, of which the first %v, and %v", grace, s.Drain, s.DrainDelay, tieredd.ReturnTime)
	}
	if memory := c.Resources.Limits.Memory().Value(); memory < 256<<20 { // a flood takes 170 MB: TestMemoryOfAFlood
		t.Errorf("a limit of %d bytes of memory", memory)
	}

	mount := c.VolumeMounts[0]
	if mount.MountPath != s.Directory() || mount.SubPath != "" || pod.Spec.Volumes[0].Name != mount.Name ||
		pod.Spec.Volumes[0].ConfigMap.Name != limits.Name {
		t.Errorf("%+v is mounted, and %s is read", mount, s.Directory())
	}
	for name, text := range limits.Data {
		fatal.Get(rls.Parse(rls.File{Name: name, Text: []byte(text)}))(t)
	}
}

// The NetworkPolicy is of the pods, and lets the proxies of the snippets reach the ports for them,
// and nobody else.
func TestNetworkPolicy(t *testing.T) {
	p := decode[networkingv1.NetworkPolicy](t, documents(t, "network.yaml")[0])
	pod := decode[appsv1.Deployment](t, documents(t, "tieredd.yaml")[0]).Spec.Template
	if p.Kind != "NetworkPolicy" || p.Spec.PodSelector.MatchLabels["app"] != pod.Labels["app"] || len(p.Spec.Ingress) != 2 ||
		!slices.Equal(p.Spec.PolicyTypes, []networkingv1.PolicyType{networkingv1.PolicyTypeIngress}) {
		t.Fatalf("%+v", p.Spec)
	}
	open := map[string]string{} // the namespaces that reach a port
	for _, rule := range p.Spec.Ingress {
		if len(rule.From) != 1 || rule.From[0].NamespaceSelector == nil {
			t.Fatalf("%+v", rule.From)
		}
		for _, port := range rule.Ports {
			open[port.Port.StrVal] = metav1.FormatLabelSelector(rule.From[0].NamespaceSelector)
		}
	}
	proxies := "kubernetes.io/metadata.name in (envoy-gateway-system,istio-system)"
	want := map[string]string{"grpc": proxies, "http": proxies, "debug": "kubernetes.io/metadata.name=monitoring"}
	if !maps.Equal(open, want) {
		t.Errorf("%v, want %v", open, want)
	}
	for _, port := range pod.Spec.Containers[0].Ports {
		if open[port.Name] == "" {
			t.Errorf("nobody reaches the port %s", port.Name)
		}
	}
}

// The base, and an overlay that changes the image and the namespace as a user's does, render to
// manifests that are all valid. kustomize is a library here, so no kubectl is needed.
func TestKustomization(t *testing.T) {
	const image, namespace = "registry.example.org/tieredd:2", "limits"
	fs := filesys.MakeFsOnDisk()
	dir := fatal.Get(filepath.Abs("../../kubernetes"))(t)
	overlay := t.TempDir()
	base := fatal.Get(filepath.Rel(fatal.Get(filepath.EvalSymlinks(overlay))(t), dir))(t)
	_, block := page(t, "resources:\n")
	block = strings.Replace(block, "github.com/tiered-limiter/tiered-limiter/contrib/rls/kubernetes?ref=v0.1.0", base, 1)
	fatal.If(t, os.WriteFile(filepath.Join(overlay, "kustomization.yaml"), []byte(block), 0o600))
	for _, at := range []string{dir, overlay} {
		rendered := fatal.Get(krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(fs, at))(t)
		kinds := map[string]int{}
		for _, r := range rendered.Resources() {
			text := string(fatal.Get(r.AsYAML())(t))
			kind := r.GetKind()
			kinds[kind]++
			if at == overlay && r.GetNamespace() != namespace {
				t.Errorf("%s is in the namespace %q", r.CurId(), r.GetNamespace())
			}
			switch kind {
			case "Deployment":
				c := decode[appsv1.Deployment](t, text).Spec.Template.Spec.Containers[0]
				if at == overlay && c.Image != image || c.Command != nil {
					t.Errorf("the container is %s %v", c.Image, c.Command)
				}
			case "Service":
				decode[corev1.Service](t, text)
			case "ConfigMap":
				decode[corev1.ConfigMap](t, text)
			case "HorizontalPodAutoscaler":
				decode[autoscalingv2.HorizontalPodAutoscaler](t, text)
			case "PodDisruptionBudget":
				decode[policyv1.PodDisruptionBudget](t, text)
			case "NetworkPolicy":
				decode[networkingv1.NetworkPolicy](t, text)
			default:
				t.Errorf("a %s", kind)
			}
		}
		want := map[string]int{"Deployment": 1, "Service": 2, "ConfigMap": 1, "HorizontalPodAutoscaler": 1, "PodDisruptionBudget": 1, "NetworkPolicy": 1}
		if !maps.Equal(kinds, want) {
			t.Errorf("%v, want %v", kinds, want)
		}
	}
}
