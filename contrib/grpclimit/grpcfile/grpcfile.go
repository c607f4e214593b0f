// Package grpcfile limits the calls to a gRPC server by the rules of a policy file.
//
//	limits, err := grpcfile.New(watcher, nil)
//	server := grpc.NewServer(limits.ServerOptions()...)
//
// It is a package of its own, so that programs without a policy file do not contain a reader of
// YAML.
package grpcfile

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/tiered-limiter/tiered-limiter/contrib/grpclimit"
	"github.com/tiered-limiter/tiered-limiter/internal/canonical"
	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
	"github.com/tiered-limiter/tiered-limiter/tiered/httplimit"
	"github.com/tiered-limiter/tiered-limiter/tiered/policyfile"
)

// Server limits calls by the rules under "grpc" in a policy file. Each call follows the latest
// version of the file that is in force. All methods may be called concurrently.
type Server struct {
	watcher *policyfile.Watcher
	options *grpclimit.Options
	rules   atomic.Pointer[rules]
	mu      sync.Mutex // held while the rules of a new file are made
}

// rules are those of one version of the file.
type rules struct {
	file *policyfile.File
	by   map[string]*rule // by Match
}

// New returns a Server that follows a file. The options are those of [grpclimit.New]. It returns an
// error if w is nil or zero, or if an option is not valid.
func New(w *policyfile.Watcher, o *grpclimit.Options) (*Server, error) {
	if w == nil {
		return nil, errors.New("grpcfile: the Watcher is nil: must be set")
	}
	f := w.File()
	if f == nil {
		return nil, errors.New("grpcfile: the Watcher is zero: must be made by policyfile.Watch")
	}
	s := &Server{watcher: w, options: o}
	if o != nil {
		s.options = new(*o)
	}
	if err := checkOptions(s.options); err != nil {
		return nil, err
	}
	first, err := s.build(f)
	if err != nil {
		return nil, err
	}
	s.rules.Store(first)
	return s, nil
}

// checkOptions finds what is wrong with the options, also if the file has no rules yet, or no
// policies.
func checkOptions(o *grpclimit.Options) error {
	l, err := tiered.New(remote.NewMemory(), tiered.Policy{Name: "none", Limit: tiered.Unlimited()}, &tiered.Options{
		Logger: slog.New(slog.DiscardHandler), // it is no Redis of the user's
	})
	if err != nil {
		return err
	}
	defer func() { _ = l.Group().Close(context.Background()) }()
	list := []grpclimit.Rule{{Limiter: l, Key: grpclimit.Method(), Missing: grpclimit.Refuse}}
	_, err = grpclimit.New(list, optionsFor(list, o))
	return err
}

// optionsFor returns the options for some rules. Options.Plan may be for others of the file alone.
func optionsFor(list []grpclimit.Rule, o *grpclimit.Options) *grpclimit.Options {
	if o == nil || slices.ContainsFunc(list, func(r grpclimit.Rule) bool {
		return r.Plan == nil && (len(r.Limiter.Policy().Plans) > 0 || len(r.AtOnce.Policy().Plans) > 0)
	}) {
		return o
	}
	own := *o
	own.Plan = nil
	return &own
}

// rule is what limits the calls of a Match.
type rule struct {
	limits  *grpclimit.Server // nil limits nothing
	address grpclimit.Key     // of a client, if there are exceptions
	find    func(netip.Addr) (policyfile.Range, bool)
	instead map[string]*grpclimit.Server // of exceptions, by policy
}

// build makes the rules of a file.
func (s *Server) build(f *policyfile.File) (*rules, error) {
	next := &rules{f, map[string]*rule{}}
	for _, m := range f.GRPC {
		one, err := s.rule(m)
		if err != nil {
			return nil, fmt.Errorf("grpcfile: %s: %w", m.Match, err)
		}
		next.by[m.Match] = one
	}
	return next, nil
}

// rule makes a rule.
func (s *Server) rule(m policyfile.Method) (r *rule, err error) {
	r = &rule{instead: map[string]*grpclimit.Server{}}
	if r.limits, err = s.limits(m.Limits, nil); err != nil || len(m.Ranges) == 0 {
		return r, err
	}
	if r.address = keyOf([]policyfile.Key{m.Address}); m.Address.Kind != "ip" && m.Address.Kind != "forwarded-for" {
		return nil, fmt.Errorf("Exceptions.Address is %q: must be an address of a client, such as ip", m.Address)
	}
	for _, e := range m.Ranges {
		if r.instead[e.Policy], err = s.limits(m.LimitsOf(e), m.Limits); err != nil {
			return nil, fmt.Errorf("range %v: %w", e.Addresses, err)
		}
	}
	r.find = m.Find()
	return r, nil
}

