package main

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"regexp"
	"slices"
	"strings"
	"time"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	statuspb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/tiered-limiter/tiered-limiter/contrib/rls"
)

// How long a control plane may take, and how often it may change its mind.
const (
	connectTime = 10 * time.Second
	firstTime   = 10 * time.Second // until the first configuration; then the log says that none has come
	aliveTime   = 6 * time.Minute  // between two pings: a server of gRPC ends connections that ping every five minutes
	betweenUses = 100 * time.Millisecond
	afterBad    = time.Second // one that sends again what was refused must not keep a processor busy
)

// controlPlane follows a control plane: it asks for RateLimitConfigs by the aggregated discovery
// service, uses what comes, and says so (ACK), or what is wrong with it (NACK). What was used last
// stays until there is something that can be used.
//
// The client of go-control-plane is not used: it does not tell the version and the type of an
// answer, and sends the nonce of a stream that is gone on the next one.
type controlPlane struct {
	*server
	version string            // that was used last, of this stream
	sum     [sha256.Size]byte // of what came last
	problem error             // of that; nil if it is used
	seen    bool              // it came by this stream
	said    string            // what the log says of an outage
	mixed   string            // the version that had two contents
}

// follow follows until ctx ends.
func (c *controlPlane) follow(ctx context.Context) {
	for lost := 0; ; { // streams, one after the other
		opened, answered, err := c.stream(ctx)
		wait := c.XDSRetry/2 + rand.N(c.XDSRetry) // half more or less
		if answered {
			lost = 0
		}
		if opened {
			wait = c.backOff(lost)
			lost++
		}
		if ctx.Err() == nil {
			c.outage(err, wait)
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
	}
}

// backOff returns how long to wait after a stream was lost.
func (c *controlPlane) backOff(lost int) time.Duration {
	wait := float64(c.XDSBackoff)
	for range lost {
		wait = min(wait*max(c.XDSBackoffFactor, 1), float64(c.XDSBackoffMax))
	}
	if c.XDSBackoffJitter { // or all replicas would come back at once
		wait *= 0.5 + rand.Float64()/2
	}
	return time.Duration(wait)
}

var digits = regexp.MustCompile(`\d+`)

// outage says that the control plane does not answer: once for each reason of an outage.
func (c *controlPlane) outage(err error, wait time.Duration) {
	kind := digits.ReplaceAllString(err.Error(), "")
	if kind == c.said {
		return
	}
	c.said = kind
	about := []any{"server", c.XDSServer, "error", err, "again_in", wait.Round(time.Millisecond)}
	if status.Code(err) == codes.ResourceExhausted {
		about = append(about, "remedy", "raise XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES")
	}
	if c.service.Config() == nil {
		c.log.Warn("the control plane does not answer, and there is no configuration yet: calls are answered with UNAVAILABLE", about...)
		return
	}
	c.log.Warn("the control plane does not answer: the last configuration stays", about...)
}

// stream opens a stream, and follows what comes until it ends. It reports whether there was a
// stream, and whether anything came.
func (c *controlPlane) stream(ctx context.Context) (opened, answered bool, err error) {
	secure, err := c.credentials()
	if err != nil {
		return false, false, err
	}
	o := []grpc.DialOption{
		grpc.WithTransportCredentials(secure),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: backoff.DefaultConfig, MinConnectTimeout: connectTime}),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: aliveTime, Timeout: 20 * time.Second}),
	}
	if c.XDSMaxMessage > 0 {
		o = append(o, grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(c.XDSMaxMessage)))
	}
	conn, err := grpc.NewClient(c.XDSServer, o...)
	if err != nil {
		return false, false, fmt.Errorf("CONFIG_GRPC_XDS_SERVER_URL is %q: %w", c.XDSServer, err)
	}
	defer conn.Close()
	ctx, cancel := context.WithCancel(metadata.NewOutgoingContext(ctx, metadata.New(c.XDSHeaders)))
	defer cancel()
	stream, err := discovery.NewAggregatedDiscoveryServiceClient(conn).StreamAggregatedResources(ctx)
	if err != nil {
		return false, false, err
	}
	if c.service.Config() == nil {
		defer time.AfterFunc(firstTime, func() {
			if c.service.Config() == nil {
				c.log.Warn("the control plane has sent no configuration yet: calls are answered with UNAVAILABLE", "server", c.XDSServer,
					"node", c.XDSNode, "remedy", "CONFIG_GRPC_XDS_NODE_ID must be the node that it has a configuration for")
			}
		}).Stop()
	}
	node, _ := c.node()
	// Without the last version: one that has started anew may count its versions from 1 again, and
	// would send nothing if another content happened to have the same.
	c.version, c.seen = "", false
	err = stream.Send(&discovery.DiscoveryRequest{Node: node, TypeUrl: rls.ResourceType})
	for err == nil {
		var r *discovery.DiscoveryResponse
		if r, err = stream.Recv(); err != nil {
			break
		}
		answered = true
		if c.said != "" {
			c.said = ""
			c.log.Info("the control plane answers again", "server", c.XDSServer)
		}
		pause := betweenUses
		answer := &discovery.DiscoveryRequest{Node: node, TypeUrl: rls.ResourceType, ResponseNonce: r.GetNonce()}
		switch problem := c.take(ctx, r); {
		case ctx.Err() != nil:
			return true, true, ctx.Err() // it may not be used, and nothing is wrong with it
		case problem != nil:
			pause = afterBad
			answer.ErrorDetail = &statuspb.Status{Code: int32(codes.InvalidArgument), Message: shortened(problem.Error())}
		default:
			c.version = r.GetVersionInfo()
		}
		answer.VersionInfo = c.version
		err = stream.Send(answer)
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
	}
	if errors.Is(err, io.EOF) {
		if _, err = stream.Recv(); errors.Is(err, io.EOF) || err == nil { // it tells why the stream has ended
			err = status.Error(codes.Unavailable, "the stream has ended")
		}
	}
	return true, answered, err
}

