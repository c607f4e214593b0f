package bench_test

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/redis/go-redis/v9"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	health "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/fatal"
	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/race"
	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/redistest"
)

// program is a rate limit service that can be started.
type program struct {
	name   string
	binary string
	env    []string // besides what both get
}

// build builds both services. The settings of envoyproxy/ratelimit are the best that its README
// documents: writes to Redis are collected for 150 µs, keys over their limit are cached in the
// process, and no statistics are sent.
func build(t *testing.T) (ours, theirs program) {
	t.Helper()
	theirs = program{
		name: "envoyproxy/ratelimit", binary: filepath.Join(t.TempDir(), "theirs"),
		env: []string{"REDIS_PIPELINE_WINDOW=150us", "LOCAL_CACHE_SIZE_IN_BYTES=67108864"},
	}
	goBuild(t, "-C", "theirs", "-o", theirs.binary, "github.com/envoyproxy/ratelimit/src/service_cmd")
	return buildOurs(t), theirs
}

func buildOurs(t *testing.T) program {
	t.Helper()
	if race.On {
		t.Skip("it starts processes, which the race detector does not watch: go test without -race")
	}
	p := program{name: "tieredd", binary: filepath.Join(t.TempDir(), "tieredd")}
	goBuild(t, "-o", p.binary, "../cmd/tieredd")
	return p
}

func goBuild(t *testing.T, args ...string) {
	t.Helper()
	if out, err := exec.Command("go", append([]string{"build"}, args...)...).CombinedOutput(); err != nil {
		t.Fatalf("go build %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

// service is a running service with its replicas and its Redis.
type service struct {
	program
	replicas []*replica
	redis    *redistest.Server
	info     *redis.Client // to redis. One for all questions: a new connection is a command that would be counted
}

// replica is a process of a service.
type replica struct {
	*exec.Cmd
	binary  string
	env     []string
	log     bytes.Buffer
	client  pb.RateLimitServiceClient
	address string // of its gRPC port
}

// start starts replicas of a program with files of a configuration and a Redis of their own. They
// end with the test.
func (p program) start(t *testing.T, replicas int, files ...string) *service {
	t.Helper()
	s := &service{program: p, redis: redistest.StartOpen(t)}
	s.info = s.redis.Client()
	t.Cleanup(func() { _ = s.info.Close() })
	root := t.TempDir()
	dir := filepath.Join(root, "ratelimit", "config")
	fatal.If(t, os.MkdirAll(dir, 0o755))
	for i, text := range files {
		fatal.If(t, os.WriteFile(filepath.Join(dir, fmt.Sprintf("bench%d.yaml", i)), []byte(text), 0o600))
	}
	for range replicas {
		s.replicas = append(s.replicas, s.replica(t, root))
	}
	return s
}

func (s *service) replica(t *testing.T, root string) *replica {
	t.Helper()
	port, public, debug := redistest.FreePort(t), redistest.FreePort(t), redistest.FreePort(t)
	r := &replica{binary: s.binary, address: net.JoinHostPort("127.0.0.1", strconv.Itoa(port))}
	r.env = append(os.Environ(),
		"RUNTIME_ROOT="+root, "RUNTIME_SUBDIRECTORY=ratelimit", "RUNTIME_WATCH_ROOT=false",
		"REDIS_SOCKET_TYPE=tcp", "REDIS_URL="+s.redis.Addr, "USE_STATSD=false", "DISABLE_STATS=true", "LOG_LEVEL=error",
		"GRPC_HOST=127.0.0.1", "GRPC_PORT="+strconv.Itoa(port),
		"HOST=127.0.0.1", "PORT="+strconv.Itoa(public), "DEBUG_HOST=127.0.0.1", "DEBUG_PORT="+strconv.Itoa(debug))
	r.env = append(r.env, s.env...)
	// Started on a thread that stays, or the process would die with the thread.
	runtime.LockOSThread()
	t.Cleanup(runtime.UnlockOSThread)
	conn := fatal.Get(grpc.NewClient(r.address, grpc.WithTransportCredentials(insecure.NewCredentials())))(t)
	t.Cleanup(func() { _ = conn.Close() })
	r.client = pb.NewRateLimitServiceClient(conn)
	r.run(t)
	t.Cleanup(func() {
		_ = r.Process.Signal(syscall.SIGKILL)
		_ = r.Wait()
		if t.Failed() && r.log.Len() > 0 {
			t.Logf("%s: %.2000s", s.name, r.log.String())
		}
	})
	for begin := time.Now(); ; time.Sleep(20 * time.Millisecond) {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		answer, err := health.NewHealthClient(conn).Check(ctx, &health.HealthCheckRequest{})
		cancel()
		if err == nil && answer.GetStatus() == health.HealthCheckResponse_SERVING {
			return r
		}
		if time.Since(begin) > 30*time.Second {
			t.Fatalf("%s does not serve: %v, %v", s.name, answer, err)
		}
	}
}

// run starts the process, at the same addresses each time.
func (r *replica) run(t *testing.T) {
	t.Helper()
	r.Cmd = exec.Command(r.binary)
	r.SysProcAttr, r.Env = redistest.DieWithParent(), r.env
	r.Stdout, r.Stderr = &r.log, &r.log
	fatal.If(t, r.Start())
}

// cost is what a service and its Redis have used since their start.
type cost struct {
	replicas, redis time.Duration // processor time
	commands        float64       // that Redis executed, also within scripts
}

func (s *service) cost(t *testing.T) (c cost) {
	t.Helper()
	info := fatal.Get(s.info.InfoMap(context.Background(), "cpu", "stats").Result())(t)
	number := func(section, name string) float64 {
		x, err := strconv.ParseFloat(info[section][name], 64)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		return x
	}
	c.commands = number("Stats", "total_commands_processed")
	c.redis = time.Duration((number("CPU", "used_cpu_user") + number("CPU", "used_cpu_sys")) * float64(time.Second))
	for _, r := range s.replicas {
		c.replicas += processorTime(t, r.Process.Pid)
	}
	return c
}

// processorTime returns the processor time of a process, from proc(5). The kernel counts in
// hundredths of a second.
func processorTime(t *testing.T, pid int) time.Duration {
	t.Helper()
	text := fatal.Get(os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid)))(t)
	fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:])) // from field 3, the state, on
	user, err1 := strconv.Atoi(fields[14-3])
	system, err2 := strconv.Atoi(fields[15-3])
	if err1 != nil || err2 != nil {
		t.Fatalf("%s", text)
	}
	return time.Duration(user+system) * 10 * time.Millisecond
}
