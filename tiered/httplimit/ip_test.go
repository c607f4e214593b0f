package httplimit_test

import (
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/tiered-limiter/tiered-limiter/tiered/httplimit"
)

// proxies are trusted in the tests: 10/8 in its two spellings, and a /48.
var proxies = []netip.Prefix{
	netip.MustParsePrefix("10.0.0.0/9"), netip.MustParsePrefix("::ffff:10.128.0.0/105"),
	netip.MustParsePrefix("2001:db8:f::/48"),
}

func TestForwardedFor(t *testing.T) {
	found := finder(t)
	for _, c := range []struct {
		name, remote string
		lines        []string
		want         string
	}{
		{"not from a proxy", "192.0.2.1:1", []string{"198.51.100.9"}, "192.0.2.1"},
		{"one proxy", "10.0.0.1:1", []string{"198.51.100.9"}, "198.51.100.9"},
		{"what the client wrote", "10.0.0.1:1", []string{"1.1.1.1, 198.51.100.9"}, "198.51.100.9"},
		{"what the client wrote on its own line", "10.0.0.1:1", []string{"1.1.1.1", "198.51.100.9"}, "198.51.100.9"},
		{"a proxy's address made up", "10.0.0.1:1", []string{"10.9.9.9, 198.51.100.9"}, "198.51.100.9"},
		{"two proxies", "10.200.0.1:1", []string{"1.1.1.1,198.51.100.9, 10.0.0.7"}, "198.51.100.9"},
		{"two proxies, two lines", "10.0.0.1:1", []string{"1.1.1.1,198.51.100.9", "10.0.0.7"}, "198.51.100.9"},
		{"mapped", "[::ffff:10.0.0.1]:1", []string{"::ffff:198.51.100.9"}, "198.51.100.9"},
		{"IPv6", "[2001:db8:f::1]:1", []string{"2001:db8:1:2:3::9"}, "2001:db8:1:2::/64"},
		{"ports", "10.0.0.1:1", []string{"[2001:db8:1:2:3::9]:80, 10.0.0.2:443"}, "2001:db8:1:2::/64"},
		{"brackets", "10.0.0.1:1", []string{"[2001:db8:1:2:3::9]"}, "2001:db8:1:2::/64"},
		{"only proxies", "10.0.0.1:1", []string{"10.0.0.3, 10.0.0.2"}, "10.0.0.3"},
		{"no field", "10.0.0.1:1", nil, "10.0.0.1"},
		{"an empty field", "10.0.0.1:1", []string{""}, "10.0.0.1"},
		{"empty entries", "10.0.0.1:1", []string{"198.51.100.9, ,", " "}, "198.51.100.9"},
		{"no address", "10.0.0.1:1", []string{"1.1.1.1, unknown"}, ""},
		{"no address left of the client", "10.0.0.1:1", []string{"unknown, 198.51.100.9"}, "198.51.100.9"},
		{"brackets around IPv4", "10.0.0.1:1", []string{"[198.51.100.9]"}, ""},
		{"a unix socket", "@", []string{"198.51.100.9"}, ""},
		{"a zone and a port", "10.0.0.1:1", []string{"[fe80::1%eth0]:80"}, "fe80::/64"},
		{"a zone", "10.0.0.1:1", []string{"fe80::1%25eth0"}, "fe80::/64"},
		{"mapped, with brackets and port", "10.0.0.1:1", []string{"[::ffff:198.51.100.9]:80"}, "198.51.100.9"},
		{"tabs", "10.0.0.1:1", []string{"\t198.51.100.9\t,\t10.0.0.2 "}, "198.51.100.9"},
		{"quotes", "10.0.0.1:1", []string{`"198.51.100.9"`}, ""},
		{"64 entries", "10.0.0.1:1", []string{"198.51.100.9" + strings.Repeat(",10.0.0.2", 63)}, "198.51.100.9"},
		{"65 entries", "10.0.0.1:1", []string{"198.51.100.9" + strings.Repeat(",10.0.0.2", 64)}, ""},
		{"65 lines", "10.0.0.1:1", append([]string{"198.51.100.9"}, slices.Repeat([]string{"10.0.0.2"}, 64)...), ""},
		{"a megabyte of commas", "10.0.0.1:1", []string{strings.Repeat(",", 1<<20)}, ""},
	} {
		r := &http.Request{RemoteAddr: c.remote, Header: http.Header{"X-Forwarded-For": c.lines}}
		if got, ok := found(httplimit.ForwardedFor(proxies...), r); got != c.want || ok != (c.want != "") {
			t.Errorf("%s: %q, %v, want %q", c.name, got, ok, c.want)
		}
	}
}

