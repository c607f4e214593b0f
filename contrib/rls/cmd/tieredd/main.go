// Command tieredd is a rate limit service for Envoy, in place of envoyproxy/ratelimit. It takes its
// settings from the environment, and its limits from the files of a directory or from a control
// plane, which it follows.
//
//	tieredd                  serve
//	tieredd check DIRECTORY  read the configuration in a directory, and say what is wrong
//	tieredd check FILE       the same for one file, or for JSON that a control plane sends
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/KimMachineGun/automemlimit/memlimit"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/reflection"

	"github.com/tiered-limiter/tiered-limiter/contrib/rls"
	"github.com/tiered-limiter/tiered-limiter/internal/filechanges"
	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

func main() {
	collectGarbage(false)
	ends := []os.Signal{syscall.SIGTERM, os.Interrupt}
	if !signal.Ignored(syscall.SIGHUP) { // nohup ignores it
		ends = append(ends, syscall.SIGHUP)
	}
	ctx, stop := signal.NotifyContext(context.Background(), ends...)
	defer stop()
	err := run(ctx, os.Args[1:])
	if err != nil {
		if serves(os.Args[1:]) && isJSON(os.Getenv("LOG_FORMAT")) {
			slog.New(slog.NewJSONHandler(os.Stderr, nil)).Error(err.Error())
		} else {
			fmt.Fprintln(os.Stderr, "tieredd:", err)
		}
		os.Exit(1)
	}
}

// serves reports whether arguments ask for the service. envoyproxy/ratelimit reads none, and its
// docker-compose-example.yml has the program's name as the image's command, which comes here.
func serves(args []string) bool {
	return len(args) == 0 || len(args) == 1 && args[0] == "/bin/ratelimit"
}

func run(ctx context.Context, args []string) error {
	switch {
	case serves(args):
		s, err := readSettings()
		if err != nil {
			return err
		}
		level, _ := s.level()
		takeLogs(s.logger(level))
		for _, line := range s.ignores() {
			slog.Warn(line)
		}
		limitMemory(slog.Default(), memlimit.FromCgroup)
		return serve(ctx, s)
	case len(args) == 2 && args[0] == "check":
		return check(os.Stdout, args[1])
	}
	return fmt.Errorf("the arguments are %q: must be none, or check and a directory or a file", args)
}

// check lists the rules in a directory or a file as they are understood, and what may be wrong with
// them and with the environment. The error is what is wrong.
func check(w io.Writer, path string) error {
	s, wrong := readSettings()
	files, err := readAny(path, s.Merge)
	if err != nil {
		return errors.Join(wrong, err)
	}
	c, err := rls.Parse(files...)
	if err = errors.Join(wrong, err); err != nil {
		return err
	}
	fmt.Fprintf(w, "%d domains, %d limits\n%s", len(c.Domains()), len(c.Policies()), c)
	for _, warning := range c.Warnings() {
		fmt.Fprintln(w, "warning:", warning)
	}
	for _, line := range s.ignores() {
		fmt.Fprintln(w, "warning:", line)
	}
	return nil
}

// readAny is read for a directory, a file of it, or JSON that a control plane sends.
func readAny(path string, merge bool) ([]rls.File, error) {
	files, err := read(path, merge)
	if info, wrong := os.Stat(path); err != nil || wrong != nil || !info.Mode().IsRegular() || !strings.HasSuffix(path, ".json") {
		return files, err
	}
	if files, err = rls.ResourcesOfJSON(files[0].Text); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	for i := range files {
		files[i].Merge = merge
	}
	return files, nil
}

// read reads the files of a directory. With merge, several may have the same domain.
func read(dir string, merge bool) ([]rls.File, error) {
	files, err := rls.Read(dir)
	for i := range files {
		files[i].Merge = merge
	}
	return files, err
}

// server is a running tieredd.
type server struct {
	settings
	log        *slog.Logger
	closeStore func() error
	group      *tiered.Group
	service    *rls.Service
	health     *health.Server
	outlets    outlets

	identity  *identity                                        // nil without TLS
	readFiles func(dir string, merge bool) ([]rls.File, error) // read, except in a test
	config    filechanges.Files
	last      draft // the last reading, if it is not used yet

	mu         sync.Mutex
	configured bool        // has a configuration, or needs none
	reached    bool        // Redis has answered once
	draining   bool        // takes no more calls
	ready      atomic.Bool // configured and reached, and is not draining
	ended      atomic.Bool // draining
}

// serve serves until ctx ends, and then drains: it reports that it is not healthy, serves on for
// TIERED_DRAIN_DELAY, lets calls end, and gives leases back.
func serve(ctx context.Context, s settings) error {
	v, err := newServer(s)
	if err != nil {
		return err
	}
	defer v.close()
	return v.serve(ctx)
}

