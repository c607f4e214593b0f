package policyfile

import (
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/tiered-limiter/tiered-limiter/internal/canonical"
)

// A client may spell a URL in many ways, and servers read them differently: http.ServeMux looks at
// each segment for itself, gin at the decoded path, a file server at the clean one, and others
// leave out ;parameters or the case of letters. What stands behind the middleware is not known. So
// a request meets all routes that any such server could serve it as.
//
// The readings of a path are: as it is encoded or decoded; with its empty parts, . and .. or
// without; with a slash at its end or without; with ;parameters or without; with \ or / for it; as
// it is or in lower case; and //x/y also as /y. What real gin, echo, chi, fiber and http.ServeMux
// serve, with their options, is among them. Each is looked up in the table.

// A path that is longer, in bytes as it was sent, or has more parts is read in one way only, and
// refused if there are several: a client could make each request cost a millisecond.
const (
	longest   = 4 << 10
	mostParts = 100
)

// isTooLong reports whether a path is not read in several ways.
func isTooLong(u *url.URL) bool {
	return max(len(u.Path), len(u.RawPath)) > longest || strings.Count(u.Path, "/")+strings.Count(u.Path, `\`) > mostParts
}

// meeting is a route that a request meets.
type meeting struct {
	route  int
	values []string // of its wildcards
}

// isPlain reports whether all readings of a request are the same but for a slash at the end of the
// path and the case of its letters. Most are. cased is true if the path has letters that are not in
// lower case.
func (t *table) isPlain(r *http.Request) (plain, cased bool) {
	p := r.URL.Path
	if r.URL.RawPath != "" || p == "" || p[0] != '/' || r.RequestURI == "*" {
		return false, false
	}
	for i := range len(p) {
		switch c := p[i]; {
		case c == ';' || c == '\\':
			return false, false
		case 'A' <= c && c <= 'Z' || c >= utf8.RuneSelf:
			cased = true
		case c == '/' && i+1 < len(p) && (p[i+1] == '/' || p[i+1] == '.'):
			part, _, _ := strings.Cut(p[i+1:], "/")
			if part == "" || part == "." || part == ".." {
				return false, false
			}
		}
	}
	return (!t.hosts || bareHost(r.Host) == canonical.Host(r.Host)) &&
		r.Method != http.MethodConnect && r.Method == strings.ToUpper(r.Method), cased
}

// bareHost is the host of a request as [http.ServeMux] sees it.
func bareHost(host string) string {
	if strings.Contains(host, ":") {
		if h, _, err := net.SplitHostPort(host); err == nil {
			return h
		}
	}
	return host
}

// find returns the only meeting of a plain request, or one with route -1 if it meets none. It
// reports false if there may be more.
func (t *table) find(r *http.Request) (m meeting, ok bool) {
	plain, cased := t.isPlain(r)
	if !plain {
		return m, false
	}
	var room [16]string
	path := room[:0]
	for part := range strings.SplitSeq(r.URL.Path[1:], "/") {
		path = append(path, part)
	}
	m.route = -1
	host := bareHost(r.Host)
	if is := t.exact.match(host, r.Method, path); len(is) > 0 {
		m.route = is[0]
	}
	other := func(found places) bool { return len(found) > 1 || len(found) == 1 && found[0] != m.route }
	if other(t.turned(t.exact, host, r.Method, path)) {
		return m, false
	}
	if cased || t.capitals {
		folded := lower(path)
		if other(t.folded.match(host, r.Method, folded)) || other(t.turned(t.folded, host, r.Method, folded)) {
			return m, false
		}
	}
	if m.route >= 0 {
		m.values = t.patterns[m.route].values(path)
	}
	return m, true
}

// turned returns the patterns that match exactly a path with a slash more or less at its end.
func (t *table) turned(in tree, host, method string, path []string) places {
	if path = turn(path); path == nil {
		return nil
	}
	if found := in.match(host, method, path); len(found) > 0 && t.patterns[found[0]].isExact(path) {
		return found
	}
	return nil
}

// turn returns a path with a slash more or less at its end, or nil for "/".
func turn(path []string) []string {
	switch n := len(path) - 1; {
	case path[n] != "":
		return append(path, "")
	case n > 0:
		return path[:n]
	}
	return nil
}

// meetings returns all routes that a request meets, each once for each choice of its wildcards'
// values.
func (t *table) meetings(r *http.Request) (all []meeting) {
	hosts, methods := []string{""}, distinct(r.Method, strings.ToUpper(r.Method))
	if t.hosts {
		hosts = distinct(bareHost(r.Host), canonical.Host(r.Host))
	}
	add := func(found places, path []string) {
		for _, i := range found {
			m := meeting{i, t.patterns[i].values(path)}
			if !slices.ContainsFunc(all, func(o meeting) bool { return o.route == i && slices.Equal(o.values, m.values) }) {
				all = append(all, m)
			}
		}
	}
	for _, read := range readings(r.URL) {
		path, folded := slices.Grow(read.path, 1), slices.Grow(lower(read.path), 1)
		hosts := hosts
		if t.hosts && read.host != "" {
			hosts = append(slices.Clone(hosts), canonical.Host(unescape(read.host)))
		}
		for _, host := range hosts {
			for _, method := range methods {
				add(t.exact.match(host, method, path), path)
				add(t.turned(t.exact, host, method, path), turn(path))
				add(t.folded.match(host, method, folded), path)
				add(t.turned(t.folded, host, method, folded), turn(path))
			}
		}
	}
	return all
}

func distinct(a, b string) []string {
	if a == b {
		return []string{a}
	}
	return []string{a, b}
}

// each returns a path with each part as changed by f.
func each(path []string, f func(string) string) []string {
	all := make([]string, len(path))
	for i, s := range path {
		all[i] = f(s)
	}
	return all
}

func lower(path []string) []string { return each(path, strings.ToLower) }

// reading is a way to read a URL.
type reading struct {
	path []string // decoded; an empty last part is a slash at the end
	host string   // that a server reads in the path, or ""
}

// readings returns all ways to read a URL, but for the slash at its end and the case of letters.
func readings(u *url.URL) (all []reading) {
	raws := []reading{{path: parts(u.EscapedPath())}}
	if u.RawPath != "" { // a middleware that has changed Path may have left it, and chi and echo look at it
		raws = also(raws, func([]string) []string { return parts(u.RawPath) })
	}
	raws = also(raws, func(path []string) []string { return parts("/" + backslashes.Replace(strings.Join(path, "/"))) })
	for _, r := range raws[:len(raws):len(raws)] { // fasthttp reads //x/y as the path /y of the host x
		if len(r.path) > 1 && r.path[0] == "" {
			raws = append(raws, reading{parts("/" + strings.Join(r.path[2:], "/")), r.path[1]})
		}
	}
	parameters := strings.Contains(u.Path, ";") || strings.Contains(u.RawPath, ";")
	if parameters {
		raws = also(raws, bare)
	}
	raws = also(raws, clean)
	for _, r := range raws {
		all = add(all, reading{each(r.path, unescape), r.host})
		all = add(all, reading{parts("/" + unescape(strings.Join(r.path, "/"))), r.host})
	}
	if parameters {
		all = also(all, bare)
	}
	return also(all, clean)
}

// add adds a reading if it is new.
func add(all []reading, r reading) []reading {
	if slices.ContainsFunc(all, func(o reading) bool { return o.host == r.host && slices.Equal(o.path, r.path) }) {
		return all
	}
	return append(all, r)
}

// also adds each reading as changed by f.
func also(all []reading, f func([]string) []string) []reading {
	for _, r := range all {
		all = add(all, reading{f(r.path), r.host})
	}
	return all
}

var backslashes = strings.NewReplacer(`\`, "/", "%5C", "/", "%5c", "/")

// unescape decodes a path. What is no encoding stays as it is, as in a pattern.
func unescape(path string) string {
	if plain, err := url.PathUnescape(path); err == nil {
		return plain
	}
	return path
}

// parts returns the parts of a path between slashes.
func parts(path string) []string { return strings.Split(strings.TrimPrefix(path, "/"), "/") }

// bare returns a path without parameters, as in /a;version=1/b.
func bare(path []string) []string {
	return each(path, func(s string) string {
		s, _, _ = strings.Cut(s, ";")
		return s
	})
}

// clean returns a path without empty parts, . and .. .
func clean(path []string) []string {
	last := path[len(path)-1]
	all := make([]string, 0, len(path))
	for _, s := range path {
		switch s {
		case "", ".":
		case "..":
			all = all[:max(len(all)-1, 0)]
		default:
			all = append(all, s)
		}
	}
	if last == "" || len(all) == 0 {
		all = append(all, "")
	}
	return all
}