func TestForwarded(t *testing.T) {
	found := finder(t)
	for _, c := range []struct {
		name  string
		lines []string
		want  string
	}{
		{"plain", []string{"for=198.51.100.9"}, "198.51.100.9"},
		{"any case, other pairs", []string{`proto=https ; For="198.51.100.9:80";by=10.0.0.1`}, "198.51.100.9"},
		{"IPv6", []string{`for="[2001:db8:1:2:3::9]:4711"`}, "2001:db8:1:2::/64"},
		{"several", []string{`for=1.1.1.1, for="198.51.100.9", for=10.0.0.9`}, "198.51.100.9"},
		{"a comma in quotes", []string{`for=1.1.1.1, for=198.51.100.9;host="a,b"`}, "198.51.100.9"},
		{"a quote left open", []string{`for="1.1.1.1, for=198.51.100.9`}, "198.51.100.9"},
		{
			"a quote left open, one that closes",
			[]string{`for="1.1.1.1, for="[2001:db8:1:2:3::9]"`},
			"2001:db8:1:2::/64",
		},
		{"a quote at the end", []string{`for=198.51.100.9"`}, ""},
		{"an escape", []string{`for="198.51.100.9\""`}, ""},
		{"unknown", []string{"for=unknown"}, ""},
		{"hidden", []string{"for=1.1.1.1, for=_hidden"}, ""},
		{"no for", []string{"for=1.1.1.1, proto=http"}, ""},
		{"nothing after for", []string{"for="}, ""},
		{"nothing", []string{" , "}, "10.0.0.1"},
		{"a semicolon in quotes", []string{`host="a;for=6.6.6.6;b";for=198.51.100.9`}, "198.51.100.9"},
		{"a semicolon in quotes, after for", []string{`for=198.51.100.9;host="a;for=6.6.6.6;b"`}, "198.51.100.9"},
		{"only within quotes", []string{`host="a;for=6.6.6.6;b"`}, ""},
		{"two, because a Host has quotes", []string{`host="a";for=6.6.6.6;b="";for=198.51.100.9`}, ""},
		{"two, one of them empty", []string{`for=;for=198.51.100.9`}, ""},
		{"space around =", []string{"for = 198.51.100.9 ; by=10.0.0.1"}, "198.51.100.9"},
		{"a zone and a port", []string{`for="[fe80::1%eth0]:80"`}, "fe80::/64"},
		{"empty pairs", []string{";;for=198.51.100.9;"}, "198.51.100.9"},
		{"a megabyte of commas", []string{strings.Repeat(",", 1<<20)}, ""},
	} {
		r := &http.Request{RemoteAddr: "10.0.0.1:1", Header: http.Header{"Forwarded": c.lines}}
		if got, ok := found(httplimit.Forwarded(proxies...), r); got != c.want || ok != (c.want != "") {
			t.Errorf("%s: %q, %v, want %q", c.name, got, ok, c.want)
		}
	}
	// A field that is not asked for counts for nothing.
	r := &http.Request{RemoteAddr: "10.0.0.1:1", Header: http.Header{"X-Forwarded-For": {"198.51.100.9"}}}
	if got, _ := found(httplimit.Forwarded(proxies...), r); got != "10.0.0.1" {
		t.Errorf("X-Forwarded-For counts: %q", got)
	}
}

