package metrics

import (
	"crypto/sha256"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// maxLabel is the longest value of a label, in bytes. Names of policies have 64 bytes at most,
// those of nodes are addresses.
const maxLabel = 128

// cleaned makes any name a value that every system takes. A name with bytes or characters that
// cannot be printed, or longer than 128 bytes, becomes its beginning and a part of its SHA-256, so
// that two names stay two series.
func cleaned(name string) string {
	if isClean(name) {
		return name
	}
	sum := sha256.Sum256([]byte(name))
	return fmt.Sprintf("%s-%x", strings.Map(printable, name[:min(len(name), maxLabel/2)]), sum[:8])
}

// isClean reports whether a name can be the value of a label as it is.
func isClean(name string) bool {
	return len(name) <= maxLabel && utf8.ValidString(name) && strings.Map(printable, name) == name
}

// printable returns the character, or "?" if it cannot be printed. Some parsers take a zero byte
// for the end of the text.
func printable(r rune) rune {
	if r == utf8.RuneError || !unicode.IsPrint(r) {
		return '?'
	}
	return r
}
