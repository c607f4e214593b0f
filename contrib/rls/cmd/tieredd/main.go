// Command tieredd is a rate limit service for Envoy, in place of envoyproxy/ratelimit. It takes its settings from the
// environment, and its limits from the files of a directory, which it follows.
//
//	tieredd                  serve
//	tieredd check DIRECTORY  read the configuration in a directory, and say what is wrong
package main

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"strconv"
	"sync/atomic"
	"syscall"
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/reflection"

	"github.com/tiered-limiter/tiered-limiter/contrib/rls"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

func main() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(400) // the heap is small: at 100 each call would pay a tenth more, for some MB less
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	err := run(ctx, os.Args[1:])
	if err != nil {
		fmt.Fprintln(os.Stderr, "tieredd:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	switch {
	case len(args) == 0:
		s, err := readSettings()
		if err != nil {
			return err
		}
		return serve(ctx, s)
	case len(args) == 2 && args[0] == "check":
		merge, _ := strconv.ParseBool(os.Getenv("MERGE_DOMAIN_CONFIG"))
		files, err := read(args[1], merge)
		if err != nil {
			return err
		}
		c, err := rls.Parse(files...)
		if err != nil {
			return err
		}
		fmt.Printf("%d domains, %d limits\n", len(c.Domains()), len(c.Policies()))
		return nil
	}
	return fmt.Errorf("the arguments are %q: must be none, or check and a directory", args)
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
	log     *slog.Logger
	group   *tiered.Group
	service *rls.Service
	health  *health.Server

	identity *identity         // nil without TLS
	loaded   [sha256.Size]byte // of the files of the last attempt

	configured bool        // has a configuration
	reached    bool        // Redis has answered once
	ready      atomic.Bool // both, and is not draining
}

// serve serves until ctx ends, and then drains: it reports that it is not healthy, lets calls end, and gives leases back.
func serve(ctx context.Context, s settings) error {
	v := &server{settings: s, log: s.logger(), health: health.NewServer()}
	v.setReady(false)
	store, closeStore, err := s.store(v.log)
	if err != nil {
		return err
	}
	defer closeStore()
	v.group, err = tiered.NewGroup(store, &tiered.Options{
		Service: "tieredd", Processes: s.Processes, MaxKeys: s.MaxKeys, Logger: v.log,
	})
	if err != nil {
		return err
	}
	defer v.close()
	if v.service, err = rls.New(v.group, s.service()); err != nil {
		return err
	}
	if s.TLS {
		v.identity = &identity{settings: s}
		if _, err := v.identity.reload(); err != nil {
			return err
		}
	}
	grpcServer := grpc.NewServer(v.grpcOptions()...)
	pb.RegisterRateLimitServiceServer(grpcServer, v.service)
	healthpb.RegisterHealthServer(grpcServer, v.health)
	if s.Reflection {
		reflection.Register(grpcServer)
	}
	public, private, err := v.handlers()
	if err != nil {
		return err
	}
	v.reload()
	if err := v.reach(ctx); err != nil {
		v.log.Warn("Redis does not answer: not ready until it does", "error", err)
	}
	failed := make(chan error, 3)
	listen := func(at string, serve func(net.Listener) error) error {
		l, err := net.Listen("tcp", at)
		if err == nil {
			go func() { failed <- serve(l) }()
		}
		return err
	}
	plain := &http.Server{
		Handler: public, ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 10 * time.Second, WriteTimeout: 10 * time.Second,
	}
	servePublic := plain.Serve
	if s.HTTPTLS {
		plain.TLSConfig = v.identity.forHTTP()
		servePublic = func(l net.Listener) error { return plain.ServeTLS(l, "", "") }
	}
	operators := &http.Server{Handler: private, ReadHeaderTimeout: 5 * time.Second}
	defer plain.Close()
	defer operators.Close()
	if err := errors.Join(
		listen(address(s.GRPCHost, s.GRPCPort), grpcServer.Serve),
		listen(address(s.Host, s.Port), servePublic),
		listen(address(s.DebugHost, s.DebugPort), operators.Serve)); err != nil {
		go grpcServer.Stop()
		return err
	}
	err = v.follow(ctx, failed)
	v.setReady(false)
	v.log.Info("draining")
	v.drain(grpcServer, plain)
	return err
}

