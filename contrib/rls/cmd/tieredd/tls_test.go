package main_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	tieredd "github.com/tiered-limiter/tiered-limiter/contrib/rls/cmd/tieredd"
	"github.com/tiered-limiter/tiered-limiter/contrib/rls/internal/behavior"
	"github.com/tiered-limiter/tiered-limiter/internal/filechanges"
	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/fatal"
)

// authority is a certificate authority.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t *testing.T, name string) authority {
	t.Helper()
	key := fatal.Get(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(t)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
	}
	der := fatal.Get(x509.CreateCertificate(rand.Reader, template, template, key.Public(), key))(t)
	cert := fatal.Get(x509.ParseCertificate(der))(t)
	return authority{cert, key}
}

func (a authority) pem() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.cert.Raw})
}

// issue returns a certificate for a name and 127.0.0.1, and its key, in PEM. The name may be a URI.
func (a authority) issue(t *testing.T, name string, ends time.Time) (cert, key []byte) {
	t.Helper()
	pair := fatal.Get(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(t)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()),
		IPAddresses:  []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore:    time.Now().Add(-2 * time.Hour), NotAfter: ends, KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	if id, err := url.Parse(name); err == nil && id.Scheme != "" {
		template.URIs = []*url.URL{id}
	} else {
		template.DNSNames = []string{name}
	}
	der := fatal.Get(x509.CreateCertificate(rand.Reader, template, a.cert, pair.Public(), a.key))(t)
	text := fatal.Get(x509.MarshalPKCS8PrivateKey(pair))(t)
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: text})
}

// secret is a directory with the files of a Kubernetes Secret: links to files in ..data, which is a
// link too.
type secret struct {
	dir  string
	last string // the directory with the files
	puts int
}

func newSecret(t *testing.T, files map[string][]byte) *secret {
	t.Helper()
	s := &secret{dir: t.TempDir()}
	s.put(t, files)
	for name := range files {
		fatal.If(t, os.Symlink(filepath.Join("..data", name), s.path(name)))
	}
	return s
}

func (s *secret) path(name string) string { return filepath.Join(s.dir, name) }

// put replaces all files at once, as the kubelet does.
func (s *secret) put(t *testing.T, files map[string][]byte) {
	t.Helper()
	s.puts++
	dir := s.path(fmt.Sprintf("..%d", s.puts))
	fatal.If(t, os.Mkdir(dir, 0o700))
	for name, text := range files {
		fatal.If(t, os.WriteFile(filepath.Join(dir, name), text, 0o600))
	}
	fatal.If(t, os.Symlink(dir, s.path("..new")))
	fatal.If(t, os.Rename(s.path("..new"), s.path("..data")))
	if s.last != "" {
		_ = os.RemoveAll(s.last)
	}
	s.last = dir
}

// caller is a client with or without a certificate.
type caller struct {
	t      *testing.T
	config *tls.Config
}

func newCaller(t *testing.T, of authority, cert, key []byte) caller {
	t.Helper()
	c := &tls.Config{RootCAs: x509.NewCertPool(), ClientSessionCache: tls.NewLRUClientSessionCache(10)}
	c.RootCAs.AddCert(of.cert)
	if cert != nil {
		pair := fatal.Get(tls.X509KeyPair(cert, key))(t)
		c.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			return &pair, nil // also if its authority is not one that the server names
		}
	}
	return caller{t, c}
}

// call asks by gRPC on a new connection.
func (c caller) call(p *process) codes.Code {
	conn := fatal.Get(grpc.NewClient(p.address, grpc.WithTransportCredentials(credentials.NewTLS(c.config))))(c.t)
	defer conn.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	_, err := pb.NewRateLimitServiceClient(conn).ShouldRateLimit(ctx, behavior.Request("shop | user=a +0"))
	return status.Code(err)
}

// do asks by HTTP on a new connection. It returns 0 if there is none.
func (c caller) do(p *process, method, path, body string) int {
	transport := &http.Transport{TLSClientConfig: c.config}
	defer transport.CloseIdleConnections()
	request := fatal.Get(http.NewRequest(method, p.public+path, strings.NewReader(body)))(c.t)
	answer, err := (&http.Client{Transport: transport, Timeout: 30 * time.Second}).Do(request)
	if err != nil {
		return 0
	}
	defer answer.Body.Close()
	return answer.StatusCode
}

const askByHTTP = `{"domain":"shop","descriptors":[{"entries":[{"key":"user","value":"a"}]}]}`

