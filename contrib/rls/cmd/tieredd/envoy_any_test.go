package main_test

import (
	"bufio"
	"bytes"
	"encoding/base64"
	"fmt"
	"io"
	"net"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/tiered-limiter/tiered-limiter/contrib/rls/internal/envoytest"
	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/fatal"
)

// anyBytes are what a client may send: some bytes or each within a text, texts that are no UTF-8,
// and long ones that differ in their last byte.
func anyBytes(each bool) (all []string) {
	all = []string{
		"", manyHeaders, "ann", "Ann", "\xff\xfe", "caf\xc3", "caf\xe9", "caf\xc3\xa9", "\xc0\xaf", "\xed\xa0\x80", "\xf5\x80\x80\x80", "\xf0\x9f\x98",
		"\xf0\x9f\x98\x80", "%ff", "%00", "%zz", "a,b", `"\xe9"`, "\u202eann", "7:ann", strings.Repeat("\xff", 300),
	}
	for b := range 256 {
		if each || b%37 == 0 {
			all = append(all, string([]byte{'a', byte(b), 'z'}))
		}
	}
	for _, end := range []string{"a", "b", "\xfe", "\xff"} {
		all = append(all, strings.Repeat("x", 20<<10)+end, strings.Repeat("y", 59<<10)+end)
	}
	return all
}

const manyHeaders = "many headers"

// places are where a client may write a value.
var places = []string{"x-api-key", "cookie", "user-agent", "x-forwarded-for", ":path", ":authority", ":method"}

// fieldsOf returns the fields of a request, with a value in one of the places.
func fieldsOf(protocol, place, value string) [][2]string {
	if place == ":path" {
		value = "/" + value
	}
	fields := [][2]string{{":method", "GET"}, {":path", "/"}, {":authority", "shop"}, {":scheme", "http"}, {"x-by", place}, {"x-protocol", protocol}}
	for i, f := range fields {
		if f[0] == place {
			fields[i][1] = value
			return fields
		}
	}
	return append(fields, [2]string{place, value})
}

// ask1 sends a request by HTTP/1.1. It returns when the answer has begun.
func ask1(t *testing.T, address string, fields [][2]string) {
	t.Helper()
	var text bytes.Buffer
	fmt.Fprintf(&text, "%s %s HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n", fields[0][1], fields[1][1], fields[2][1])
	for _, f := range fields[4:] {
		fmt.Fprintf(&text, "%s: %s\r\n", f[0], f[1])
	}
	text.WriteString("\r\n")
	conn := connectTo(t, address)
	defer conn.Close()
	go func() { _, _ = conn.Write(text.Bytes()) }()
	if answer, err := http.ReadResponse(bufio.NewReader(conn), nil); err == nil { // Envoy may leave the connection open after a 400
		_ = answer.Body.Close()
	}
}

func connectTo(t *testing.T, address string) net.Conn {
	t.Helper()
	conn := fatal.Get(net.Dial("tcp", address))(t)
	_ = conn.SetDeadline(time.Now().Add(time.Minute))
	return conn
}

// ask2 sends a request by HTTP/2. It returns when the answer or the connection has ended.
func ask2(t *testing.T, address string, fields [][2]string) {
	t.Helper()
	conn := connectTo(t, address)
	defer conn.Close()
	var block bytes.Buffer
	encoder := hpack.NewEncoder(&block)
	for _, f := range fields {
		_ = encoder.WriteField(hpack.HeaderField{Name: f[0], Value: f[1]})
	}
	framer := http2.NewFramer(conn, conn)
	go func() {
		_, _ = io.WriteString(conn, http2.ClientPreface)
		_ = framer.WriteSettings()
		rest := block.Bytes()
		part := min(len(rest), 16<<10)
		_ = framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: rest[:part], EndStream: true, EndHeaders: part == len(rest)})
		for rest = rest[part:]; len(rest) > 0; rest = rest[part:] {
			part = min(len(rest), 16<<10)
			_ = framer.WriteContinuation(1, part == len(rest), rest[:part])
		}
	}()
	for {
		f, err := framer.ReadFrame()
		if err != nil || f.Header().StreamID == 1 && (f.Header().Flags.Has(http2.FlagHeadersEndStream) || f.Header().Type == http2.FrameRSTStream) ||
			f.Header().Type == http2.FrameGoAway {
			return
		}
	}
}

