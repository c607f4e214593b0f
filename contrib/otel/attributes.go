package otellimit

import (
	"crypto/sha256"
	"fmt"
	"net"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"go.opentelemetry.io/otel/attribute"
)

// Attributes of metrics and of events. There are no semantic conventions for rate limiting but those of ASP.NET Core.
// "ratelimit" is in the place of their "aspnetcore.rate_limiting".
const (
	policyKey  attribute.Key = "ratelimit.policy"
	tierKey    attribute.Key = "ratelimit.tier"
	reasonKey  attribute.Key = "ratelimit.reason"
	outcomeKey attribute.Key = "ratelimit.outcome"
)

// errorKey is of the semantic conventions: why something failed. What did not fail has none.
const errorKey attribute.Key = "error.type"

// maxText is the longest text of an attribute, in bytes. Names of policies have 64 bytes at most, those of nodes are
// addresses.
const maxText = 128

// text makes any name an attribute that can be exported: OTLP fails with bytes that are not UTF-8. A name with bytes or
// characters that cannot be printed, or longer than 128 bytes, becomes its beginning and a part of its SHA-256, so that
// two names stay two series.
func text(key attribute.Key, name string) attribute.KeyValue {
	if isText(name) {
		return key.String(name)
	}
	sum := sha256.Sum256([]byte(name))
	return key.String(fmt.Sprintf("%s-%x", strings.Map(printable, name[:min(len(name), maxText/2)]), sum[:8]))
}

// isText reports whether a name can be the text of an attribute as it is.
func isText(name string) bool {
	return len(name) <= maxText && utf8.ValidString(name) && strings.Map(printable, name) == name
}

// printable returns the character, or "?" if it cannot be printed.
func printable(r rune) rune {
	if r == utf8.RuneError || !unicode.IsPrint(r) {
		return '?'
	}
	return r
}

// server returns the attributes of a Redis node, whose name is an address. By the semantic conventions the port is an
// attribute of its own. A name without a port is the address.
func server(name string) []attribute.KeyValue {
	host, digits, err := net.SplitHostPort(name)
	port, wrong := strconv.ParseUint(digits, 10, 16)
	if err != nil || wrong != nil || strconv.FormatUint(port, 10) != digits {
		return []attribute.KeyValue{text("server.address", name)}
	}
	return []attribute.KeyValue{text("server.address", host), attribute.Int("server.port", int(port))}
}
