package promlimit_test

import (
	"errors"
	"log/slog"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"go.uber.org/goleak"

	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/fatal"
	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/testgroup"
	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var errRefused = errors.New("connection refused")

var silent = slog.New(slog.DiscardHandler)

// register returns a registry that has the Collector and checks what it collects.
func register(t testing.TB, c prometheus.Collector) *prometheus.Registry {
	t.Helper()
	r := prometheus.NewPedanticRegistry()
	fatal.If(t, r.Register(c))
	return r
}

// scrape returns the value of each series, written as in PromQL, with the count and the sum of
// histograms.
func scrape(t testing.TB, g prometheus.Gatherer) map[string]float64 {
	t.Helper()
	families := fatal.Get(g.Gather())(t)
	all := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			labels := labelsOf(m)
			switch {
			case m.GetHistogram() != nil:
				all[f.GetName()+"_count"+labels] = float64(m.GetHistogram().GetSampleCount())
				all[f.GetName()+"_sum"+labels] = m.GetHistogram().GetSampleSum()
			case m.GetCounter() != nil:
				all[f.GetName()+labels] = m.GetCounter().GetValue()
			default:
				all[f.GetName()+labels] = m.GetGauge().GetValue()
			}
		}
	}
	return all
}

func labelsOf(m *dto.Metric) string {
	var pairs []string
	for _, l := range m.GetLabel() {
		pairs = append(pairs, l.GetName()+`="`+l.GetValue()+`"`)
	}
	if pairs == nil {
		return ""
	}
	return "{" + strings.Join(pairs, ",") + "}"
}

// newGroup returns a Group of two processes with these policies.
func newGroup(t testing.TB, store *remote.Memory, policies ...tiered.Policy) *tiered.Group {
	t.Helper()
	return testgroup.New(t, store, &tiered.Options{Processes: 2, Logger: silent}, policies...)
}
