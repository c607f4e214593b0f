package main

import (
	"context"
	"crypto/subtle"
	"errors"
	"io"
	"net/http"
	"net/http/pprof"
	"strings"
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/tiered-limiter/tiered-limiter/contrib/rls/httpapi"
	"github.com/tiered-limiter/tiered-limiter/tiered/debugpage"
)

// handlers returns what the public port serves, the debug port, and PROMETHEUS_ADDR, if there is
// one.
func (v *server) handlers() (public, private, theirs http.Handler, err error) {
	api, err := httpapi.New(v.group, &httpapi.Options{MaxBody: int64(v.MaxMessage), Key: v.service.Key})
	if err != nil {
		return nil, nil, nil, err
	}
	page, err := debugpage.New(v.group, nil)
	if err != nil {
		return nil, nil, nil, err
	}
	health := func(is func() bool, no string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			if !is() {
				http.Error(w, no, http.StatusServiceUnavailable)
				return
			}
			_, _ = io.WriteString(w, "OK\n")
		}
	}
	open := http.NewServeMux()
	// /healthcheck is of envoyproxy/ratelimit, as /json: with any method. Envoy Gateway restarts a
	// pod by it, which mends neither a Redis that is away nor a control plane.
	open.HandleFunc("/healthcheck", health(func() bool { return !v.ended.Load() }, "draining"))
	open.HandleFunc("GET /readyz", health(v.ready.Load, "not ready"))
	open.HandleFunc("GET /healthz", health(func() bool { return true }, ""))
	open.Handle("/v1/", v.guard(v.whenConfigured(api)))
	open.Handle("/json", v.guard(http.HandlerFunc(v.json)))

	registry := prometheus.NewRegistry()
	registry.MustRegister(newCollector(v.group, v.service, v.MetricRules), callCounts{v.service}, collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "tieredd_without_redis", Help: "1 if REDIS_URL is not set: this process counts by itself.",
	}, func() float64 {
		if v.RedisURL == "" {
			return 1
		}
		return 0
	}))
	if v.outlets.prometheus != nil {
		if theirs, err = v.outlets.handler(v.PrometheusPath, registry); err != nil {
			return nil, nil, nil, err
		}
	}
	debug := http.NewServeMux()
	debug.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	debug.Handle("/debug/limiter", page)
	debug.HandleFunc("GET /rlconfig", func(w http.ResponseWriter, _ *http.Request) { // of envoyproxy/ratelimit
		if v.RedisURL == "" {
			_, _ = io.WriteString(w, "REDIS_URL is not set: this process counts by itself\n")
		}
		if c := v.service.Config(); c != nil {
			_, _ = io.WriteString(w, c.String())
			for _, warning := range c.Warnings() {
				_, _ = io.WriteString(w, "warning: "+warning+"\n")
			}
		}
	})
	debug.HandleFunc("GET /debug/pprof/", pprof.Index)
	debug.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
	debug.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
	debug.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "/metrics\n/rlconfig\n/debug/limiter\n/debug/pprof/\n")
	})
	return open, debug, theirs, nil
}

// servers returns the servers of the public port and of the debug port. Who sends or reads slowly,
// or nothing at all, is let go.
func servers(public, private http.Handler) (plain, operators *http.Server) {
	is := func(h http.Handler, write time.Duration) *http.Server {
		return &http.Server{Handler: h, ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 10 * time.Second, WriteTimeout: write}
	}
	return is(public, 10*time.Second), is(private, 2*time.Minute) // a profile takes 30 s
}

// whenConfigured answers 503 until there is a configuration, as gRPC answers Unavailable: no policy
// is known before.
func (v *server) whenConfigured(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if v.service.Config() == nil && r.Method == http.MethodPost {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusServiceUnavailable)
			_, _ = io.WriteString(w, `{"error":"there is no configuration yet"}`+"\n")
			return
		}
		next.ServeHTTP(w, r)
	})
}

// json answers the request of the gRPC service in JSON, as /json of envoyproxy/ratelimit does: with
// status 429 if a limit refuses.
func (v *server) json(w http.ResponseWriter, r *http.Request) {
	var request pb.RateLimitRequest
	text, err := io.ReadAll(http.MaxBytesReader(w, r.Body, int64(v.MaxMessage)))
	if _, long := errors.AsType[*http.MaxBytesError](err); long {
		http.Error(w, "the body is too long", http.StatusRequestEntityTooLarge)
		return
	}
	if err == nil {
		err = protojson.Unmarshal(text, &request)
	}
	if err != nil {
		http.Error(w, "the body is not a RateLimitRequest in JSON", http.StatusBadRequest)
		return
	}
	answer, err := v.service.ShouldRateLimit(r.Context(), &request)
	if err != nil {
		code := http.StatusServiceUnavailable
		if status.Code(err) == codes.InvalidArgument {
			code = http.StatusBadRequest
		}
		http.Error(w, status.Convert(err).Message(), code)
		return
	}
	out, err := protojson.Marshal(answer)
	if err != nil {
		http.Error(w, "the answer cannot be written", http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	if answer.GetOverallCode() == pb.RateLimitResponse_OVER_LIMIT {
		w.WriteHeader(http.StatusTooManyRequests)
	}
	_, _ = w.Write(out)
}

// guard lets through clients that have the certificate and the token that the settings ask for.
func (v *server) guard(next http.Handler) http.Handler {
	if v.HTTPTLS && v.ClientCA != "" {
		next = requireCertificate(next)
	}
	if v.Token == "" {
		return next
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !v.knows(r.Header.Values("Authorization")) {
			w.Header().Set("WWW-Authenticate", "Bearer")
			http.Error(w, "the token is missing or wrong", http.StatusUnauthorized)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// checkToken is guard for gRPC. Health checks need no token.
func (v *server) checkToken(
	ctx context.Context, request any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler,
) (any, error) {
	if info.FullMethod == pb.RateLimitService_ShouldRateLimit_FullMethodName &&
		!v.knows(metadata.ValueFromIncomingContext(ctx, "authorization")) {
		return nil, status.Error(codes.Unauthenticated, "the token is missing or wrong")
	}
	return next(ctx, request)
}

// knows reports whether the only value is the token. It takes as long for a wrong one.
func (v *server) knows(values []string) bool {
	if len(values) != 1 {
		return false
	}
	token, ok := strings.CutPrefix(values[0], "Bearer ")
	return ok && subtle.ConstantTimeCompare([]byte(token), []byte(v.Token)) == 1
}
