package redistest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/fatal"
)

// CA is a certificate authority that only the test knows.
type CA struct {
	PEM []byte // its certificate

	t    testing.TB
	key  *ecdsa.PrivateKey
	cert *x509.Certificate
}

// NewCA makes an authority that is valid for an hour.
func NewCA(t testing.TB) *CA {
	t.Helper()
	ca := &CA{t: t, cert: &x509.Certificate{
		Subject: pkix.Name{CommonName: "a test's authority"}, NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}}
	ca.PEM, ca.key = ca.sign(ca.cert)
	block, _ := pem.Decode(ca.PEM)
	var err error
	if ca.cert, err = x509.ParseCertificate(block.Bytes); err != nil {
		t.Fatal(err)
	}
	return ca
}

// Pool returns a pool with this authority only.
func (ca *CA) Pool() *x509.CertPool {
	p := x509.NewCertPool()
	p.AddCert(ca.cert)
	return p
}

// sign makes a certificate and its key, signed by the authority. The first one signs itself.
func (ca *CA) sign(c *x509.Certificate) (certificate []byte, key *ecdsa.PrivateKey) {
	ca.t.Helper()
	key = fatal.Get(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(ca.t)
	signer := ca.key
	if signer == nil {
		signer = key
	}
	c.SerialNumber, c.NotBefore = big.NewInt(time.Now().UnixNano()), time.Now().Add(-24*time.Hour)
	der := fatal.Get(x509.CreateCertificate(rand.Reader, c, ca.cert, &key.PublicKey, signer))(ca.t)
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), key
}

// StartTLS is StartOpen with a second port, TLSAddr, on which the server speaks only TLS. Its
// certificate is signed by the authority for a host (a name or an address) and expires at until. It
// asks clients for no certificate.
func StartTLS(t testing.TB, ca *CA, host string, until time.Time, args ...string) *Server {
	t.Helper()
	c := &x509.Certificate{NotAfter: until, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}
	if ip := net.ParseIP(host); ip != nil {
		c.IPAddresses = []net.IP{ip}
	} else {
		c.DNSNames = []string{host}
	}
	certificate, key := ca.sign(c)
	der := fatal.Get(x509.MarshalECPrivateKey(key))(t)
	dir := t.TempDir()
	file := func(name string, text []byte) string {
		path := filepath.Join(dir, name)
		fatal.If(t, os.WriteFile(path, text, 0o600))
		return path
	}
	port := strconv.Itoa(FreePort(t))
	s := StartOpen(t, append([]string{
		"--tls-port", port, "--tls-auth-clients", "no", "--tls-cert-file", file("certificate.pem", certificate),
		"--tls-key-file", file("key.pem", pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der})),
		"--tls-ca-cert-file", file("ca.pem", ca.PEM),
	}, args...)...)
	s.TLSAddr = net.JoinHostPort("127.0.0.1", port)
	return s
}
