// Package services_test starts each example as its users do, and checks the manifests.
package services_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	pb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"sigs.k8s.io/yaml"

	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/redistest"
)

// program is a running example.
type program struct {
	*exec.Cmd
	out string // the file with what it printed
}

// start builds an example and starts it. It ends with the test.
func start(t *testing.T, example string, stdin io.Reader, args ...string) *program {
	t.Helper()
	dir := t.TempDir()
	binary := filepath.Join(dir, example)
	if out, err := exec.Command("go", "build", "-o", binary, "./"+example).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	p := &program{Cmd: exec.Command(binary, args...), out: filepath.Join(dir, "out")}
	file, err := os.Create(p.out)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = file.Close() })
	p.Stdin, p.Stdout, p.Stderr = stdin, file, file
	p.SysProcAttr = redistest.DieWithParent()
	runtime.LockOSThread() // or the process would die with the thread
	t.Cleanup(runtime.UnlockOSThread)
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = p.Process.Kill()
		_ = p.Wait()
		if t.Failed() {
			t.Log(p.printed())
		}
	})
	return p
}

func (p *program) printed() string {
	text, _ := os.ReadFile(p.out)
	return string(text)
}

// terminate sends SIGTERM. The program must end without an error, which it has if leases are not
// given back.
func (p *program) terminate(t *testing.T) {
	t.Helper()
	if err := p.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := p.Wait(); err != nil {
		t.Errorf("after SIGTERM: %v\n%s", err, p.printed())
	}
}

func freeAddress(t *testing.T) string {
	t.Helper()
	return "127.0.0.1:" + strconv.Itoa(redistest.FreePort(t))
}

// eventually waits for what must come soon, however busy the machine is.
func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	for begin := time.Now(); !is(); time.Sleep(20 * time.Millisecond) {
		if time.Since(begin) > time.Minute {
			t.Fatalf("%s: not within a minute", what)
		}
	}
}

// get returns the status and the body of an answer. The status is 0 if there is none.
func get(url, user string) (int, string) {
	r, err := http.NewRequest(http.MethodGet, url, nil)
	if err != nil {
		return 0, err.Error()
	}
	if user != "" {
		r.Header.Set("Authorization", "Bearer "+user)
	}
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		return 0, err.Error()
	}
	defer answer.Body.Close()
	body, _ := io.ReadAll(answer.Body)
	return answer.StatusCode, string(body)
}

// With the file that is shipped, a user has 20 requests at once. When the file changes, the limit
// does.
func TestAPI(t *testing.T) {
	redis := redistest.Start(t)
	shipped, err := os.ReadFile("api/policies.yaml")
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "policies.yaml")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(file+".next", []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(file+".next", file); err != nil {
			t.Fatal(err)
		}
	}
	write(strings.Replace(string(shipped), "100/min burst 20", "100/day burst 20", 1)) // nothing refills during the test
	users, operators := freeAddress(t), freeAddress(t)
	p := start(t, "api", nil, "-addr", users, "-operators", operators, "-policies", file, "-redis", redis.URL())
	eventually(t, "ready", func() bool { code, _ := get("http://"+operators+"/readyz", ""); return code == http.StatusOK })
	hello := func(user string) int { code, _ := get("http://"+users+"/api/hello", user); return code }
	eventually(t, "serving", func() bool { return hello("bob") == http.StatusOK })
	admitted := 0
	for range 30 {
		if hello("ann") == http.StatusOK {
			admitted++
		}
	}
	if admitted != 20 {
		t.Errorf("%d requests of 30 admitted, want 20", admitted)
	}
	write(strings.Replace(string(shipped), "100/min burst 20", "blocked", 1))
	asked := 0
	eventually(t, "the new file counts", func() bool {
		asked++ // each time another user, who has not used up anything
		return hello("cho"+strconv.Itoa(asked)) == http.StatusTooManyRequests
	})
	if asked > 900 { // all come from one address, which has 1000
		t.Errorf("the new file counts after %d requests: the other limit may have refused the last", asked)
	}
	limited := regexp.MustCompile(`(?m)^tiered_requested_tokens_total{policy="per-user",reason="limited"} (\d+)$`)
	if _, body := get("http://"+operators+"/metrics", ""); len(limited.FindStringSubmatch(body)) != 2 ||
		limited.FindStringSubmatch(body)[1] != "10" {
		t.Errorf("10 requests were refused, and /metrics says %q", limited.FindAllString(body, -1))
	}
	for _, path := range []string{"/livez", "/debug/limiter"} {
		if code, _ := get("http://"+operators+path, ""); code != http.StatusOK {
			t.Errorf("%s: %d", path, code)
		}
	}
	p.terminate(t)
}