// Whatever a client sends through an Envoy with its default bounds, the call is decided: each value
// counts by itself, and no call fails. Envoy's own counters are the judge.
func TestEnvoyAnyRequest(t *testing.T) {
	t.Parallel()
	envoytest.Program(t)
	p := start(t, `domain: shop
descriptors:
  - {key: remote_address, rate_limit: {unit: year, requests_per_unit: 1000000}}
  - key: by
    descriptors:
      - key: protocol
        descriptors:
          - {key: value, rate_limit: {unit: year, requests_per_unit: 1}}
`, "RESPONSE_DYNAMIC_METADATA=true", "LIMIT_RESPONSE_HEADERS_ENABLED=true", "LOG_LEVEL=debug", patient)
	c := envoytest.HandedOut(t, envoytest.Upstream(t), p.address)
	c.Filter["timeout"] = "20s"
	c.Manager["delayed_close_timeout"] = "0.05s" // of connections that Envoy refuses
	c.Cluster["circuit_breakers"] = envoytest.Parsed(t, "thresholds: [{max_requests: 10000}]")
	limits := []any{envoytest.Parsed(t, `actions: [{remote_address: {}}]`)}
	for _, place := range places {
		value := fmt.Sprintf(`{request_headers: {header_name: %q, descriptor_key: value}}`, place)
		by := fmt.Sprintf(`{header_value_match: {descriptor_key: by, descriptor_value: %q, headers: [{name: x-by, string_match: {exact: %[1]q}}]}}`, place)
		limits = append(limits, envoytest.Parsed(t, fmt.Sprintf("actions: [%s, {request_headers: {header_name: x-protocol, descriptor_key: protocol}}, %s]", by, value)),
			// Matches no rule: the call is as long as it can be.
			envoytest.Parsed(t, fmt.Sprintf("actions: [%s]", strings.Join(append([]string{by}, repeated(value, 80)...), ", "))))
	}
	limits = append(limits, envoytest.Parsed(t, `actions: [{request_headers: {header_name: x-missing, descriptor_key: value, skip_if_absent: true}}]`))
	c.Host["rate_limits"] = limits
	e := envoytest.Start(t, c)
	e.Ask(t, "/") // the connection to the service
	var played, refusedByEnvoy int
	for protocol, ask := range map[string]func(*testing.T, string, [][2]string){"HTTP/1.1": ask1, "HTTP/2": ask2} {
		for _, place := range places {
			seen := map[string]bool{}
			for _, value := range anyBytes(place == "x-api-key" || place == ":path") {
				fields := fieldsOf(protocol, place, value)
				if value == manyHeaders { // as many as Envoy takes
					for i := range 100 - len(fields) {
						fields = append(fields, [2]string{strings.TrimLeft(place, ":"), strconv.Itoa(i)})
					}
				}
				before := e.Counts(t)
				ask(t, e.Address, fields)
				ask(t, e.Address, fields)
				is := e.Counts(t).Sub(before)
				played++
				key := strings.Trim(value, " \t") // Envoy leaves these out
				same := seen[key] || place == ":path" && is.Over == 2
				seen[key] = true
				switch {
				case is == envoytest.Counts{}:
					refusedByEnvoy++
				case is == envoytest.Counts{OK: 1, Over: 1}, same && is == envoytest.Counts{Over: 2}, value == "" && is == envoytest.Counts{OK: 2}: // no header
				default:
					t.Errorf("%s, %s: %.40q: %+v, want one admitted and one refused", protocol, place, value, is)
				}
			}
		}
	}
	all := e.Counts(t)
	t.Logf("%d values, %d of them are refused by Envoy itself; %+v", played, refusedByEnvoy, all)
	if all.Failed+all.Allowed > 0 || all.OK < 1000 {
		t.Errorf("%+v: want no call to fail", all)
	}
	for series, want := range map[string]int{`{outcome="ok",reason=""}`: all.OK, `{outcome="over limit",reason="limit"}`: all.Over} {
		if n := p.metric(t, regexp.QuoteMeta("tieredd_calls_total"+series)); n != float64(want) {
			t.Errorf("%s is %v, and Envoy counts %d", series, n, want)
		}
	}
	if refusedByEnvoy > played/2 {
		t.Errorf("Envoy refuses %d of %d itself", refusedByEnvoy, played)
	}
	for line := range strings.SplitSeq(p.log(), "\n") {
		if strings.Contains(line, `level=DEBUG msg="a descriptor"`) { // the request log, which has values
			continue
		}
		if q := strconv.QuoteToASCII(line); strings.Contains(q, `\x`) || regexp.MustCompile(`\bann\b`).MatchString(q) {
			t.Errorf("the log has %.200q", line)
		}
	}
}