// follow reads the configuration again when it changes, until ctx ends or a server fails.
func (v *server) follow(ctx context.Context, failed <-chan error) error {
	tick := time.NewTicker(time.Second) // a ConfigMap takes a minute to arrive
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case err := <-failed:
			return err
		case <-tick.C:
			v.reload()
			v.reloadIdentity()
			_ = v.reach(ctx) // said at the start
		}
	}
}

// reload uses the configuration if its files have changed. If it cannot, the last one stays.
func (v *server) reload() {
	files, err := read(v.directory(), v.Merge)
	h := sha256.New()
	fmt.Fprint(h, err)
	for _, f := range files {
		fmt.Fprintf(h, "%q %d ", f.Name, len(f.Text))
		h.Write(f.Text)
	}
	sum := [sha256.Size]byte(h.Sum(nil))
	if sum == v.loaded {
		return
	}
	v.loaded = sum
	var c *rls.Config
	if err == nil {
		c, err = rls.Parse(files...)
	}
	if err == nil {
		err = v.service.Use(c)
	}
	if err != nil || v.ready.Load() { // the first one is no reload
		v.group.CountReload(err)
	}
	if err != nil {
		v.log.Error("the configuration is not used", "error", err)
		return
	}
	v.log.Info("a new configuration is used", "domains", len(c.Domains()), "limits", len(c.Policies()))
	v.configured = true
	v.setReady(v.reached)
}

// reach asks Redis until it has answered once: a mistyped address then stops a rollout, and the first calls find a
// connection. A later outage changes nothing, or all replicas would be gone at once.
func (v *server) reach(ctx context.Context) error {
	if v.reached {
		return nil
	}
	if err := v.group.Ping(ctx); err != nil {
		return err
	}
	v.reached = true
	v.setReady(v.configured)
	return nil
}

// reloadIdentity uses the files of TLS if they have changed. Connections that are open stay.
func (v *server) reloadIdentity() {
	if v.identity == nil {
		return
	}
	switch changed, err := v.identity.reload(); {
	case err != nil:
		v.log.Error("the certificates are not used", "error", err)
	case changed:
		v.log.Info("new certificates are used")
	}
}

func (v *server) setReady(ready bool) {
	v.ready.Store(ready)
	is := healthpb.HealthCheckResponse_NOT_SERVING
	if ready {
		is = healthpb.HealthCheckResponse_SERVING
	}
	// envoyproxy/ratelimit has the first two.
	for _, name := range []string{"", "ratelimit", pb.RateLimitService_ServiceDesc.ServiceName} {
		v.health.SetServingStatus(name, is)
	}
}

// drain lets the calls under way end. Envoy learns by GOAWAY that it must go elsewhere.
func (v *server) drain(g *grpc.Server, h *http.Server) {
	ctx, cancel := context.WithTimeout(context.Background(), v.Drain)
	defer cancel()
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

// close gives the leases back.
func (v *server) close() {
	ctx, cancel := context.WithTimeout(context.Background(), returnTime)
	defer cancel()
	if err := v.group.Close(ctx); err != nil {
		v.log.Warn("not all leases were given back", "error", err)
	}
}

func (v *server) grpcOptions() []grpc.ServerOption {
	o := []grpc.ServerOption{
		grpc.MaxConcurrentStreams(v.MaxStreams),
		grpc.MaxRecvMsgSize(v.MaxMessage),
		// Windows of a fixed size. To adapt them, gRPC sends a ping for almost every call, which costs a tenth of a call.
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
	if v.Token != "" {
		o = append(o, grpc.UnaryInterceptor(v.checkToken))
	}
	return o
}
