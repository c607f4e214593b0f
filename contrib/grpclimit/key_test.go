package grpclimit_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"math/big"
	"net/netip"
	"net/url"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"

	"github.com/tiered-limiter/tiered-limiter/contrib/grpclimit"
	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/fatal"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// prefixes of proxies.
func prefixes(list ...string) []netip.Prefix {
	p := make([]netip.Prefix, len(list))
	for i, s := range list {
		p[i] = netip.MustParsePrefix(s)
	}
	return p
}

// Which address a call counts for.
func TestAddresses(t *testing.T) {
	const field = "x-forwarded-for"
	proxies := grpclimit.ForwardedFor(prefixes("10.0.0.0/8", "::ffff:172.16.0.0/108", "fd00::/8")...)
	found := finder(t)
	for _, c := range []struct {
		name, peer string
		key        grpclimit.Key
		values     []string
		want       string // "" is no key
	}{
		{"IPv4", "192.0.2.1:80", grpclimit.PeerIP(), nil, "192.0.2.1"},
		{"IPv6 by its /64", "[2001:db8::1:2:3:4]:80", grpclimit.PeerIP(), nil, "2001:db8::/64"},
		{"IPv4 in IPv6", "[::ffff:192.0.2.1]:80", grpclimit.PeerIP(), nil, "192.0.2.1"},
		{"other prefixes", "192.0.2.77:80", grpclimit.PeerIP().Prefix(24, 48), nil, "192.0.2.0/24"},
		{"other prefixes of IPv6", "[2001:db8:1:2::1]:80", grpclimit.PeerIP().Prefix(24, 48), nil, "2001:db8:1::/48"},
		{"a unix socket", "@", grpclimit.PeerIP(), nil, ""},
		{"forged, not through a proxy", "192.0.2.1:80", proxies, []string{"203.0.113.9"}, "192.0.2.1"},
		{"through a proxy", "10.0.0.1:80", proxies, []string{"203.0.113.9"}, "203.0.113.9"},
		{"forged, through a proxy", "10.0.0.1:80", proxies, []string{"1.2.3.4, 203.0.113.9"}, "203.0.113.9"},
		{"forged as another value", "10.0.0.1:80", proxies, []string{"1.2.3.4", "203.0.113.9"}, "203.0.113.9"},
		{"two proxies", "10.0.0.1:80", proxies, []string{"1.2.3.4, 203.0.113.9 , 172.16.0.9:8"}, "203.0.113.9"},
		{"IPv6 through an IPv6 proxy", "[fd00::1]:80", proxies, []string{"[2001:db8::5]:9"}, "2001:db8::/64"},
		{"with a zone and a port", "[fd00::1]:80", proxies, []string{"[fe80::1%eth0]:9"}, "fe80::/64"},
		{"IPv4 in IPv6 through a proxy", "10.0.0.1:80", proxies, []string{"[::ffff:203.0.113.9]:9"}, "203.0.113.9"},
		{"tabs", "10.0.0.1:80", proxies, []string{"\t203.0.113.9\t,\t10.0.0.2"}, "203.0.113.9"},
		{"with a zone", "[fd00::1]:80", proxies, []string{"fe80::1%eth0"}, "fe80::/64"},
		{"only proxies", "10.0.0.1:80", proxies, []string{"10.0.0.7"}, "10.0.0.7"},
		{"without the field", "10.0.0.1:80", proxies, nil, "10.0.0.1"},
		{"empty entries", "10.0.0.1:80", proxies, []string{"203.0.113.9,, ,"}, "203.0.113.9"},
		{"not an address", "10.0.0.1:80", proxies, []string{"203.0.113.9, unknown"}, ""},
		{"not UTF-8", "10.0.0.1:80", proxies, []string{"203.0.113.9, \xff\xfe"}, ""},
		{"brackets for IPv4", "10.0.0.1:80", proxies, []string{"[203.0.113.9]"}, ""},
		{"64 kB", "10.0.0.1:80", proxies, []string{strings.Repeat("1", 64<<10)}, ""},
		{"64 entries", "10.0.0.1:80", proxies, []string{"1.2.3.4" + strings.Repeat(",10.0.0.9", 63)}, "1.2.3.4"},
		{"65 entries", "10.0.0.1:80", proxies, []string{"1.2.3.4" + strings.Repeat(",10.0.0.9", 64)}, ""},
		{"a megabyte of commas", "10.0.0.1:80", proxies, []string{strings.Repeat(",", 1<<20)}, ""},
	} {
		ctx := from(t, c.peer)
		md := metadata.MD{field: c.values}
		got, ok := found(metadata.NewIncomingContext(ctx, md), t, c.key, grpclimit.Call{})
		if got != c.want || ok != (c.want != "") {
			t.Errorf("%s: %q %v, want %q", c.name, got, ok, c.want)
		}
	}
	if _, ok := found(t.Context(), t, grpclimit.PeerIP(), grpclimit.Call{}); ok {
		t.Error("a context without a peer has a key")
	}
}

