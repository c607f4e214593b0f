package main

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/tiered-limiter/tiered-limiter/internal/filechanges"
)

// identity is the TLS of a process. Its files may change while it runs, as those of a Kubernetes
// Secret do.
type identity struct {
	settings
	files  filechanges.Files
	config atomic.Pointer[tls.Config]
	told   *tls.Config // whose certificate has expired, as the log says
}

// expired returns an error if the certificate has expired since it was last asked. It is used on:
// clients refuse it, and nothing else would be better for them.
func (i *identity) expired() error {
	c := i.config.Load()
	if c == nil || c == i.told {
		return nil
	}
	err := expired(c.Certificates[0])
	if err != nil {
		i.told = c
	}
	return err
}

// start reads the files for the first time, and uses them.
func (i *identity) start() error {
	_, err := i.reloadBy(func(read reading) filechanges.Change {
		i.files.Start(context.Background(), read)
		return filechanges.Changed
	})
	return err
}

// reload reads the files, and uses them if they have changed. After an error, the last good ones
// stay.
func (i *identity) reload() (filechanges.Change, error) {
	return i.reloadBy(func(read reading) filechanges.Change {
		sum, _ := read()
		return i.files.Add(sum, time.Now(), 0)
	})
}

// reading reads files. It returns the hash of all, and when the youngest of them was written.
type reading = func() (sum [sha256.Size]byte, written time.Time)

func (i *identity) reloadBy(changed func(reading) filechanges.Change) (filechanges.Change, error) {
	var all []error
	var cert, key, ca []byte
	is := changed(func() (_ [sha256.Size]byte, written time.Time) {
		all = nil
		read := func(setting, name string) []byte {
			text, err := os.ReadFile(name)
			if err != nil {
				all = append(all, fmt.Errorf("%s: %w", setting, err))
			}
			written = later(written, name)
			return text
		}
		cert, key = read("GRPC_SERVER_TLS_CERT", i.Certificate), read("GRPC_SERVER_TLS_KEY", i.Key)
		if i.ClientCA != "" {
			ca = read("GRPC_CLIENT_TLS_CACERT", i.ClientCA)
		}
		return sha256.Sum256(fmt.Appendf(nil, "%q %q %q %v", cert, key, ca, all)), written
	})
	switch {
	case is != filechanges.Changed:
		return is, nil
	case all != nil:
		return is, errors.Join(all...)
	}
	c := &tls.Config{MinVersion: tls.VersionTLS12}
	if pair, err := tls.X509KeyPair(cert, key); err != nil {
		all = append(all, fmt.Errorf("GRPC_SERVER_TLS_CERT and GRPC_SERVER_TLS_KEY: %w", err))
	} else {
		c.Certificates = []tls.Certificate{pair}
	}
	if i.ClientCA != "" {
		c.ClientAuth, c.ClientCAs = tls.RequireAndVerifyClientCert, x509.NewCertPool()
		if !c.ClientCAs.AppendCertsFromPEM(ca) {
			all = append(all, fmt.Errorf("GRPC_CLIENT_TLS_CACERT is %q: must have a certificate in PEM", i.ClientCA))
		}
	}
	if i.ClientName != "" {
		c.VerifyConnection = func(state tls.ConnectionState) error {
			if len(state.PeerCertificates) == 0 {
				return nil // ClientAuth has allowed it
			}
			return i.isClient(state.PeerCertificates[0])
		}
	}
	if all != nil {
		return is, errors.Join(all...)
	}
	i.config.Store(c)
	return is, nil
}

// isClient returns nil if a certificate is for GRPC_CLIENT_TLS_SAN: a DNS name, or a URI as SPIFFE
// has.
func (s settings) isClient(c *x509.Certificate) error {
	if !strings.Contains(s.ClientName, "://") {
		return c.VerifyHostname(s.ClientName)
	}
	if !slices.ContainsFunc(c.URIs, func(u *url.URL) bool { return u.String() == s.ClientName }) {
		return fmt.Errorf("the certificate is for %v, not for %s", c.URIs, s.ClientName)
	}
	return nil
}

// forGRPC returns the configuration of the gRPC port.
func (i *identity) forGRPC() *tls.Config {
	return &tls.Config{
		MinVersion:         tls.VersionTLS12,
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) { return i.config.Load(), nil },
	}
}

// forHTTP returns the configuration of the HTTP port. A client need not have a certificate there,
// because a probe has none: requireCertificate refuses the others.
func (i *identity) forHTTP() *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS12,
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
			c := i.config.Load().Clone()
			if c.ClientAuth == tls.RequireAndVerifyClientCert {
				c.ClientAuth = tls.VerifyClientCertIfGiven
			}
			return c, nil
		},
	}
}

// requireCertificate lets through clients that have shown a certificate.
func requireCertificate(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.TLS == nil || len(r.TLS.VerifiedChains) == 0 {
			http.Error(w, "a client certificate is required", http.StatusForbidden)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// redisTLS returns the TLS to Redis. An authority is added to those of the system, as
// envoyproxy/ratelimit does.
func (s settings) redisTLS() (*tls.Config, error) {
	t := &tls.Config{MinVersion: tls.VersionTLS12}
	if s.RedisCA != "" {
		text, err := os.ReadFile(s.RedisCA)
		if err != nil {
			return nil, fmt.Errorf("REDIS_TLS_CACERT: %w", err)
		}
		if t.RootCAs, err = x509.SystemCertPool(); err != nil {
			t.RootCAs = x509.NewCertPool()
		}
		if !t.RootCAs.AppendCertsFromPEM(text) {
			return nil, fmt.Errorf("REDIS_TLS_CACERT is %q: must have a certificate in PEM", s.RedisCA)
		}
	}
	if s.RedisCert != "" {
		load := func() (*tls.Certificate, error) {
			pair, err := tls.LoadX509KeyPair(s.RedisCert, s.RedisKey)
			if err != nil {
				return nil, fmt.Errorf("REDIS_TLS_CLIENT_CERT and REDIS_TLS_CLIENT_KEY: %w", err)
			}
			return &pair, nil
		}
		if _, err := load(); err != nil {
			return nil, err
		}
		t.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return load() } // it may be replaced
	}
	if s.RedisSkip { // the chain is verified all the same
		t.InsecureSkipVerify = true
		t.VerifyConnection = func(state tls.ConnectionState) error {
			o := x509.VerifyOptions{Roots: t.RootCAs, Intermediates: x509.NewCertPool()}
			for _, c := range state.PeerCertificates[1:] {
				o.Intermediates.AddCert(c)
			}
			_, err := state.PeerCertificates[0].Verify(o)
			return err
		}
	}
	return t, nil
}