// FuzzForwardedFor compares with the same rule in other words: join all lines, split, drop what is
// empty, and look from the right.
func FuzzForwardedFor(f *testing.F) {
	found := finder(f)
	f.Add("10.0.0.1:1", "1.1.1.1, 198.51.100.9", "10.0.0.7")
	f.Add("[2001:db8:f::1]:9", "unknown", "[2001:db8::1]:80,,")
	f.Add("192.0.2.1:1", "10.0.0.1", "x")
	key := httplimit.ForwardedFor(proxies...)
	f.Fuzz(func(t *testing.T, remote, first, second string) {
		r := &http.Request{RemoteAddr: remote, Header: http.Header{"X-Forwarded-For": {first, second}}}
		got, ok := found(key, r)
		at := func(address string) *http.Request { return &http.Request{RemoteAddr: address} }
		a, known := httplimit.RemoteIP().Address(at(remote))
		if !known {
			if ok {
				t.Fatalf("without an address: %q", got)
			}
			return
		}
		want, _ := found(httplimit.RemoteIP(), at(remote))
		entries := strings.Split(first+","+second, ",")
		if len(entries) > 64 {
			return
		}
		for i := len(entries) - 1; i >= 0 && trusted(a); i-- {
			e := strings.Trim(entries[i], " \t")
			if e == "" {
				continue
			}
			if a, known = httplimit.RemoteIP().Address(at(e)); !known {
				want = ""
				break
			}
			want, _ = found(httplimit.RemoteIP(), at(e))
		}
		if got != want || ok != (want != "") {
			t.Errorf("from %q with %q and %q: %q, want %q", remote, first, second, got, want)
		}
	})
}

// trusted reports whether an address is one of proxies.
func trusted(a netip.Addr) bool {
	return netip.MustParsePrefix("10.0.0.0/8").Contains(a) || netip.MustParsePrefix("2001:db8:f::/48").Contains(a)
}

// FuzzForwarded: whatever a client writes before what the proxy appends, on its line or on another,
// the proxy's entry counts.
func FuzzForwarded(f *testing.F) {
	found := finder(f)
	f.Add(`for="`, true)
	f.Add(`for="10.0.0.1, \"`, false)
	key := httplimit.Forwarded(proxies...)
	f.Fuzz(func(t *testing.T, client string, own bool) {
		for _, entry := range []string{"for=198.51.100.9", `for="198.51.100.9:80";host="a,b"`} {
			lines := []string{client + ", " + entry}
			if own {
				lines = []string{client, entry}
			}
			r := &http.Request{RemoteAddr: "10.0.0.1:1", Header: http.Header{"Forwarded": lines}}
			if got, _ := found(key, r); got != "198.51.100.9" {
				t.Errorf("%q: %q", lines, got)
			}
		}
		r := &http.Request{RemoteAddr: "10.0.0.1:1", Header: http.Header{"Forwarded": {client}}}
		if got, ok := found(key, r); ok != (got != "") {
			t.Errorf("%q: %q, %v", client, got, ok)
		}
	})
}