// With mTLS, only who has a certificate of the authority with the right name may ask. A probe needs
// none. When the files change, new connections see the new ones. Files that are wrong change
// nothing.
func TestMutualTLS(t *testing.T) {
	t.Parallel()
	soon, past := time.Now().Add(time.Hour), time.Now().Add(-time.Minute)
	ours, others := newAuthority(t, "ours"), newAuthority(t, "others")
	files := func(a authority) map[string][]byte {
		cert, key := a.issue(t, "tieredd", soon)
		return map[string][]byte{"tls.crt": cert, "tls.key": key, "ca.crt": a.pem()}
	}
	s := newSecret(t, files(ours))
	good := func(a authority) caller {
		cert, key := a.issue(t, "envoy", soon)
		return newCaller(t, a, cert, key)
	}
	probe := newCaller(t, ours, nil, nil)
	p := startTLS(t, probe.config, limits, "GRPC_SERVER_USE_TLS=true", "TIERED_HTTP_TLS=true",
		"GRPC_SERVER_TLS_CERT="+s.path("tls.crt"), "GRPC_SERVER_TLS_KEY="+s.path("tls.key"),
		"GRPC_CLIENT_TLS_CACERT="+s.path("ca.crt"), "GRPC_CLIENT_TLS_SAN=envoy")

	with := func(cert, key []byte) caller { return newCaller(t, ours, cert, key) }
	for _, c := range []struct {
		name   string
		caller caller
		grpc   codes.Code
		http   int
	}{
		{"the right one", good(ours), codes.OK, 200},
		{"no certificate", probe, codes.Unavailable, 403},
		{"another authority", with(others.issue(t, "envoy", soon)), codes.Unavailable, 0},
		{"expired", with(ours.issue(t, "envoy", past)), codes.Unavailable, 0},
		{"another name", with(ours.issue(t, "stranger", soon)), codes.Unavailable, 0},
	} {
		if code := c.caller.call(p); code != c.grpc {
			t.Errorf("%s: gRPC answers %v, want %v", c.name, code, c.grpc)
		}
		if code := c.caller.do(p, http.MethodPost, "/json", askByHTTP); code != c.http {
			t.Errorf("%s: HTTP answers %d, want %d", c.name, code, c.http)
		}
	}
	if code := probe.do(p, http.MethodGet, "/readyz", ""); code != http.StatusOK {
		t.Errorf("a probe without a certificate: %d", code)
	}
	if code := p.post("/v1/allow", "{}", ""); code != http.StatusForbidden {
		t.Errorf("/v1/allow without a certificate: %d", code)
	}
	plain := *p
	plain.public = strings.Replace(p.public, "https", "http", 1)
	if code, _ := plain.get("/readyz"); code == http.StatusOK {
		t.Error("without TLS it answers")
	}

	before, after := good(ours), good(others)
	if before.call(p) != codes.OK || after.call(p) != codes.Unavailable {
		t.Error("the old certificate is refused, or the new one is taken too early")
	}
	s.put(t, files(others))
	eventually(t, "the new certificates are used", func() bool { return after.call(p) == codes.OK })
	if code := after.do(p, http.MethodPost, "/json", askByHTTP); code != http.StatusOK {
		t.Errorf("HTTP with the new certificates: %d", code)
	}
	trusting := before // does not mind the server's, and may take up its session
	trusting.config = before.config.Clone()
	trusting.config.RootCAs.AddCert(others.cert)
	if code := trusting.call(p); code != codes.Unavailable {
		t.Errorf("a client of the old authority: %v", code)
	}

	wrong := files(ours)
	wrong["tls.key"] = []byte("not a key")
	s.put(t, wrong)
	eventually(t, "the mistake is logged", func() bool { return strings.Contains(p.log(), "the certificates are not used") })
	if code := after.call(p); code != codes.OK {
		t.Errorf("after a mistake in the files: %v", code)
	}
	gone := files(ours)
	gone["tls.crt"], gone["tls.key"] = ours.issue(t, "tieredd", past)
	s.put(t, gone)
	const expired = "clients refuse GRPC_SERVER_TLS_CERT"
	eventually(t, "it is told that the certificate has expired", func() bool { return p.told(expired) > 0 })
	time.Sleep(1500 * time.Millisecond) // it has looked again
	if n := p.told(expired); n != 1 {
		t.Errorf("it is told %d times that the certificate has expired", n)
	}
	s.put(t, files(ours))
	eventually(t, "the mistake is mended", func() bool { return before.call(p) == codes.OK })
}

// With a URI as GRPC_CLIENT_TLS_SAN, as SPIFFE gives to a workload of a mesh, only who has that URI
// may ask.
func TestSPIFFE(t *testing.T) {
	const id = "spiffe://cluster.local/ns/istio-system/sa/istio-ingressgateway"
	ours, soon := newAuthority(t, "ours"), time.Now().Add(time.Hour)
	cert, key := ours.issue(t, "tieredd", soon)
	s := newSecret(t, map[string][]byte{"tls.crt": cert, "tls.key": key, "ca.crt": ours.pem()})
	p := start(t, limits, "GRPC_SERVER_USE_TLS=true", "GRPC_SERVER_TLS_CERT="+s.path("tls.crt"),
		"GRPC_SERVER_TLS_KEY="+s.path("tls.key"), "GRPC_CLIENT_TLS_CACERT="+s.path("ca.crt"), "GRPC_CLIENT_TLS_SAN="+id)
	for name, want := range map[string]codes.Code{
		id: codes.OK, id + "2": codes.Unavailable, "spiffe://cluster.local/ns/istio-system": codes.Unavailable,
		"istio-ingressgateway": codes.Unavailable,
	} {
		cert, key := ours.issue(t, name, soon)
		if code := newCaller(t, ours, cert, key).call(p); code != want {
			t.Errorf("%s: %v, want %v", name, code, want)
		}
	}
}

