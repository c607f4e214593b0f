package main

import (
	"fmt"
	"os"
	"reflect"
	"slices"
	"strings"
)

// ignored are variables of envoyproxy/ratelimit that change nothing here. A name that ends in an
// asterisk stands for all that begin so. docs/service-reference.md names them too.
var ignored = []struct {
	names   string // with the value that asks for nothing, if there is one
	because string
	remedy  string
	when    func(s settings) bool // nil: always
}{
	{
		"PROMETHEUS_*", "statistics of these names are for Prometheus only if it is asked for", "set USE_PROMETHEUS=true",
		func(s settings) bool { return !s.UsePrometheus || s.DisableStats },
	},
	{
		"STATSD_HOST STATSD_PORT STATS_FLUSH_INTERVAL", "nothing is sent to statsd", "set USE_STATSD=true or USE_DOG_STATSD=true",
		func(s settings) bool { plain, _ := s.sendsStatsd(); return s.DisableStats || !plain && !s.UseDogStatsd },
	},
	{
		"USE_DOG_STATSD_MOGRIFIERS DOG_STATSD_MOGRIFIER_*", "nothing is sent to DogStatsD", "set USE_DOG_STATSD=true",
		func(s settings) bool { return s.DisableStats || !s.UseDogStatsd },
	},
	{
		"TRACING_SERVICE_* TRACING_EXPORTER_PROTOCOL TRACING_SAMPLING_RATE OTEL_*", "there are no traces", "set TRACING_ENABLED=true",
		func(s settings) bool { return !s.Tracing },
	},
	{"REDIS_TIMEOUT", "a request waits for TIERED_BUDGET, and then its fail mode decides", "set TIERED_BUDGET", nil},
	{
		"REDIS_PIPELINE_WINDOW REDIS_PIPELINE_LIMIT REDIS_CLUSTER_PIPELINE_PARALLELISM REDIS_POOL_ON_EMPTY_BEHAVIOR",
		"what waits for Redis is sent together, and waits if all connections are busy", "take it out", nil,
	},
	{
		"REDIS_HEALTH_CHECK_ACTIVE_CONNECTION=false", "an outage of Redis makes no replica unready: the fail modes decide",
		"set fail_mode of the rules", nil,
	},
	{"REDIS_STARTUP_*", "a replica asks Redis until it has answered once, and is ready then", "take it out", nil},
	{"REDIS_PERSECOND=false", "one Redis has all limits", "size REDIS_URL for all", nil},
	{
		"REDIS_PERSECOND_*", "one Redis has all limits", "size REDIS_URL for all",
		func(settings) bool { return strings.EqualFold(os.Getenv("REDIS_PERSECOND"), "true") },
	},
	{
		"REDIS_TLS_CACERT REDIS_TLS_CLIENT_CERT REDIS_TLS_CLIENT_KEY REDIS_TLS_SKIP_HOSTNAME_VERIFICATION=false",
		"there is no TLS to Redis", "set REDIS_TLS=true",
		func(s settings) bool { url, _ := s.redis(); return !strings.HasPrefix(url, "rediss") },
	},
	{
		"RUNTIME_WATCH_ROOT=false RUNTIME_IGNOREDOTFILES=true",
		"files are read again if they have changed, however that is, and names that begin with a dot are left out", "take it out", nil,
	},
	{"EXPIRATION_JITTER_MAX_SECONDS", "a key in Redis lives until its window ends", "take it out", nil},
	{"MEMCACHE_*", "the store is Redis", "set REDIS_URL", nil},
	{
		"GRPC_SERVER_TLS_CA_CERT", "envoyproxy/ratelimit does not read it either, and Envoy Gateway sets it",
		"set GRPC_CLIENT_TLS_CACERT to ask clients for a certificate", nil,
	},
	{
		"CONFIG_GRPC_XDS_* XDS_CLIENT_*", "the configuration is in files", "set CONFIG_TYPE=GRPC_XDS_SOTW",
		func(s settings) bool { return !s.xds() },
	},
	{"GRPC_HOST GRPC_PORT", "the gRPC port is a unix socket", "take out GRPC_UDS", func(s settings) bool { return s.GRPCUDS != "" }},
}

// ignores returns a line for each of these variables that is set, and for those that begin with
// TIERED_ and are no setting: what is ignored, why, and what to do.
func (s settings) ignores() (all []string) {
	known := map[string]bool{}
	for f := range reflect.TypeFor[settings]().Fields() {
		known[f.Tag.Get("env")] = true
	}
	var set []string
	for _, pair := range os.Environ() {
		if name, value, _ := strings.Cut(pair, "="); value != "" {
			set = append(set, name)
		}
	}
	slices.Sort(set)
	for _, row := range ignored {
		if row.when != nil && !row.when(s) {
			continue
		}
		for pattern := range strings.FieldsSeq(row.names) {
			pattern, harmless, _ := strings.Cut(pattern, "=")
			prefix, wild := strings.CutSuffix(pattern, "*")
			for _, name := range set {
				if (name == pattern || wild && strings.HasPrefix(name, prefix)) && !strings.EqualFold(os.Getenv(name), harmless) {
					all = append(all, fmt.Sprintf("%s is ignored: %s; %s", name, row.because, row.remedy))
				}
			}
		}
	}
	for _, name := range set {
		if strings.HasPrefix(name, "TIERED_") && !strings.HasPrefix(name, "TIERED_TEST_") && !known[name] {
			all = append(all, name+" is ignored: there is no such setting; look for a mistake in its name")
		}
	}
	return all
}