// longestProblem is the longest text of a NACK: mistakes may be many, and the log has them all.
const longestProblem = 4 << 10

func shortened(text string) string {
	if len(text) <= longestProblem {
		return text
	}
	return strings.ToValidUTF8(text[:longestProblem], "") + " ..."
}

// take uses what came, if it is not what came last. The error is what is wrong with it.
func (c *controlPlane) take(ctx context.Context, r *discovery.DiscoveryResponse) error {
	sum, seen := sumOf(r), c.seen
	c.seen = true
	if sum == c.sum {
		return c.problem
	}
	if v := r.GetVersionInfo(); seen && c.problem == nil && v == c.version && v != c.mixed {
		c.mixed = v
		c.log.Warn("the control plane has sent another content with the same version: it is used", "version", v)
	}
	var d draft
	if d.files, d.err = rls.Resources(r.GetResources()); r.GetTypeUrl() != rls.ResourceType {
		d.err = fmt.Errorf("type_url is %.128q: must be %s", r.GetTypeUrl(), rls.ResourceType)
	}
	for i := range d.files {
		d.files[i].Merge = c.Merge
	}
	c.parse(&d)
	c.use(ctx, &d)
	c.sum, c.problem = sum, d.err
	return d.err
}

// sumOf returns a hash of the content, in whatever order its resources are.
func sumOf(r *discovery.DiscoveryResponse) [sha256.Size]byte {
	var all [][sha256.Size]byte
	for _, a := range r.GetResources() {
		all = append(all, sha256.Sum256(fmt.Appendf(nil, "%q %s", a.GetTypeUrl(), a.GetValue())))
	}
	slices.SortFunc(all, func(a, b [sha256.Size]byte) int { return bytes.Compare(a[:], b[:]) })
	return sha256.Sum256(fmt.Appendf(nil, "%q %x", r.GetTypeUrl(), all))
}

// credentials returns the TLS of a connection. Its files are read for each one, because they may
// be replaced at any time.
func (s settings) credentials() (credentials.TransportCredentials, error) {
	if !s.XDSTLS {
		return insecure.NewCredentials(), nil
	}
	t := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: s.XDSName}
	if s.XDSCA != "" {
		text, err := os.ReadFile(s.XDSCA)
		if err != nil {
			return nil, fmt.Errorf("CONFIG_GRPC_XDS_SERVER_TLS_CACERT: %w", err)
		}
		if t.RootCAs = x509.NewCertPool(); !t.RootCAs.AppendCertsFromPEM(text) {
			return nil, fmt.Errorf("CONFIG_GRPC_XDS_SERVER_TLS_CACERT is %q: must have a certificate in PEM", s.XDSCA)
		}
	}
	if s.XDSCert != "" {
		pair, err := tls.LoadX509KeyPair(s.XDSCert, s.XDSKey)
		if err != nil {
			return nil, fmt.Errorf("CONFIG_GRPC_XDS_CLIENT_TLS_CERT and CONFIG_GRPC_XDS_CLIENT_TLS_KEY: %w", err)
		}
		if err := expired(pair); err != nil {
			return nil, fmt.Errorf("CONFIG_GRPC_XDS_CLIENT_TLS_CERT is %q: %w", s.XDSCert, err)
		}
		t.Certificates = []tls.Certificate{pair}
	}
	return credentials.NewTLS(t), nil
}

