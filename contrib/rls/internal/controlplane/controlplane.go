// Package controlplane is the control plane of tests: one of go-control-plane, as Envoy Gateway
// has, and one that says what a test wants.
package controlplane

import (
	"context"
	"net"
	"strings"
	"sync"
	"testing"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
	"github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"github.com/envoyproxy/go-control-plane/pkg/server/v3"
	pb "github.com/envoyproxy/go-control-plane/ratelimit/config/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
)

// Node is the node that a Plane has a configuration for.
const Node = "tieredd-test"

// Plane is a control plane.
type Plane struct {
	Address string
	options []grpc.ServerOption
	service discovery.AggregatedDiscoveryServiceServer
	cache   cache.SnapshotCache
	server  *grpc.Server

	mu       sync.Mutex
	requests []*discovery.DiscoveryRequest
	headers  metadata.MD
}

// Start starts a control plane of go-control-plane, which ends with the test.
func Start(t *testing.T, o ...grpc.ServerOption) *Plane {
	t.Helper()
	p := &Plane{options: o, cache: cache.NewSnapshotCache(true, cache.IDHash{}, nil)}
	p.service = server.NewServer(t.Context(), p.cache, server.CallbackFuncs{
		StreamOpenFunc: func(ctx context.Context, _ int64, _ string) error {
			p.mu.Lock()
			defer p.mu.Unlock()
			p.headers, _ = metadata.FromIncomingContext(ctx)
			return nil
		},
		StreamRequestFunc: func(_ int64, r *discovery.DiscoveryRequest) error { p.note(r); return nil },
	})
	p.listen(t, "127.0.0.1:0")
	return p
}

// StartLiar starts a control plane that answers each stream as the function does, which is given
// the requests that have been read.
func StartLiar(t *testing.T, f func(send func(*discovery.DiscoveryResponse), receive func() *discovery.DiscoveryRequest)) *Plane {
	t.Helper()
	p := &Plane{}
	p.service = liar{play: f, plane: p}
	p.listen(t, "127.0.0.1:0")
	return p
}

type liar struct {
	discovery.UnimplementedAggregatedDiscoveryServiceServer
	plane *Plane
	play  func(func(*discovery.DiscoveryResponse), func() *discovery.DiscoveryRequest)
}

func (l liar) StreamAggregatedResources(s discovery.AggregatedDiscoveryService_StreamAggregatedResourcesServer) error {
	l.play(func(r *discovery.DiscoveryResponse) { _ = s.Send(r) }, func() *discovery.DiscoveryRequest {
		r, err := s.Recv()
		if err != nil {
			return nil
		}
		l.plane.note(r)
		return r
	})
	return nil
}

func (p *Plane) note(r *discovery.DiscoveryRequest) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.requests = append(p.requests, proto.Clone(r).(*discovery.DiscoveryRequest))
}

func (p *Plane) listen(t *testing.T, at string) {
	t.Helper()
	l, err := net.Listen("tcp", at)
	if err != nil {
		t.Fatal(err)
	}
	p.Address = l.Addr().String()
	s := grpc.NewServer(p.options...)
	discovery.RegisterAggregatedDiscoveryServiceServer(s, p.service)
	go func() { _ = s.Serve(l) }()
	p.server = s
	t.Cleanup(p.Kill)
}

// Kill ends the control plane, and all its streams.
func (p *Plane) Kill() { p.server.Stop() }

// Restart starts it again at the same address.
func (p *Plane) Restart(t *testing.T) {
	t.Helper()
	p.listen(t, p.Address)
}

// Set makes all that the control plane sends to Node.
func (p *Plane) Set(t *testing.T, version string, all ...*pb.RateLimitConfig) {
	t.Helper()
	p.SetFor(t, Node, version, all...)
}

// SetFor is Set for another node.
func (p *Plane) SetFor(t *testing.T, node, version string, all ...*pb.RateLimitConfig) {
	t.Helper()
	var resources []types.Resource
	for _, c := range all {
		resources = append(resources, c)
	}
	s, err := cache.NewSnapshot(version, map[resource.Type][]types.Resource{resource.RateLimitConfigType: resources})
	if err == nil {
		err = p.cache.SetSnapshot(t.Context(), node, s)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// Requests returns what clients have sent, and the headers of the last stream.
func (p *Plane) Requests() (all []*discovery.DiscoveryRequest, headers metadata.MD) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append(all, p.requests...), p.headers
}

// Acked reports whether the last request accepts a version.
func (p *Plane) Acked(version string) bool {
	all, _ := p.Requests()
	if len(all) == 0 {
		return false
	}
	last := all[len(all)-1]
	return last.GetErrorDetail() == nil && last.GetVersionInfo() == version && last.GetResponseNonce() != ""
}

// Refused returns the texts of the refusals.
func (p *Plane) Refused() (all []string) {
	requests, _ := p.Requests()
	for _, r := range requests {
		if r.GetErrorDetail() != nil {
			all = append(all, r.GetErrorDetail().GetMessage())
		}
	}
	return all
}

// NodeOf returns who has asked first.
func (p *Plane) NodeOf() *core.Node {
	all, _ := p.Requests()
	if len(all) == 0 {
		return nil
	}
	return all[0].GetNode()
}

// Config reads a resource, written as JSON.
func Config(t *testing.T, text string) *pb.RateLimitConfig {
	t.Helper()
	var c pb.RateLimitConfig
	if err := protojson.Unmarshal([]byte(strings.TrimSpace(text)), &c); err != nil {
		t.Fatalf("%v in %s", err, text)
	}
	return &c
}