// Nothing that a client writes changes the address that its proxy appends.
func FuzzForwardedFor(f *testing.F) {
	for _, s := range []string{"", "1.2.3.4", "10.0.0.1", ",", "\"", "[::1", "1.2.3.4,", "\xff", "fd00::1, 10.9.9.9"} {
		f.Add(s, true)
		f.Add(s, false)
	}
	key := grpclimit.ForwardedFor(prefixes("10.0.0.0/8")...)
	found := finder(f)
	f.Fuzz(func(t *testing.T, forged string, other bool) {
		md := metadata.MD{"x-forwarded-for": {forged + ", 203.0.113.9"}}
		if other {
			md = metadata.MD{"x-forwarded-for": {forged, "203.0.113.9, 10.0.0.2"}}
		}
		got, ok := found(metadata.NewIncomingContext(from(t, "10.0.0.1:80"), md), t, key, grpclimit.Call{})
		if !ok || got != "203.0.113.9" {
			t.Errorf("%q gives %q", md, got)
		}
	})
}

// Keys of metadata, the method and the user's own.
func TestKeys(t *testing.T) {
	const sharedKey = "\x00" // of calls without a key
	shared := grpclimit.KeyFunc(func(context.Context, grpclimit.Call) (string, error) { return sharedKey, nil })
	none := grpclimit.KeyFunc(func(context.Context, grpclimit.Call) (string, error) { return "", nil })
	ctx := from(t, "192.0.2.1:1", "x-user", "ann", "x-user", "eve", "authorization", "BEARER   s3cr3t", "trace-bin", "\x00\xff")
	found := finder(t)
	bearer := metadata.NewIncomingContext(t.Context(), metadata.Pairs("authorization", "bearer s3cr3t"))
	canonical, _ := found(bearer, t, grpclimit.Credential("authorization"), grpclimit.Call{})
	for name, c := range map[string]struct {
		key  grpclimit.Key
		want string
	}{
		"the first value":  {grpclimit.Metadata("X-User"), "ann"},
		"missing":          {grpclimit.Metadata("x-tenant"), ""},
		"binary":           {grpclimit.Metadata("trace-bin"), sharedKey + "\x00\xff"},
		"hashed":           {grpclimit.Metadata("x-user").Hashed(), "SZFeDX1LQC4wF9AQvBwOg8rGx5fWwW5mNA_jJoaTpqE"},
		"missing, hashed":  {grpclimit.Metadata("x-tenant").Hashed(), ""},
		"credential":       {grpclimit.Credential("authorization"), canonical},
		"method":           {grpclimit.Method(), "/a/b"},
		"constant":         {grpclimit.Constant("all"), "all"},
		"joined":           {grpclimit.JoinKeys(grpclimit.Metadata("x-user"), grpclimit.Method()), "3:ann4:/a/b"},
		"joined, missing":  {grpclimit.JoinKeys(grpclimit.Metadata("x-user"), grpclimit.Metadata("x-tenant")), ""},
		"like the shared":  {shared, sharedKey + sharedKey},
		"none":             {none, ""},
		"no certificate":   {grpclimit.TLSSubject(), ""},
		"no certificate's": {grpclimit.SPIFFEID(), ""},
		"the message": {
			grpclimit.KeyFunc(func(_ context.Context, c grpclimit.Call) (string, error) { return c.Request.(string), nil }), "message",
		},
	} {
		got, ok := found(ctx, t, c.key, grpclimit.Call{Method: "/a/b", Request: "message"})
		if got != c.want || ok != (c.want != "") {
			t.Errorf("%s: %q %v, want %q", name, got, ok, c.want)
		}
	}
	if len(canonical) != 43 {
		t.Errorf("the credential's hash is %q", canonical)
	}
}

// One user has one bucket however the credential is written, and sent beside a blank one.
func TestCredentialIsOne(t *testing.T) {
	found := finder(t)
	of := func(values ...string) string {
		md := metadata.MD{"authorization": values}
		key, _ := found(metadata.NewIncomingContext(t.Context(), md), t, grpclimit.Credential("Authorization"), grpclimit.Call{})
		return key
	}
	for _, values := range [][]string{
		{"bearer s3cr3t"}, {"Bearer\ts3cr3t"}, {"Bearer \t s3cr3t more"}, {" \tBEARER s3cr3t\t"}, {"s3cr3t"}, {"Token s3cr3t"}, {"", "Bearer s3cr3t"},
	} {
		if got, want := of(values...), of("Bearer s3cr3t"); got != want {
			t.Errorf("%q is %s, want %s", values, got, want)
		}
	}
	if of("Basic YTpi") != of("basic\tYTpi=") || of("Basic YTpi") == of("Basic YTpj") || of(" ") != "" {
		t.Error("Basic is not read as its user and password")
	}
}

