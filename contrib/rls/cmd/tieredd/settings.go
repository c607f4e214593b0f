package main

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/caarlos0/env/v11"

	"github.com/tiered-limiter/tiered-limiter/contrib/rls"
	"github.com/tiered-limiter/tiered-limiter/remote"
)

// settings are read from the environment. Names and defaults are those of envoyproxy/ratelimit
// where it has the same setting; those that begin with TIERED_ are new. docs/service-reference.md
// has a table of them.
type settings struct {
	Host      string `env:"HOST" envDefault:"0.0.0.0"`
	Port      uint16 `env:"PORT" envDefault:"8080"`
	DebugHost string `env:"DEBUG_HOST" envDefault:"0.0.0.0"`
	DebugPort uint16 `env:"DEBUG_PORT" envDefault:"6070"`
	GRPCHost  string `env:"GRPC_HOST" envDefault:"0.0.0.0"`
	GRPCPort  uint16 `env:"GRPC_PORT" envDefault:"8081"`
	GRPCUDS   string `env:"GRPC_UDS"`

	MaxConnectionAge      time.Duration `env:"GRPC_MAX_CONNECTION_AGE" envDefault:"24h"`
	MaxConnectionAgeGrace time.Duration `env:"GRPC_MAX_CONNECTION_AGE_GRACE" envDefault:"1h"`
	TLS                   bool          `env:"GRPC_SERVER_USE_TLS"`
	Certificate           string        `env:"GRPC_SERVER_TLS_CERT"`
	Key                   string        `env:"GRPC_SERVER_TLS_KEY"`
	ClientCA              string        `env:"GRPC_CLIENT_TLS_CACERT"`
	ClientName            string        `env:"GRPC_CLIENT_TLS_SAN"`

	Root         string `env:"RUNTIME_ROOT" envDefault:"/srv/runtime_data/current"`
	Subdirectory string `env:"RUNTIME_SUBDIRECTORY"`
	AppDirectory string `env:"RUNTIME_APPDIRECTORY" envDefault:"config"`
	Merge        bool   `env:"MERGE_DOMAIN_CONFIG"`

	Backend    string `env:"BACKEND_TYPE" envDefault:"redis"`
	ConfigType string `env:"CONFIG_TYPE" envDefault:"FILE"`
	Force      bool   `env:"FORCE_START_WITHOUT_INITIAL_CONFIG"`
	NeedDomain bool   `env:"HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED"`

	XDSServer        string            `env:"CONFIG_GRPC_XDS_SERVER_URL" envDefault:"localhost:18000"`
	XDSNode          string            `env:"CONFIG_GRPC_XDS_NODE_ID" envDefault:"default"`
	XDSMetadata      string            `env:"CONFIG_GRPC_XDS_NODE_METADATA"`
	XDSHeaders       map[string]string `env:"CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS"`
	XDSRetry         time.Duration     `env:"CONFIG_GRPC_XDS_SERVER_CONNECT_RETRY_INTERVAL" envDefault:"3s"`
	XDSTLS           bool              `env:"CONFIG_GRPC_XDS_SERVER_USE_TLS"`
	XDSCert          string            `env:"CONFIG_GRPC_XDS_CLIENT_TLS_CERT"`
	XDSKey           string            `env:"CONFIG_GRPC_XDS_CLIENT_TLS_KEY"`
	XDSCA            string            `env:"CONFIG_GRPC_XDS_SERVER_TLS_CACERT"`
	XDSName          string            `env:"CONFIG_GRPC_XDS_SERVER_TLS_SAN"`
	XDSBackoff       time.Duration     `env:"XDS_CLIENT_BACKOFF_INITIAL_INTERVAL" envDefault:"10s"`
	XDSBackoffMax    time.Duration     `env:"XDS_CLIENT_BACKOFF_MAX_INTERVAL" envDefault:"60s"`
	XDSBackoffFactor float64           `env:"XDS_CLIENT_BACKOFF_RANDOM_FACTOR" envDefault:"0.5"`
	XDSBackoffJitter bool              `env:"XDS_CLIENT_BACKOFF_JITTER" envDefault:"true"`
	XDSMaxMessage    int               `env:"XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES"`

	RedisType   string `env:"REDIS_TYPE" envDefault:"SINGLE"`
	RedisSocket string `env:"REDIS_SOCKET_TYPE" envDefault:"unix"`
	RedisURL    string `env:"REDIS_URL"`
	RedisAuth   string `env:"REDIS_AUTH"`
	Sentinel    string `env:"REDIS_SENTINEL_AUTH"`
	RedisTLS    bool   `env:"REDIS_TLS"`
	RedisCA     string `env:"REDIS_TLS_CACERT"`
	RedisCert   string `env:"REDIS_TLS_CLIENT_CERT"`
	RedisKey    string `env:"REDIS_TLS_CLIENT_KEY"`
	RedisSkip   bool   `env:"REDIS_TLS_SKIP_HOSTNAME_VERIFICATION"`
	RedisPool   int    `env:"REDIS_POOL_SIZE" envDefault:"10"`
	Prefix      string `env:"CACHE_KEY_PREFIX"`

	LogLevel  string `env:"LOG_LEVEL" envDefault:"WARN"`
	LogFormat string `env:"LOG_FORMAT" envDefault:"text"`

	UseStatsd        bool              `env:"USE_STATSD" envDefault:"true"`
	StatsdHost       string            `env:"STATSD_HOST" envDefault:"localhost"`
	StatsdPort       uint16            `env:"STATSD_PORT" envDefault:"8125"`
	UseDogStatsd     bool              `env:"USE_DOG_STATSD"`
	Mogrifiers       []string          `env:"USE_DOG_STATSD_MOGRIFIERS"`
	ExtraTags        map[string]string `env:"EXTRA_TAGS"`
	FlushInterval    time.Duration     `env:"STATS_FLUSH_INTERVAL" envDefault:"10s"`
	DisableStats     bool              `env:"DISABLE_STATS"`
	UsePrometheus    bool              `env:"USE_PROMETHEUS"`
	PrometheusAddr   string            `env:"PROMETHEUS_ADDR" envDefault:":9090"`
	PrometheusPath   string            `env:"PROMETHEUS_PATH" envDefault:"/metrics"`
	PrometheusMapper string            `env:"PROMETHEUS_MAPPER_YAML"`
	PrometheusMillis bool              `env:"PROMETHEUS_RESPONSE_TIME_AS_MILLISECONDS"`
	NearLimitRatio   float32           `env:"NEAR_LIMIT_RATIO" envDefault:"0.8"`
	LocalCache       int               `env:"LOCAL_CACHE_SIZE_IN_BYTES" envDefault:"0"`

	Tracing          bool    `env:"TRACING_ENABLED"`
	TracingService   string  `env:"TRACING_SERVICE_NAME" envDefault:"RateLimit"`
	TracingNamespace string  `env:"TRACING_SERVICE_NAMESPACE"`
	TracingInstance  string  `env:"TRACING_SERVICE_INSTANCE_ID"`
	TracingProtocol  string  `env:"TRACING_EXPORTER_PROTOCOL" envDefault:"http"`
	TracingRate      float64 `env:"TRACING_SAMPLING_RATE" envDefault:"1"`

	Shadow          bool   `env:"SHADOW_MODE"`
	Quota           bool   `env:"QUOTA_MODE"`
	Metadata        bool   `env:"RESPONSE_DYNAMIC_METADATA"`
	Headers         bool   `env:"LIMIT_RESPONSE_HEADERS_ENABLED"`
	HeaderLimit     string `env:"LIMIT_LIMIT_HEADER" envDefault:"RateLimit-Limit"`
	HeaderRemaining string `env:"LIMIT_REMAINING_HEADER" envDefault:"RateLimit-Remaining"`
	HeaderReset     string `env:"LIMIT_RESET_HEADER" envDefault:"RateLimit-Reset"`

	Budget         time.Duration `env:"TIERED_BUDGET" envDefault:"20ms"`
	Together       bool          `env:"TIERED_TOGETHER"`
	Standing       string        `env:"TIERED_STANDING" envDefault:"off"`
	OnlyOver       bool          `env:"STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT"`
	Processes      int           `env:"TIERED_PROCESSES" envDefault:"1"`
	Token          string        `env:"TIERED_TOKEN"`
	HashKey        string        `env:"TIERED_HASH_KEY"`
	HTTPTLS        bool          `env:"TIERED_HTTP_TLS"`
	Reflection     bool          `env:"TIERED_REFLECTION"`
	MaxStreams     int           `env:"TIERED_MAX_STREAMS" envDefault:"1000"`
	MaxMessage     int           `env:"TIERED_MAX_MESSAGE" envDefault:"8388608"`
	MaxDescriptors int           `env:"TIERED_MAX_DESCRIPTORS" envDefault:"1000"`
	MaxKeys        int           `env:"TIERED_MAX_KEYS" envDefault:"100000"`
	MetricRules    int           `env:"TIERED_METRIC_RULES" envDefault:"1000"`
	Drain          time.Duration `env:"TIERED_DRAIN" envDefault:"15s"`
	DrainDelay     time.Duration `env:"TIERED_DRAIN_DELAY" envDefault:"5s"`
}

