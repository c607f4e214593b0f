package main

import (
	"context"
	"crypto/tls"
	"log/slog"

	"github.com/KimMachineGun/automemlimit/memlimit"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/health"

	"github.com/tiered-limiter/tiered-limiter/contrib/rls"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// Most tests start the program. What they see of its inside here is what takes virtual time, a
// store of the test, or files that are as the test wants at each reading.

// Settings are what the environment says. The manifests and the pages are compared with them.
type Settings = settings

func ReadSettings() (Settings, error)                { return readSettings() }
func (s settings) Redis() (string, error)            { return s.redis() }
func (s settings) ServiceOptions() *rls.Options      { return s.service() }
func (s settings) Ignores() []string                 { return s.ignores() }
func (s settings) Directory() string                 { return s.directory() }
func SettingNames(g []string, a slog.Attr) slog.Attr { return settingNames(g, a) }

// ReturnTime is the time for giving leases back, which manifests have to leave.
const ReturnTime = returnTime

// Server is a process without its signals.
type Server struct{ *server }

// NewServer returns a server that reads what files returns, unless that is nil.
func NewServer(s Settings, log *slog.Logger, files func() ([]rls.File, error)) (*Server, error) {
	v, err := newServer(s)
	if err != nil {
		return nil, err
	}
	v.log = log
	if files != nil {
		v.readFiles = func(string, bool) ([]rls.File, error) { return files() }
	}
	return &Server{v}, nil
}

func (v *Server) Start(ctx context.Context)       { v.start(ctx) }
func (v *Server) Reload(ctx context.Context)      { v.reload(ctx) }
func (v *Server) Serve(ctx context.Context) error { return v.serve(ctx) }
func (v *Server) Close()                          { v.close() }
func (v *Server) Config() *rls.Config             { return v.service.Config() }
func (v *Server) Stats() tiered.Stats             { return v.group.Stats() }

func (v *Server) Handlers() error {
	_, _, _, err := v.handlers()
	return err
}

// Reaching returns a server that has its configuration, and has not reached the Redis of a Group
// yet.
func Reaching(log *slog.Logger, g *tiered.Group) *Server {
	return &Server{&server{log: log, group: g, health: health.NewServer(), configured: true}}
}

func (v *Server) Reach(ctx context.Context) { v.reach(ctx) }
func (v *Server) Ready() bool               { return v.ready.Load() }

// LimitMemory is told the memory of a container.
func LimitMemory(log *slog.Logger, container memlimit.Provider) { limitMemory(log, container) }

// Servers are the two servers of HTTP, whose bounds of time are tested in virtual time.
var Servers = servers

// NewCollector returns the collector of rules, and SeriesOfRule how many series a rule has.
func NewCollector(g *tiered.Group, s *rls.Service, most int) prometheus.Collector {
	return newCollector(g, s, most)
}

var SeriesOfRule = len(ofRule)

// Identity is the TLS of a process.
type Identity struct{ identity }

func NewIdentity(s Settings) *Identity              { return &Identity{identity{settings: s}} }
func (i *Identity) Start() error                    { return i.start() }
func (i *Identity) Reload() (change any, err error) { return i.reload() }
func (i *Identity) Config() *tls.Config             { return i.config.Load() }

// IgnoredNames are the names of each row of what is ignored.
func IgnoredNames() (all []string) {
	for _, row := range ignored {
		all = append(all, row.names)
	}
	return all
}

func (s settings) SendsStatsd() bool { is, _ := s.sendsStatsd(); return is }