// What happens to calls without a key.
func TestMissing(t *testing.T) {
	g, _ := group(t)
	for missing, want := range map[grpclimit.Missing][2]codes.Code{
		grpclimit.Refuse:   {codes.InvalidArgument, codes.InvalidArgument},
		grpclimit.Exempt:   {codes.OK, codes.OK},
		grpclimit.Together: {codes.OK, codes.ResourceExhausted},
	} {
		rule := perUser(limiter(t, g, "p"+string('0'+rune(missing)), tiered.PerHour(1)))
		rule.Missing = missing
		c := dial(t, serve(t, &service{}, server(t, nil, rule).ServerOptions()...))
		for i := range want {
			if a := call(as(t, ""), c); a.code != want[i] {
				t.Errorf("Missing %d, call %d: %v, want %v", missing, i, a.status, want[i])
			}
		}
	}
}

// Hostile metadata gets a defined answer, and the server lives.
func TestHostileMetadata(t *testing.T) {
	g, _ := group(t)
	l := limiter(t, g, "user", tiered.PerHour(1))
	s := server(t, nil, grpclimit.Rule{Limiter: l, Key: grpclimit.Metadata("user-bin"), Missing: grpclimit.Refuse})
	c := dial(t, serve(t, &service{}, s.ServerOptions()...))
	for _, v := range []struct {
		value string
		code  codes.Code
	}{
		{"\xff\xfe\x00", codes.OK},
		{"\xff\xfe\x00", codes.ResourceExhausted},
		{"", codes.InvalidArgument},
		{strings.Repeat("\xff", 64<<10), codes.OK},
		{strings.Repeat("\xff", 64<<10+1), codes.InvalidArgument},
		{strings.Repeat("x", 4<<20), codes.InvalidArgument},
	} {
		if a := call(as(t, "", "user-bin", v.value), c); a.code != v.code {
			t.Errorf("%d bytes: %v, want %v", len(v.value), a.status, v.code)
		}
	}
	many := make([]string, 0, 20_000)
	for range cap(many) / 2 {
		many = append(many, "user-bin", "ann")
	}
	if a := call(as(t, "", many...), c); a.code != codes.OK {
		t.Errorf("10 000 values: %v", a.status)
	}
}

// Only a certificate that the server has verified counts.
func TestCertificates(t *testing.T) {
	ca, caKey := certificate(t, nil, nil, "ca", "")
	srv, srvKey := certificate(t, ca, caKey, "server", "")
	billing, billingKey := certificate(t, ca, caKey, "billing", "spiffe://example.org/billing")
	pool := x509.NewCertPool()
	pool.AddCert(ca)
	pair := func(c *x509.Certificate, key *ecdsa.PrivateKey) []tls.Certificate {
		return []tls.Certificate{{Certificate: [][]byte{c.Raw}, PrivateKey: key}}
	}
	client := grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{
		RootCAs: pool, Certificates: pair(billing, billingKey), ServerName: "localhost", MinVersion: tls.VersionTLS13,
	}))
	g, _ := group(t)
	subject := limiter(t, g, "subject", tiered.PerHour(9))
	id := limiter(t, g, "id", tiered.PerHour(9))
	s := server(t, nil, grpclimit.Rule{Limiter: subject, Key: grpclimit.TLSSubject(), Missing: grpclimit.Refuse},
		grpclimit.Rule{Limiter: id, Key: grpclimit.SPIFFEID(), Missing: grpclimit.Refuse})
	for auth, want := range map[tls.ClientAuthType]codes.Code{
		tls.RequireAndVerifyClientCert: codes.OK,
		tls.RequireAnyClientCert:       codes.InvalidArgument, // anyone can make such a certificate
		tls.NoClientCert:               codes.InvalidArgument,
	} {
		o := append(s.ServerOptions(), grpc.Creds(credentials.NewTLS(&tls.Config{
			Certificates: pair(srv, srvKey), ClientCAs: pool, ClientAuth: auth, MinVersion: tls.VersionTLS13,
		})))
		c := dial(t, serve(t, &service{}, o...), client)
		if a := call(as(t, ""), c); a.code != want {
			t.Errorf("%v: %v, want %v", auth, a.status, want)
		}
	}
	if s, i := left(subject, "CN=billing"), left(id, "spiffe://example.org/billing"); s != 8 || i != 8 {
		t.Errorf("%d and %d tokens are left, want 8 and 8", s, i)
	}
}

// certificate makes a certificate for localhost, signed by its parent or by itself.
func certificate(t *testing.T, parent *x509.Certificate, parentKey *ecdsa.PrivateKey, name, spiffe string) (
	*x509.Certificate, *ecdsa.PrivateKey,
) {
	t.Helper()
	key := fatal.Get(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(t)
	c := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, DNSNames: []string{"localhost"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: parent == nil, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
	}
	if spiffe != "" {
		id := fatal.Get(url.Parse(spiffe))(t)
		c.URIs = []*url.URL{id}
	}
	if parent == nil {
		parent, parentKey = c, key
	}
	raw := fatal.Get(x509.CreateCertificate(rand.Reader, c, parent, &key.PublicKey, parentKey))(t)
	return fatal.Get(x509.ParseCertificate(raw))(t), key
}