// readSettings reads the environment. The error names all that is wrong.
func readSettings() (s settings, err error) {
	if err := env.Parse(&s); err != nil {
		return s, err
	}
	var all []error
	bad := func(format string, args ...any) { all = append(all, fmt.Errorf(format, args...)) }
	if _, err := s.redis(); err != nil {
		all = append(all, err)
	}
	if !strings.EqualFold(s.Backend, "redis") {
		bad("BACKEND_TYPE is %q: must be redis, because there is no other", s.Backend)
	}
	if (s.RedisCert == "") != (s.RedisKey == "") {
		bad("REDIS_TLS_CLIENT_CERT is %q and REDIS_TLS_CLIENT_KEY is %q: must be set both, or none", s.RedisCert, s.RedisKey)
	}
	if n := len(s.GRPCUDS); n > longestSocket {
		bad("GRPC_UDS has %d bytes: must have at most %d", n, longestSocket)
	}
	if _, err := s.level(); err != nil {
		all = append(all, err)
	}
	switch {
	case s.xds():
		s.checkXDS(bad)
	case !strings.EqualFold(s.ConfigType, "FILE"):
		bad("CONFIG_TYPE is %q: must be FILE or GRPC_XDS_SOTW", s.ConfigType)
	}
	if s.TLS && (s.Certificate == "" || s.Key == "") {
		bad("GRPC_SERVER_USE_TLS is true: GRPC_SERVER_TLS_CERT and GRPC_SERVER_TLS_KEY must be set")
	}
	if s.ClientCA != "" && !s.TLS {
		bad("GRPC_CLIENT_TLS_CACERT is set: GRPC_SERVER_USE_TLS must be true")
	}
	if s.HTTPTLS && !s.TLS {
		bad("TIERED_HTTP_TLS is true: GRPC_SERVER_USE_TLS must be true")
	}
	if s.ClientName != "" && s.ClientCA == "" {
		bad("GRPC_CLIENT_TLS_SAN is set: GRPC_CLIENT_TLS_CACERT must be set too")
	}
	for _, n := range []struct {
		name            string
		is, least, most int
	}{
		{"TIERED_PROCESSES", s.Processes, 1, 1 << 20},
		{"TIERED_MAX_STREAMS", s.MaxStreams, 1, 1_000_000},
		{"TIERED_MAX_MESSAGE", s.MaxMessage, 1 << 10, 16 << 20}, // on both ports: package httpapi has the same rule
		{"TIERED_MAX_DESCRIPTORS", s.MaxDescriptors, 1, 10_000},
		{"TIERED_METRIC_RULES", s.MetricRules, 0, 100_000},
		{"TIERED_MAX_KEYS", s.MaxKeys, 1, 1 << 30},
	} {
		if n.is < n.least || n.is > n.most {
			bad("%s is %d: must be %d to %d", n.name, n.is, n.least, n.most)
		}
	}
	if _, err := rls.Part(s.Standing); err != nil {
		bad("TIERED_STANDING %v", err)
	}
	if n := len(s.HashKey); n > 0 && n < 16 {
		bad("TIERED_HASH_KEY has %d bytes: must have 16 or more", n)
	}
	// An HTTP answer is cut after 10 s.
	if s.Budget < time.Millisecond || s.Budget > 5*time.Second {
		bad("TIERED_BUDGET is %v: must be 1ms to 5s", s.Budget)
	}
	if s.Drain < 0 || s.Drain > time.Hour {
		bad("TIERED_DRAIN is %v: must be 0 to 1h", s.Drain)
	}
	if s.DrainDelay < 0 || s.DrainDelay > time.Hour {
		bad("TIERED_DRAIN_DELAY is %v: must be 0 to 1h", s.DrainDelay)
	}
	if !(s.NearLimitRatio > 0 && s.NearLimitRatio <= 1) { // not a number neither
		bad("NEAR_LIMIT_RATIO is %v: must be more than 0 and at most 1", s.NearLimitRatio)
	}
	if s.FlushInterval < 10*time.Millisecond || s.FlushInterval > time.Hour {
		bad("STATS_FLUSH_INTERVAL is %v: must be 10ms to 1h", s.FlushInterval)
	}
	if !strings.HasPrefix(s.PrometheusPath, "/") || strings.ContainsAny(s.PrometheusPath, " {}") {
		bad("PROMETHEUS_PATH is %q: must begin with / and have no space and no brace", s.PrometheusPath)
	}
	if s.Processes > 1 && s.RedisURL == "" {
		bad("TIERED_PROCESSES is %d, and REDIS_URL is not set: must be 1, because without Redis each process admits the whole limit",
			s.Processes)
	}
	return s, errors.Join(all...)
}