func newServer(s settings) (*server, error) {
	level, err := s.level()
	if err != nil {
		return nil, err
	}
	v := &server{settings: s, log: s.logger(level), health: health.NewServer(), readFiles: read}
	v.configured = s.Force && !s.NeedDomain
	v.become(nil)
	store, closeStore, err := s.store()
	if err != nil {
		return nil, err
	}
	v.closeStore = closeStore
	v.group, err = tiered.NewGroup(store, &tiered.Options{
		Service: "tieredd", Budget: s.Budget, Processes: s.Processes, MaxKeys: s.MaxKeys,
		Logger: slog.New(withoutDoubts{v.log.Handler()}),
	})
	if err != nil {
		return nil, errors.Join(err, closeStore())
	}
	o := s.service()
	o.Logger = v.log
	if v.outlets, err = s.outlets(v.log); err != nil {
		v.close()
		return nil, err
	}
	o.Statistics = v.outlets.counters
	if v.service, err = rls.New(v.group, o); err == nil && s.TLS {
		v.identity = &identity{settings: s}
		err = v.identity.start()
	}
	if err != nil {
		v.close()
		return nil, err
	}
	return v, nil
}

// serve listens at once, and loads the configuration while it does: a large one takes some time,
// and a liveness probe must be answered meanwhile. For the same reason nothing here waits for a
// load.
func (v *server) serve(ctx context.Context) error {
	grpcServer := grpc.NewServer(v.grpcOptions()...)
	pb.RegisterRateLimitServiceServer(grpcServer, v.service)
	healthpb.RegisterHealthServer(grpcServer, v.health)
	if v.Reflection {
		reflection.Register(grpcServer)
	}
	public, private, theirs, err := v.handlers()
	if err != nil {
		return err
	}
	failed := make(chan error, 4)
	listen := func(network, at string, serve func(net.Listener) error) error {
		l, err := net.Listen(network, at)
		if err == nil {
			go func() { failed <- serve(l) }()
		}
		return err
	}
	plain, operators := servers(public, private)
	servePublic := plain.Serve
	if v.HTTPTLS {
		plain.TLSConfig = v.identity.forHTTP()
		servePublic = func(l net.Listener) error { return plain.ServeTLS(l, "", "") }
	}
	defer plain.Close()
	defer operators.Close()
	network, at := "tcp", address(v.GRPCHost, v.GRPCPort)
	if v.GRPCUDS != "" {
		network, at = "unix", v.GRPCUDS
		if err := removeSocket(at); err != nil {
			return err
		}
	}
	if theirs != nil {
		_, statistics := servers(nil, theirs)
		defer statistics.Close()
		if err := listen("tcp", v.PrometheusAddr, statistics.Serve); err != nil {
			return fmt.Errorf("PROMETHEUS_ADDR is %q: %w", v.PrometheusAddr, err)
		}
	}
	if err := errors.Join(
		listen(network, at, grpcServer.Serve),
		listen("tcp", address(v.Host, v.Port), servePublic),
		listen("tcp", address(v.DebugHost, v.DebugPort), operators.Serve)); err != nil {
		go grpcServer.Stop()
		return err
	}
	following, stop := context.WithCancel(ctx)
	go v.follow(following)
	sending, endSending := context.WithCancel(context.Background()) // also what is counted while it drains
	sent := v.outlets.send(sending)
	defer func() { endSending(); sent() }()
	select {
	case <-ctx.Done():
	case err = <-failed:
	}
	stop()
	v.become(&v.draining)
	v.log.Info("draining")
	now, release := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt) // a second signal: at once
	defer release()
	drained, cancel := context.WithTimeout(now, v.Drain)
	defer cancel()
	if err == nil {
		v.linger(drained)
	}
	drain(drained, grpcServer, plain)
	return err
}

// longestSocket is the longest path of a unix socket, in bytes.
const longestSocket = 107

// removeSocket removes the socket of a process that is gone: one that was killed leaves it.
func removeSocket(path string) error {
	info, err := os.Stat(path)
	switch {
	case err != nil:
		return nil // Listen says what is wrong
	case info.Mode().Type() != os.ModeSocket:
		return fmt.Errorf("GRPC_UDS is %q: must be a socket, or a file that is not there", path)
	}
	if c, err := net.Dial("unix", path); err == nil {
		_ = c.Close()
		return fmt.Errorf("GRPC_UDS is %q: must be of no other process, and one answers there", path)
	}
	return os.Remove(path)
}

// linger serves on as if nothing had happened, for clients that have not heard yet that this
// process ends. Kubernetes takes a pod out of the endpoints when it sends SIGTERM, and proxies
// learn of that later.
func (v *server) linger(ctx context.Context) {
	select {
	case <-time.After(v.DrainDelay):
	case <-ctx.Done():
	}
}

// follow reads the configuration, and reads it again when it changes, until ctx ends.
func (v *server) follow(ctx context.Context) {
	go v.reach(ctx)
	reload := v.reload
	if v.xds() {
		go (&controlPlane{server: v}).follow(ctx)
		reload = func(context.Context) {}
	} else {
		v.start(ctx)
	}
	tick := time.NewTicker(time.Second) // a ConfigMap takes a minute to arrive
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			reload(ctx)
			v.reloadIdentity()
		}
	}
}