// A port that is taken ends the program.
func TestAPIWithATakenPort(t *testing.T) {
	taken := freeAddress(t)
	server := &http.Server{Addr: taken}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = server.ListenAndServe()
	}()
	defer func() { _ = server.Close(); <-done }()
	eventually(t, "the port is taken", func() bool { code, _ := get("http://"+taken, ""); return code != 0 })
	p := start(t, "api", nil, "-addr", freeAddress(t), "-operators", taken, "-policies", "api/policies.yaml")
	if err := p.Wait(); err == nil || !strings.Contains(p.printed(), "address already in use") {
		t.Errorf("%v: %s", err, p.printed())
	}
}

func TestGRPC(t *testing.T) {
	redis := redistest.Start(t)
	addr := freeAddress(t)
	p := start(t, "grpc", nil, "-addr", addr, "-limit", "3/day", "-redis", redis.URL())
	conn, err := grpc.NewClient(addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	eventually(t, "healthy", func() bool {
		r, err := healthpb.NewHealthClient(conn).Check(t.Context(), &healthpb.HealthCheckRequest{})
		return err == nil && r.GetStatus() == healthpb.HealthCheckResponse_SERVING
	})
	call := func(user string) codes.Code {
		ctx := metadata.AppendToOutgoingContext(t.Context(), "authorization", "Bearer "+user)
		_, err := pb.NewTestServiceClient(conn).UnaryCall(ctx, &pb.SimpleRequest{})
		return status.Code(err)
	}
	var got []codes.Code
	for range 4 {
		got = append(got, call("ann"))
	}
	if want := []codes.Code{codes.OK, codes.OK, codes.OK, codes.ResourceExhausted}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	if code := call("bob"); code != codes.OK {
		t.Errorf("another client: %v", code)
	}
	p.terminate(t)
}

// The worker sends what the limits allow at once, waits with the rest, and at SIGTERM says what it
// did not send.
func TestWorker(t *testing.T) {
	redis := redistest.Start(t)
	reader, writer, err := os.Pipe() // stays open: more jobs may come
	if err != nil {
		t.Fatal(err)
	}
	defer writer.Close()
	defer reader.Close()
	p := start(t, "worker", reader, "-domain", "1/s burst 2", "-workers", "4", "-redis", redis.URL())
	fmt.Fprint(writer, strings.Repeat("a.example\n", 4)+"b.example\n")
	eventually(t, "all are sent", func() bool { return strings.Count(p.printed(), "sent: ") == 5 })

	fmt.Fprint(writer, strings.Repeat("c.example\n", 2)+strings.Repeat("a.example\n", 100))
	eventually(t, "a free domain is sent", func() bool { return strings.Count(p.printed(), "sent: c.example") > 0 })
	p.terminate(t)
	if n := strings.Count(p.printed(), "not sent: a.example"); n < 1 || n > 4 {
		t.Errorf("%d jobs of 4 workers were not sent:\n%s", n, p.printed())
	}
}

// decode reads a manifest into the official type, and refuses fields that it does not have.
func decode[T any](t *testing.T, text []byte) (is T) {
	t.Helper()
	if err := yaml.UnmarshalStrict(text, &is); err != nil {
		t.Errorf("%v\n%s", err, text)
	}
	return is
}

// The manifests are valid, and agree with each other and with the program.
func TestManifests(t *testing.T) {
	text, err := os.ReadFile("kubernetes/shop.yaml")
	if err != nil {
		t.Fatal(err)
	}
	parts := bytes.Split(text, []byte("\n---\n"))
	if len(parts) != 4 {
		t.Fatalf("%d documents", len(parts))
	}
	deployment := decode[appsv1.Deployment](t, parts[0])
	service := decode[corev1.Service](t, parts[1])
	scaler := decode[autoscalingv2.HorizontalPodAutoscaler](t, parts[2])
	budget := decode[policyv1.PodDisruptionBudget](t, parts[3])
	text, err = os.ReadFile("kubernetes/limits.yaml")
	if err != nil {
		t.Fatal(err)
	}
	limits := decode[corev1.ConfigMap](t, text)
	shipped, err := os.ReadFile("api/policies.yaml")
	if err != nil {
		t.Fatal(err)
	}

	pod := deployment.Spec.Template
	c := pod.Spec.Containers[0]
	for _, selector := range []map[string]string{
		deployment.Spec.Selector.MatchLabels, service.Spec.Selector, budget.Spec.Selector.MatchLabels,
	} {
		if selector["app"] == "" || selector["app"] != pod.Labels["app"] {
			t.Errorf("%v does not select the pods %v", selector, pod.Labels)
		}
	}
	kinds := []string{deployment.Kind, service.Kind, scaler.Kind, budget.Kind, limits.Kind}
	if !slices.Equal(kinds, []string{"Deployment", "Service", "HorizontalPodAutoscaler", "PodDisruptionBudget", "ConfigMap"}) ||
		scaler.Spec.ScaleTargetRef.Name != deployment.Name || deployment.Spec.Replicas != nil {
		t.Errorf("%v, %+v", kinds, scaler.Spec.ScaleTargetRef)
	}
	var ports []string
	for _, p := range c.Ports {
		ports = append(ports, p.Name)
	}
	for _, port := range []string{
		service.Spec.Ports[0].TargetPort.StrVal, c.LivenessProbe.HTTPGet.Port.StrVal, c.ReadinessProbe.HTTPGet.Port.StrVal,
	} {
		if !slices.Contains(ports, port) {
			t.Errorf("no port is %q", port)
		}
	}

	// The flags are those of the program, and say what the rest of the manifests says.
	help, _ := exec.CommandContext(t.Context(), "go", "run", "./api", "-help").CombinedOutput()
	args := map[string]string{}
	for _, arg := range c.Args {
		name, value, _ := strings.Cut(strings.TrimPrefix(arg, "-"), "=")
		if args[name] = value; !regexp.MustCompile(`(?m)^  -` + name + `\b`).Match(help) {
			t.Errorf("the program has no -%s:\n%s", name, help)
		}
	}
	for i, name := range []string{"addr", "operators"} {
		if want := fmt.Sprintf(":%d", c.Ports[i].ContainerPort); args[name] != want {
			t.Errorf("-%s is %q, want %q", name, args[name], want)
		}
	}
	if args["processes"] != strconv.Itoa(int(*scaler.Spec.MinReplicas)) {
		t.Errorf("-processes is %s, minReplicas is %d", args["processes"], *scaler.Spec.MinReplicas)
	}
	mount := c.VolumeMounts[0]
	if dir, key := filepath.Split(args["policies"]); filepath.Clean(dir) != mount.MountPath || limits.Data[key] != string(shipped) ||
		mount.SubPath != "" || pod.Spec.Volumes[0].Name != mount.Name || pod.Spec.Volumes[0].ConfigMap.Name != limits.Name {
		t.Errorf("-policies is %q, mounted is %+v, and the ConfigMap is not api/policies.yaml", args["policies"], mount)
	}
	// preStop, requests and leases.
	if grace := *pod.Spec.TerminationGracePeriodSeconds; grace <= c.Lifecycle.PreStop.Sleep.Seconds+15+5 {
		t.Errorf("a grace period of %d s", grace)
	}
}

// The command in the Dockerfile names what there is. It is not run: that compiles all again without
// cgo.
func TestDockerfile(t *testing.T) {
	text, err := os.ReadFile("Dockerfile")
	if err != nil {
		t.Fatal(err)
	}
	m := regexp.MustCompile(`RUN cd examples/services && (CGO_ENABLED=0 go build .*) -o /shop (\S+)`).FindSubmatch(text)
	if m == nil {
		t.Fatal("no command builds /shop")
	}
	command := fmt.Sprintf("%s -n -o %s %s", m[1], filepath.Join(t.TempDir(), "shop"), m[2])
	if out, err := exec.CommandContext(context.Background(), "sh", "-c", command).CombinedOutput(); err != nil {
		t.Errorf("%s: %v\n%s", command, err, out)
	}
}