func repeated(s string, n int) (all []string) {
	for range n {
		all = append(all, s)
	}
	return all
}

// Hits and limits that come from headers, as an operator may configure it, make no call fail
// either, whatever the headers say.
func TestEnvoyAnyHitsAndLimits(t *testing.T) {
	envoytest.Program(t)
	p := start(t, `domain: shop
descriptors:
  - {key: value, rate_limit: {unit: year, requests_per_unit: 1000}}
`, "RESPONSE_DYNAMIC_METADATA=true", patient)
	c := envoytest.HandedOut(t, envoytest.Upstream(t), p.address)
	c.Filter["timeout"] = "20s"
	c.Host["rate_limits"] = []any{}
	route := c.Host["routes"].([]any)[0].(envoytest.Tree)
	route["typed_per_filter_config"] = envoytest.Parsed(t, `
envoy.filters.http.ratelimit:
  "@type": type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.RateLimitPerRoute
  rate_limits:
    - actions: [{request_headers: {header_name: x-key, descriptor_key: value}}]
      hits_addend: {format: "%REQ(x-hits)%"}
    - actions: [{request_headers: {header_name: x-key, descriptor_key: value}}]
      limit: {dynamic_metadata: {metadata_key: {key: limits, path: [{key: of}]}}}
`)
	limitFromHeader(t, c)
	e := envoytest.Start(t, c)
	limit := func(fields map[string]any) string { return headerOf(t, fields) }
	limits := []string{"", "none", "//8="}
	for _, unit := range []any{"DAY", "UNKNOWN", "day", "FORTNIGHT", "YEAR", 4., -1., 99., nil} {
		for _, n := range []any{5., 0., -1., 1e12, 0.5, "5", nil} {
			limits = append(limits, limit(map[string]any{"requests_per_unit": n, "unit": unit}),
				limit(map[string]any{"requests_per_unit": n, "unit": unit, "unit_multiplier": n}))
		}
	}
	hits := []string{"", "0", "1", "-1", "1000", "4294967296", "18446744073709551615", "18446744073709551616", "1e3", "0x10", "ann", "\xff", " 7 "}
	for i, h := range hits {
		askRaw(t, e, fmt.Sprint("hits", i), h, limits[0])
	}
	for i, l := range limits {
		askRaw(t, e, fmt.Sprint("limit", i), "1", l)
	}
	is := e.Counts(t)
	t.Logf("%d requests: %+v", len(hits)+len(limits), is)
	if is.Failed+is.Allowed > 0 || is.OK < len(limits)/4 {
		t.Errorf("%+v: want no call to fail", is)
	}
}

// limitFromHeader makes Envoy take the metadata limits.of from the header x-limit.
func limitFromHeader(t *testing.T, c *envoytest.Config) {
	t.Helper()
	c.Manager["http_filters"] = append([]any{envoytest.Parsed(t, `
name: envoy.filters.http.header_to_metadata
typed_config:
  "@type": type.googleapis.com/envoy.extensions.filters.http.header_to_metadata.v3.Config
  request_rules:
    - header: x-limit
      on_header_present: {metadata_namespace: limits, key: of, type: PROTOBUF_VALUE, encode: BASE64}
`)}, c.Manager["http_filters"].([]any)...)
}

// headerOf returns the value of x-limit for a limit.
func headerOf(t *testing.T, limit map[string]any) string {
	t.Helper()
	return base64.StdEncoding.EncodeToString(fatal.Get(proto.Marshal(fatal.Get(structpb.NewValue(limit))(t)))(t))
}

// askRaw asks with headers that may be any bytes.
func askRaw(t *testing.T, e *envoytest.Envoy, key, hits, limit string) {
	t.Helper()
	fields := fieldsOf("HTTP/1.1", "x-key", key)
	ask1(t, e.Address, append(fields, [2]string{"x-hits", hits}, [2]string{"x-limit", limit}))
}
