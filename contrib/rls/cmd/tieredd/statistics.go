package main

import (
	"context"
	"crypto/rand"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strconv"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/tiered-limiter/tiered-limiter/contrib/rls/internal/exposition"
	"github.com/tiered-limiter/tiered-limiter/contrib/rls/statistics"
)

// outlets are what becomes of the statistics that envoyproxy/ratelimit has. Those of tieredd are
// always at /metrics of the debug port.
type outlets struct {
	counters   *statistics.Counters   // nil if nobody gets them
	prometheus *exposition.Prometheus // nil without USE_PROMETHEUS
	senders    []*exposition.Statsd
	traces     *exposition.Traces // nil without TRACING_ENABLED
}

// sendsStatsd reports whether statistics go to statsd, as they do by default, and whether somebody
// has said so.
func (s settings) sendsStatsd() (is, asked bool) {
	asked = os.Getenv("USE_STATSD") != ""
	return s.UseStatsd && (asked || !s.UsePrometheus && !s.UseDogStatsd), asked
}

func (s settings) outlets(log *slog.Logger) (o outlets, err error) {
	if s.Tracing {
		instance := s.TracingInstance
		if instance == "" {
			instance = rand.Text()
		}
		o.traces, err = exposition.NewTraces(context.Background(), exposition.TraceOptions{
			Protocol: s.TracingProtocol, Service: s.TracingService, Namespace: s.TracingNamespace, Instance: instance,
			Rate: s.TracingRate, Logger: log,
		})
		if err != nil {
			return o, err
		}
	}
	plain, asked := s.sendsStatsd()
	if s.DisableStats || !plain && !s.UsePrometheus && !s.UseDogStatsd {
		return o, nil
	}
	of := statistics.Options{Most: s.MetricRules, NearLimitRatio: s.NearLimitRatio, Local: s.LocalCache != 0, Logger: log}
	if s.MetricRules == 0 { // no rule has series
		of.Most = -1
	}
	if s.UsePrometheus {
		o.prometheus, err = exposition.NewPrometheus(exposition.PrometheusOptions{
			MapperFile: s.PrometheusMapper, Tags: s.ExtraTags, Milliseconds: s.PrometheusMillis, Logger: log,
		})
		if err != nil {
			return o, err
		}
		of.Took = o.prometheus.Took
	}
	o.counters = statistics.New(&of)
	if s.UsePrometheus {
		o.prometheus.Show(o.counters)
	}
	to := exposition.StatsdOptions{
		Address: net.JoinHostPort(s.StatsdHost, strconv.Itoa(int(s.StatsdPort))), Tags: s.ExtraTags, Every: s.FlushInterval, Logger: log,
	}
	if plain {
		is := to
		is.Quiet = !asked
		o.senders = append(o.senders, exposition.NewStatsd(o.counters, is))
	}
	if s.UseDogStatsd {
		to.Dog = true
		var all []error
		for _, name := range s.Mogrifiers {
			m, err := exposition.NewMogrifier(name, os.Getenv)
			to.Mogrifiers, all = append(to.Mogrifiers, m), append(all, err)
		}
		if err := errors.Join(all...); err != nil {
			return o, err
		}
		o.senders = append(o.senders, exposition.NewStatsd(o.counters, to))
	}
	return o, nil
}

// send sends statistics until ctx ends. Then end waits until the last ones are sent.
func (o outlets) send(ctx context.Context) (end func()) {
	var all sync.WaitGroup
	for _, is := range o.senders {
		all.Go(func() { is.Run(ctx) })
	}
	return all.Wait
}

// close sends what is left of traces.
func (o outlets) close(ctx context.Context) error {
	if o.traces == nil {
		return nil
	}
	return o.traces.Close(ctx)
}

// handler serves the statistics of envoyproxy/ratelimit, and beside them those of tieredd.
func (o outlets) handler(path string, own *prometheus.Registry) (http.Handler, error) {
	registry := prometheus.NewRegistry()
	if err := registry.Register(o.prometheus); err != nil {
		return nil, err
	}
	mux := http.NewServeMux()
	mux.Handle(path, promhttp.HandlerFor(prometheus.Gatherers{registry, own}, promhttp.HandlerOpts{}))
	return mux, nil
}