// firstTries is how many pings may meet a Redis that is only far: each waits longer than the one
// before, because nobody knows yet how long making a connection takes. At a round trip of 250 ms
// the fourth is answered.
const firstTries = 4

// reach asks Redis until it has answered once: a mistyped address then stops a rollout, and the
// first calls find a connection. A later outage changes nothing, or all replicas would be gone at
// once.
func (v *server) reach(ctx context.Context) {
	said := false
	for try := 1; ; try++ {
		err := v.group.Ping(ctx)
		switch late := net.Error(nil); {
		case err == nil:
			v.become(&v.reached)
			return
		case ctx.Err() != nil:
			return
		case errors.As(err, &late) && late.Timeout() && try < firstTries:
			continue
		case !said:
			said = true
			about := []any{"error", err}
			if errors.Is(err, remote.ErrClusterNode) {
				about = append(about, "remedy", "set REDIS_TYPE to CLUSTER, or a REDIS_URL that begins with redis+cluster:// or rediss+cluster://")
			}
			v.log.Warn("Redis does not answer: not ready until it does", about...)
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(time.Second):
		}
	}
}

// reloadIdentity uses the files of TLS if they have changed. Connections that are open stay.
func (v *server) reloadIdentity() {
	if v.identity == nil {
		return
	}
	switch is, err := v.identity.reload(); {
	case err != nil:
		v.log.Error("the certificates are not used", "error", err)
	case is == filechanges.Changed:
		v.log.Info("new certificates are used")
	}
	if err := v.identity.expired(); err != nil {
		v.log.Error("clients refuse GRPC_SERVER_TLS_CERT", "error", err)
	}
}

// become sets one of configured, reached and draining, or none, and says whether the server is
// ready now.
func (v *server) become(what *bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if what != nil {
		*what = true
	}
	ready := v.configured && v.reached && !v.draining
	v.ready.Store(ready)
	v.ended.Store(v.draining)
	is := healthpb.HealthCheckResponse_NOT_SERVING
	if ready {
		is = healthpb.HealthCheckResponse_SERVING
	}
	// envoyproxy/ratelimit has the first two.
	for _, name := range []string{"", "ratelimit", pb.RateLimitService_ServiceDesc.ServiceName} {
		v.health.SetServingStatus(name, is)
	}
}

// drain lets the calls under way end, until ctx does. Envoy learns by GOAWAY that it must go
// elsewhere.
func drain(ctx context.Context, g *grpc.Server, h *http.Server) {
	ended := make(chan struct{})
	go func() {
		g.GracefulStop()
		close(ended)
	}()
	_ = h.Shutdown(ctx)
	select {
	case <-ended:
	case <-ctx.Done():
		go g.Stop() // waits for connections that have not said what they want, which can take longer
	}
}

// returnTime is the longest that the leases may take to go back. It comes after TIERED_DRAIN.
const returnTime = 5 * time.Second

// close gives the leases back, and ends.
func (v *server) close() {
	defer v.closeStore()
	ctx, cancel := context.WithTimeout(context.Background(), returnTime)
	defer cancel()
	if err := v.group.Close(ctx); err != nil {
		v.log.Warn("not all leases were given back", "error", err)
	}
	if err := v.outlets.close(ctx); err != nil {
		v.log.Warn("not all spans of traces were sent", "error", err)
	}
}

func (v *server) grpcOptions() []grpc.ServerOption {
	o := []grpc.ServerOption{
		rls.ServerOption(),
		grpc.StatsHandler(v.service.StatsHandler()),
		grpc.StatsHandler(&fullConnections{most: int64(v.MaxStreams), log: v.log}),
		grpc.MaxConcurrentStreams(uint32(v.MaxStreams)),
		grpc.MaxRecvMsgSize(v.MaxMessage),
		// Windows of a fixed size. To adapt them, gRPC sends a ping for almost every call, which
		// costs a tenth of a call.
		grpc.StaticStreamWindowSize(64 << 10), grpc.StaticConnWindowSize(1 << 20),
		grpc.NumStreamWorkers(uint32(16 * runtime.GOMAXPROCS(0))), // their stacks have grown already, and some wait for Redis
		grpc.KeepaliveParams(keepalive.ServerParameters{
			MaxConnectionAge: v.MaxConnectionAge, MaxConnectionAgeGrace: v.MaxConnectionAgeGrace,
			Time: 20 * time.Second, Timeout: 10 * time.Second, // a client that is gone or never reads is let go
		}),
		grpc.ConnectionTimeout(30 * time.Second),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 10 * time.Second, PermitWithoutStream: true}),
	}
	if v.identity != nil {
		o = append(o, grpc.Creds(credentials.NewTLS(v.identity.forGRPC())))
	}
	if v.outlets.traces != nil { // before the token: a call without it is seen too
		o = append(o, v.outlets.traces.ServerOptions()...)
	}
	if v.Token != "" {
		o = append(o, grpc.ChainUnaryInterceptor(v.checkToken))
	}
	return o
}
