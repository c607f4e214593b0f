package scenario

import (
	"strconv"
	"strings"
	"unicode/utf8"
)

// token is a word of a line, with its quotes, and where it begins.
type token struct {
	text string
	place
}

// from is the rest of t from its i-th byte on.
func (t token) from(i int) token {
	t.column += utf8.RuneCountInString(t.text[:i])
	t.text = t.text[i:]
	return t
}

// split cuts a line into words: at blanks and tabs that are not within quotes, up to a # that is not. rule says what
// is wrong with the last word, if something is.
func split(line string, number int) (all []token, rule string) {
	line = strings.TrimSuffix(line, "\r")
	column := 1
	for line != "" {
		if line[0] == ' ' || line[0] == '\t' {
			line = line[1:]
			column++
			continue
		}
		if line[0] == '#' {
			break
		}
		end, closed := wordEnd(line)
		all = append(all, token{line[:end], place{number, column}})
		if !closed {
			return all, `must end with "`
		}
		column += utf8.RuneCountInString(line[:end])
		line = line[end:]
	}
	return all, ""
}

// wordEnd is where the word at the beginning of a line ends, and whether its quotes are closed there.
func wordEnd(line string) (end int, closed bool) {
	quoted := false
	for i := 0; i < len(line); i++ {
		switch c := line[i]; {
		case quoted && c == '\\':
			i++
		case c == '"':
			quoted = !quoted
		case !quoted && (c == ' ' || c == '\t' || c == '#'):
			return i, true
		}
	}
	return len(line), !quoted
}

// parameter cuts name=value; the column of the value is where the value begins.
func (t token) parameter() (name string, value token, ok bool) {
	i := strings.IndexByte(t.text, '=')
	if i <= 0 {
		return "", t, false
	}
	return t.text[:i], t.from(i + 1), true
}

// list cuts a value at its commas that are not within quotes.
func (t token) list() (all []token) {
	quoted, begin := false, 0
	for i := 0; i < len(t.text); i++ {
		switch c := t.text[i]; {
		case quoted && c == '\\':
			i++
		case c == '"':
			quoted = !quoted
		case !quoted && c == ',':
			part := t.from(begin)
			part.text = t.text[begin:i]
			all = append(all, part)
			begin = i + 1
		}
	}
	return append(all, t.from(begin))
}

// value is a word without its quotes; rule says what is wrong with them.
func (t token) value() (text, rule string) {
	if !strings.Contains(t.text, `"`) {
		return t.text, ""
	}
	if t.text[0] == '"' {
		if text, err := strconv.Unquote(t.text); err == nil {
			return text, ""
		}
	}
	return "", `must be a word, or all of it in quotes "…" with the escapes of Go`
}