// xds reports whether the configuration comes from a control plane.
func (s settings) xds() bool { return strings.EqualFold(s.ConfigType, "GRPC_XDS_SOTW") }

// directory is where the configuration is.
func (s settings) directory() string { return filepath.Join(s.Root, s.Subdirectory, s.AppDirectory) }

func (s settings) level() (level slog.Level, err error) {
	word := strings.ToLower(s.LogLevel)
	switch word { // of envoyproxy/ratelimit
	case "warning":
		word = "warn"
	case "trace":
		word = "debug"
	case "fatal", "panic":
		word = "error"
	}
	if err := level.UnmarshalText([]byte(word)); err != nil {
		return level, fmt.Errorf("LOG_LEVEL is %q: must be debug, info, warn or error", s.LogLevel)
	}
	return level, nil
}

func (s settings) logger(level slog.Level) *slog.Logger {
	o := &slog.HandlerOptions{Level: level, ReplaceAttr: settingNames}
	if isJSON(s.LogFormat) {
		return slog.New(slog.NewJSONHandler(os.Stderr, o))
	}
	return slog.New(slog.NewTextHandler(os.Stderr, o))
}

// isJSON reports whether LOG_FORMAT asks for JSON. As with envoyproxy/ratelimit, any other word is
// text.
func isJSON(format string) bool { return strings.EqualFold(format, "json") }