// Which address a request counts for, by the address that it comes from and the fields that say
// another.
func TestAddresses(t *testing.T) {
	found := finder(t)
	remote, header := httplimit.RemoteIP(), httplimit.HeaderIP("cf-connecting-ip", proxies...)
	by24 := remote.Prefix(24, 48)
	for _, c := range []struct {
		key   httplimit.Key
		from  string
		lines []string // of all fields
		want  string   // "" is none
	}{
		{remote, "192.0.2.1:1234", []string{"198.51.100.9"}, "192.0.2.1"},
		{remote, "[::ffff:192.0.2.1]:1234", nil, "192.0.2.1"},
		{remote, "[2001:db8:1:2:3:4:5:6]:1234", nil, "2001:db8:1:2::/64"},
		{remote, "[2001:db8:1:2:ffff::]:1", nil, "2001:db8:1:2::/64"},
		{remote, "[2001:db8:1:3::]:1", nil, "2001:db8:1:3::/64"},
		{remote, "[fe80::1%eth0]:1", nil, "fe80::/64"},
		{remote, "192.0.2.1", nil, "192.0.2.1"},
		{remote, "@", nil, ""},
		{remote, "", nil, ""},
		{remote, "pipe", nil, ""},
		{by24, "192.0.2.77:1", nil, "192.0.2.0/24"},
		{by24, "[2001:db8:1:2:3::4]:1", nil, "2001:db8:1::/48"},
		{by24, "[::ffff:192.0.2.77]:1", nil, "192.0.2.0/24"},
		{remote.Prefix(32, 128), "[2001:db8::1]:1", nil, "2001:db8::1/128"},
		{httplimit.ForwardedFor(proxies...).Prefix(16, 48), "192.0.2.77:1", nil, "192.0.0.0/16"},
		{header, "10.0.0.1:1", []string{"198.51.100.9"}, "198.51.100.9"},
		{header, "10.0.0.1:1", []string{" [2001:db8::1]:80 "}, "2001:db8::/64"},
		{header, "192.0.2.1:1", []string{"198.51.100.9"}, "192.0.2.1"}, // who is no proxy may write anything
		{header, "10.0.0.1:1", nil, "10.0.0.1"},
		{header, "10.0.0.1:1", []string{"unknown"}, ""},
		{header, "10.0.0.1:1", []string{"198.51.100.9", "198.51.100.8"}, ""},
		{header, "@", []string{"198.51.100.9"}, ""},
		{httplimit.TrustedHops(1), "192.0.2.1:1", []string{"198.51.100.9"}, "198.51.100.9"},
		{httplimit.TrustedHops(1), "192.0.2.1:1", []string{"1.1.1.1, 198.51.100.9"}, "198.51.100.9"}, // what a client writes
		{httplimit.TrustedHops(2), "192.0.2.1:1", []string{"1.1.1.1, 198.51.100.9", "10.0.0.1"}, "198.51.100.9"},
		{httplimit.TrustedHops(2), "192.0.2.1:1", []string{"198.51.100.9,,", " 10.0.0.1 ,"}, "198.51.100.9"},
		{httplimit.TrustedHops(2), "192.0.2.1:1", []string{"10.0.0.1"}, ""},
		{httplimit.TrustedHops(1), "192.0.2.1:1", []string{"198.51.100.9, unknown"}, ""},
		{httplimit.TrustedHops(1), "192.0.2.1:1", nil, ""},
		{httplimit.TrustedHops(1), "192.0.2.1:1", []string{"198.51.100.9" + strings.Repeat(",", 1<<20)}, ""},
	} {
		r := &http.Request{RemoteAddr: c.from, Header: http.Header{"X-Forwarded-For": c.lines, "Cf-Connecting-Ip": c.lines}}
		if got, ok := found(c.key, r); got != c.want || ok != (c.want != "") {
			t.Errorf("from %s with %.100q: %q, want %q", c.from, c.lines, got, c.want)
		}
	}
}

// A key of addresses tells the whole address. Another key, and a request without one, have none.
func TestAddressOfAKey(t *testing.T) {
	proxies := netip.MustParsePrefix("10.0.0.0/8")
	for _, c := range []struct {
		key  httplimit.Key
		peer string
		want string
	}{
		{httplimit.RemoteIP(), "[2001:db8::7]:1", "2001:db8::7"},
		{httplimit.RemoteIP().Prefix(8, 8), "[::ffff:192.0.2.1]:1", "192.0.2.1"},
		{httplimit.ForwardedFor(proxies), "10.0.0.1:1", "192.0.2.9"},
		{httplimit.RemoteIP(), "@", ""},
		{httplimit.Method(), "192.0.2.1:1", ""},
		{httplimit.RemoteIP().Hashed(), "192.0.2.1:1", ""},
		{httplimit.Key{}, "192.0.2.1:1", ""},
	} {
		r := &http.Request{RemoteAddr: c.peer, Header: http.Header{"X-Forwarded-For": {"192.0.2.9"}}}
		a, ok := c.key.Address(r)
		if ok && a.String() != c.want || ok != (c.want != "") {
			t.Errorf("%s: %v, %v, want %q", c.peer, a, ok, c.want)
		}
	}
	if _, ok := httplimit.RemoteIP().Address(nil); ok {
		t.Error("no request has an address")
	}
}