// limits makes what limits calls, or nil if nothing does. It skips the others: they are there for
// handlers that settle them by their names.
func (s *Server) limits(all, others []policyfile.Limit) (*grpclimit.Server, error) {
	if s.options == nil || !s.options.Settle {
		others = nil
	}
	if len(all)+len(others) == 0 {
		return nil, nil
	}
	var list []grpclimit.Rule
	for i, l := range slices.Concat(all, others) {
		if i >= len(all) && (l.Policy == "" || slices.ContainsFunc(list, func(o grpclimit.Rule) bool { return o.Limiter.Policy().Name == l.Policy })) {
			continue
		}
		limiter, places, err := l.Limiters(s.watcher.Group())
		if err != nil {
			return nil, err
		}
		if l.Plan.Kind != "" && l.Plan.Kind != "metadata" {
			return nil, fmt.Errorf("Limit.Plan of policy %q is %q: must be metadata NAME", cmp.Or(l.Policy, l.AtOnce), l.Plan)
		}
		rule := ruleOf(l, limiter)
		rule.AtOnce = places
		if i >= len(all) {
			rule.AtOnce = nil
			rule.Skip, rule.Missing = func(context.Context, grpclimit.Call) bool { return true }, grpclimit.Exempt
		}
		list = append(list, rule)
	}
	return grpclimit.New(list, optionsFor(list, s.options))
}

func ruleOf(l policyfile.Limit, limiter *tiered.Limiter) grpclimit.Rule {
	rule := grpclimit.Rule{Limiter: limiter, Key: keyOf(l.Key), Missing: missing[l.Missing], Hidden: l.Hidden}
	if l.Plan.Kind != "" {
		rule.Plan = func(ctx context.Context, _ grpclimit.Call) string {
			return strings.TrimSpace(canonical.First(metadata.ValueFromIncomingContext(ctx, l.Plan.Name)))
		}
	}
	if cost := l.Cost; cost != 1 && limiter != nil {
		rule.Cost = func(context.Context, grpclimit.Call) int64 { return cost }
	}
	return rule
}

var missing = map[httplimit.Missing]grpclimit.Missing{
	httplimit.Refuse: grpclimit.Refuse, httplimit.Exempt: grpclimit.Exempt, httplimit.Together: grpclimit.Together,
	httplimit.Next: grpclimit.Next,
}

func keyOf(parts []policyfile.Key) grpclimit.Key {
	var all []grpclimit.Key
	for _, k := range parts {
		all = append(all, partOf(k))
	}
	if len(all) == 1 {
		return all[0]
	}
	return grpclimit.JoinKeys(all...)
}

// partOf returns the Key for one of the words that a file may have. For any other one it returns
// the zero Key, which grpclimit.New refuses.
func partOf(k policyfile.Key) grpclimit.Key {
	key := wholePartOf(k)
	if k.IPv4 != 0 || k.IPv6 != 0 {
		key = key.Prefix(k.IPv4, k.IPv6)
	}
	return key
}

// wholePartOf returns the Key for a word without the bits of an address.
func wholePartOf(k policyfile.Key) (key grpclimit.Key) {
	switch k.Kind {
	case "ip":
		return grpclimit.PeerIP()
	case "method":
		return grpclimit.Method()
	case "metadata":
		return grpclimit.Metadata(k.Name)
	case "credential":
		return grpclimit.Credential(k.Name)
	case "forwarded-for":
		return grpclimit.ForwardedFor(k.Proxies...)
	case "tls-subject":
		return grpclimit.TLSSubject()
	case "spiffe-id":
		return grpclimit.SPIFFEID()
	}
	return key
}

// of returns what limits a call of a method, or nil if nothing does.
func (s *Server) of(ctx context.Context, method string) *grpclimit.Server {
	one := s.ruleOf(method)
	if one == nil {
		return nil
	}
	if one.find != nil {
		if a, ok := one.address.Address(ctx); ok {
			if e, ok := one.find(a); ok {
				return one.instead[e.Policy]
			}
		}
	}
	return one.limits
}

// ruleOf returns the most specific rule of a method, or nil.
func (s *Server) ruleOf(method string) *rule {
	r := s.rules.Load()
	if f := s.watcher.File(); r.file != f {
		r = s.follow(f)
	}
	if one, ok := r.by[method]; ok {
		return one
	}
	if i := strings.LastIndexByte(method, '/'); i > 0 {
		if one, ok := r.by[method[:i+1]]; ok {
			return one
		}
	}
	return r.by["/"]
}

// follow makes the rules of a new version of the file. If that fails, which is told once, those of
// before stay.
func (s *Server) follow(f *policyfile.File) *rules {
	s.mu.Lock()
	defer s.mu.Unlock()
	before := s.rules.Load()
	if before.file == f {
		return before
	}
	next, err := s.build(f)
	if err != nil {
		logger := slog.Default()
		if s.options != nil && s.options.Logger != nil {
			logger = s.options.Logger
		}
		logger.Error("gRPC rules of the policy file not used: those of before stay in force", "error", err)
		next = &rules{f, before.by}
	}
	s.rules.Store(next)
	return next
}

// ServerOptions returns the options of grpc.NewServer that add both interceptors. They run after
// those of options to the left, and before those to the right.
func (s *Server) ServerOptions() []grpc.ServerOption {
	return []grpc.ServerOption{grpc.ChainUnaryInterceptor(s.Unary), grpc.ChainStreamInterceptor(s.Stream)}
}

// Unary is a grpc.UnaryServerInterceptor.
func (s *Server) Unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	if one := s.of(ctx, info.FullMethod); one != nil {
		return one.Unary(ctx, req, info, handler)
	}
	return handler(ctx, req)
}

// Stream is a grpc.StreamServerInterceptor. A stream keeps the rules that it began with.
func (s *Server) Stream(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	if one := s.of(ss.Context(), info.FullMethod); one != nil {
		return one.Stream(srv, ss, info, handler)
	}
	return handler(srv, ss)
}