// redis returns the URL of the store. It is "" if there is none.
func (s settings) redis() (string, error) {
	if s.RedisURL == "" || strings.Contains(s.RedisURL, "://") {
		return s.RedisURL, nil
	}
	u := url.URL{}
	query := url.Values{"pool_size": {strconv.Itoa(s.RedisPool)}}
	u.User = userinfo(s.RedisAuth)
	scheme := "redis"
	if s.RedisTLS || s.RedisSocket == "tls" {
		scheme = "rediss"
	}
	hosts := strings.Split(s.RedisURL, ",")
	switch strings.ToUpper(s.RedisType) {
	case "SINGLE":
		switch s.RedisSocket {
		case "unix":
			u.Scheme, u.Path = "unix", s.RedisURL
		case "tcp", "tls":
			u.Scheme, u.Host = scheme, s.RedisURL
		default:
			return "", fmt.Errorf("REDIS_SOCKET_TYPE is %q: must be tcp, tls or unix", s.RedisSocket)
		}
	case "SENTINEL":
		if len(hosts) < 2 {
			return "", errors.New("REDIS_URL has no comma: must be the primary's name and the addresses of sentinels, for REDIS_TYPE SENTINEL")
		}
		query.Set("master_name", hosts[0])
		if u.User != nil { // the primary's
			password, _ := u.User.Password()
			query.Set("password", password)
			if name := u.User.Username(); name != "" {
				query.Set("username", name)
			}
		}
		u.User = userinfo(s.Sentinel)
		u.Scheme, u.Host, query["addr"] = scheme+"+sentinel", hosts[1], hosts[2:]
	case "CLUSTER":
		u.Scheme, u.Host, query["addr"] = scheme+"+cluster", hosts[0], hosts[1:]
	default:
		return "", fmt.Errorf("REDIS_TYPE is %q: must be SINGLE, SENTINEL or CLUSTER", s.RedisType)
	}
	u.RawQuery = query.Encode()
	return u.String(), nil
}