// Without an authority, anyone may ask, but only by TLS.
func TestTLS(t *testing.T) {
	ours := newAuthority(t, "ours")
	cert, key := ours.issue(t, "tieredd", time.Now().Add(time.Hour))
	s := newSecret(t, map[string][]byte{"tls.crt": cert, "tls.key": key})
	p := start(t, limits, "GRPC_SERVER_USE_TLS=true", "GRPC_SERVER_TLS_CERT="+s.path("tls.crt"),
		"GRPC_SERVER_TLS_KEY="+s.path("tls.key"))
	if code := newCaller(t, ours, nil, nil).call(p); code != codes.OK {
		t.Errorf("by TLS: %v", code)
	}
	if code := newCaller(t, newAuthority(t, "others"), nil, nil).call(p); code != codes.Unavailable {
		t.Errorf("the client does not know the authority: %v", code)
	}
	_, err := p.client.ShouldRateLimit(t.Context(), behavior.Request("shop | user=a"))
	if status.Code(err) != codes.Unavailable {
		t.Errorf("without TLS: %v", err)
	}
	if code := p.post("/json", askByHTTP, ""); code != http.StatusOK {
		t.Errorf("HTTP without TIERED_HTTP_TLS: %d", code)
	}
}

// It does not start with files that are wrong, and names all of them.
func TestWrongTLS(t *testing.T) {
	ours := newAuthority(t, "ours")
	cert, key := ours.issue(t, "tieredd", time.Now().Add(time.Hour))
	s := newSecret(t, map[string][]byte{"tls.crt": cert, "tls.key": key, "empty": nil})
	for _, c := range []struct{ cert, key, ca, want string }{
		{"none", "neither", "nor", "GRPC_SERVER_TLS_CERT: open"},
		{"none", "neither", "nor", "GRPC_SERVER_TLS_KEY: open"},
		{"none", "neither", "nor", "GRPC_CLIENT_TLS_CACERT: open"},
		{"tls.crt", "tls.crt", "empty", "GRPC_SERVER_TLS_CERT and GRPC_SERVER_TLS_KEY: "},
		{"tls.crt", "tls.crt", "empty", "must have a certificate in PEM"},
	} {
		out, err := tool(t, []string{
			"GRPC_SERVER_USE_TLS=true", "GRPC_SERVER_TLS_CERT=" + s.path(c.cert), "GRPC_SERVER_TLS_KEY=" + s.path(c.key),
			"GRPC_CLIENT_TLS_CACERT=" + s.path(c.ca),
		})
		if err == nil || !strings.Contains(out, c.want) {
			t.Errorf("%+v: %v, %s", c, err, out)
		}
	}
}

// Files of TLS that are being written are not used: an authority that is not there yet would lock
// its clients out.
func TestHalfAnAuthority(t *testing.T) {
	ours, theirs := newAuthority(t, "ours"), newAuthority(t, "theirs")
	cert, key := ours.issue(t, "tieredd", time.Now().Add(time.Hour))
	whole := append(ours.pem(), theirs.pem()...)
	s := newSecret(t, map[string][]byte{"tls.crt": cert, "tls.key": key, "ca.crt": whole})
	i := tieredd.NewIdentity(tieredd.Settings{TLS: true, Certificate: s.path("tls.crt"), Key: s.path("tls.key"), ClientCA: s.path("ca.crt")})
	for n, step := range []struct {
		ca   []byte
		want filechanges.Change
	}{
		{whole, filechanges.Changing},
		{whole, filechanges.Changed},
		{ours.pem(), filechanges.Changing},
		{whole, filechanges.None},
		{ours.pem(), filechanges.Changing},
		{ours.pem(), filechanges.Changed},
	} {
		before := i.Config()
		s.put(t, map[string][]byte{"tls.crt": cert, "tls.key": key, "ca.crt": step.ca})
		is, err := i.Reload()
		if used := i.Config() != before; err != nil || is != step.want || used != (is == filechanges.Changed) {
			t.Errorf("reading %d: %v, %v, used %t; want %v", n, is, err, used, step.want)
		}
	}
}

// Files of TLS that are being written when a process starts are not a mistake.
func TestHalfACertificateAtTheStart(t *testing.T) {
	ours := newAuthority(t, "ours")
	cert, key := ours.issue(t, "tieredd", time.Now().Add(time.Hour))
	s := newSecret(t, map[string][]byte{"tls.crt": cert[:len(cert)/2], "tls.key": key})
	synctest.Test(t, func(t *testing.T) { // where the files seem to be written just now
		i := tieredd.NewIdentity(tieredd.Settings{TLS: true, Certificate: s.path("tls.crt"), Key: s.path("tls.key")})
		begin := time.Now()
		time.AfterFunc(60*time.Millisecond, func() { s.put(t, map[string][]byte{"tls.crt": cert, "tls.key": key}) })
		if err := i.Start(); err != nil || time.Since(begin) != filechanges.Quiet {
			t.Errorf("after %v: %v", time.Since(begin), err)
		}
	})
}