// expired returns an error if a certificate has expired.
func expired(c tls.Certificate) error {
	if leaf := c.Leaf; leaf != nil && time.Now().After(leaf.NotAfter) {
		return fmt.Errorf("the certificate has expired at %s: must be replaced", leaf.NotAfter.UTC().Format(time.RFC3339))
	}
	return nil
}

// node is the identity of this client. The error is what is wrong with
// CONFIG_GRPC_XDS_NODE_METADATA.
func (s settings) node() (*core.Node, error) {
	n := &core.Node{Id: s.XDSNode, UserAgentName: "tieredd"}
	if s.XDSMetadata == "" {
		return n, nil
	}
	n.Metadata = &structpb.Struct{Fields: map[string]*structpb.Value{}}
	for pair := range strings.SplitSeq(s.XDSMetadata, ",") {
		name, value, ok := strings.Cut(pair, "=")
		if !ok || name == "" {
			return nil, fmt.Errorf("CONFIG_GRPC_XDS_NODE_METADATA has %.64q: must be name=value, with a comma between two", pair)
		}
		n.Metadata.Fields[name] = structpb.NewStringValue(value)
	}
	return n, nil
}

// headerName is the name of a header that gRPC can send.
var headerName = regexp.MustCompile(`^[0-9a-z_.-]+$`)

// checkXDS calls bad for what is wrong with the settings of the control plane.
func (s settings) checkXDS(bad func(format string, args ...any)) {
	if s.XDSServer == "" {
		bad("CONFIG_GRPC_XDS_SERVER_URL is empty: must be the address of the control plane, such as envoy-gateway:18001")
	}
	if strings.Contains(s.XDSServer, "://") {
		bad("CONFIG_GRPC_XDS_SERVER_URL is %q: must be a host and a port, without a scheme", s.XDSServer)
	}
	if s.XDSNode == "" {
		bad("CONFIG_GRPC_XDS_NODE_ID is empty: must be the node that the control plane has a configuration for")
	}
	if _, err := s.node(); err != nil {
		bad("%w", err)
	}
	for name := range s.XDSHeaders {
		if !headerName.MatchString(strings.ToLower(name)) || strings.HasPrefix(strings.ToLower(name), "grpc-") {
			bad("CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS has the name %.64q: must be a header, and not one of grpc-", name)
		}
	}
	if (s.XDSCert == "") != (s.XDSKey == "") {
		bad("CONFIG_GRPC_XDS_CLIENT_TLS_CERT is %q and CONFIG_GRPC_XDS_CLIENT_TLS_KEY is %q: must be set both, or none", s.XDSCert, s.XDSKey)
	}
	if of := cmp.Or(s.XDSCert, s.XDSKey, s.XDSCA, s.XDSName); of != "" && !s.XDSTLS {
		bad("CONFIG_GRPC_XDS_SERVER_USE_TLS is false, and %q is set for TLS: must be true", of)
	}
	for _, d := range []struct {
		name        string
		is          time.Duration
		least, most time.Duration
	}{
		{"CONFIG_GRPC_XDS_SERVER_CONNECT_RETRY_INTERVAL", s.XDSRetry, 10 * time.Millisecond, time.Hour},
		{"XDS_CLIENT_BACKOFF_INITIAL_INTERVAL", s.XDSBackoff, 10 * time.Millisecond, time.Hour},
		{"XDS_CLIENT_BACKOFF_MAX_INTERVAL", s.XDSBackoffMax, s.XDSBackoff, 24 * time.Hour},
	} {
		if d.is < d.least || d.is > d.most {
			bad("%s is %v: must be %v to %v", d.name, d.is, d.least, d.most)
		}
	}
	if f := s.XDSBackoffFactor; !(f >= 0 && f <= 100) {
		bad("XDS_CLIENT_BACKOFF_RANDOM_FACTOR is %v: must be 0 to 100", f)
	}
	if n := s.XDSMaxMessage; n != 0 && (n < 1<<10 || n > 1<<30) {
		bad("XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES is %d: must be 0, for 4 MiB, or %d to %d", n, 1<<10, 1<<30)
	}
}