// userinfo returns "user:password" or "password" as a part of a URL. It is nil for "".
func userinfo(auth string) *url.Userinfo {
	if auth == "" {
		return nil
	}
	user, password, ok := strings.Cut(auth, ":")
	if !ok {
		user, password = "", auth
	}
	return url.UserPassword(user, password)
}

// store opens the store. Without a Redis it is the memory of this process.
func (s settings) store() (remote.Store, func() error, error) {
	address, err := s.redis()
	if err != nil {
		return nil, nil, err
	}
	if address == "" {
		level, _ := s.level()
		log := s.logger(min(level, slog.LevelWarn)) // whatever LOG_LEVEL is: nobody may run so without knowing
		log.Warn("REDIS_URL is not set: each process counts by itself, and forgets its counts at its end")
		return remote.NewMemory(), func() error { return nil }, nil
	}
	level, _ := s.level()
	o := &remote.RedisOptions{Prefix: s.Prefix, Logger: s.logger(level)}
	if strings.HasPrefix(address, "rediss") { // it changes nothing without TLS
		if o.TLS, err = s.redisTLS(); err != nil {
			return nil, nil, err
		}
	}
	r, err := remote.Open(address, o)
	if err != nil {
		return nil, nil, fmt.Errorf("REDIS_URL: %w", err)
	}
	return r, r.Close, nil
}

// service returns the options of the service.
func (s settings) service() *rls.Options {
	o := &rls.Options{
		Together: s.Together, OnlyOver: s.OnlyOver, Shadow: s.Shadow, Quota: s.Quota, Metadata: s.Metadata,
		MaxDescriptors: s.MaxDescriptors,
	}
	o.Standing, _ = rls.Part(s.Standing)
	if s.HashKey != "" {
		o.HashKey = []byte(s.HashKey)
	}
	if s.Headers {
		o.Headers = &rls.Headers{Limit: s.HeaderLimit, Remaining: s.HeaderRemaining, Reset: s.HeaderReset}
	}
	return o
}

func address(host string, port uint16) string { return net.JoinHostPort(host, strconv.Itoa(int(port))) }
