package policyfile

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"strings"

	"github.com/tiered-limiter/tiered-limiter/internal/canonical"
	"github.com/tiered-limiter/tiered-limiter/internal/strictyaml"
)

// pattern is the match of a route, taken apart.
type pattern struct {
	method   string // "" is any
	host     string // as canonical.Host writes it; "" is any
	segments []segment
}

// segment is a part of a pattern's path.
type segment struct {
	text string // a literal, decoded, or the name of a wildcard
	wild bool   // one segment of a path, whatever it is
	rest bool   // all that follows: of "/api/" without a name, of "/{path...}" with one
	end  bool   // {$}: nothing follows
}

// hostName is a name that a client may send as a host.
var hostName = regexp.MustCompile(`^[a-z0-9_-]+(\.[a-z0-9_-]+)*$`)

// parsePattern reads a pattern of [http.ServeMux]. It refuses those that the mux takes, and that no
// request meets.
func parsePattern(text string) (p pattern, err error) {
	if err := register(http.NewServeMux(), text, http.NotFoundHandler()); err != nil {
		return p, fmt.Errorf("is %s: %w", strictyaml.Quote(text), err)
	}
	bad := func(format string, args ...any) (pattern, error) {
		return p, fmt.Errorf("is %s: "+format, append([]any{strictyaml.Quote(text)}, args...)...)
	}
	rest := text
	if i := strings.IndexAny(text, " \t"); i >= 0 {
		p.method, rest = text[:i], strings.TrimLeft(text[i+1:], " \t")
	}
	if p.method != strings.ToUpper(p.method) {
		return bad("the method must be in capitals, as in %s", strictyaml.Quote(strings.ToUpper(p.method)+" "+rest))
	}
	host, path, _ := strings.Cut(rest, "/") // the mux wants a /
	if p.host = canonical.Host(host); host != "" {
		address := strings.HasPrefix(host, "[") && strings.HasSuffix(host, "]") && strings.Contains(p.host, ":")
		switch {
		case !address && strings.Contains(host, ":"):
			return bad("the host %s must have no scheme and no port", strictyaml.Quote(host))
		case !address && !hostName.MatchString(p.host):
			return bad("the host %s must be a whole name of a-z, 0-9, hyphens and dots, because no request has such a one",
				strictyaml.Quote(host))
		case !strings.ContainsAny(host, ".:") && p.host != "localhost":
			return bad("%s would be a host: must begin with / as in %s, or have a host with a dot, as in example.com/ or %s./",
				strictyaml.Quote(host), strictyaml.Quote("/"+rest), host)
		}
	}
	for i, s := range strings.Split(path, "/") {
		last := i == strings.Count(path, "/")
		switch {
		case s == "" && last:
			p.segments = append(p.segments, segment{rest: true})
		case s == "{$}":
			p.segments = append(p.segments, segment{end: true})
		case strings.HasPrefix(s, "{"):
			name, all := strings.CutSuffix(s[1:len(s)-1], "...")
			p.segments = append(p.segments, segment{text: name, wild: !all, rest: all})
		default:
			literal, err := url.PathUnescape(s)
			if err != nil {
				literal = s
			}
			switch {
			case literal == "" || literal == "." || literal == "..":
				return bad("the path must have no empty part, no . and no .., because it is matched without them")
			case strings.Contains(literal, "/"):
				return bad("%%2F must be written as /: the path is matched with both")
			case strings.ContainsAny(s, "?#"):
				return bad("must have no ? and no #, because only the path is matched")
			}
			p.segments = append(p.segments, segment{text: literal})
		}
	}
	return p, nil
}

// String returns the pattern for a mux. Its host is in one spelling.
func (p pattern) String() string { return p.write(func(s string) string { return s }, false) }

// folded returns the pattern in lower case, for a mux that does not tell cases apart. Wildcards
// have the names of their places, because names do not matter.
func (p pattern) folded() string { return p.write(strings.ToLower, true) }

func (p pattern) write(literal func(string) string, places bool) string {
	var b strings.Builder
	if p.method != "" {
		b.WriteString(p.method + " ")
	}
	b.WriteString(p.host)
	for i, s := range p.segments {
		b.WriteByte('/')
		name := s.text
		if places && name != "" {
			name = fmt.Sprint("w", i)
		}
		switch {
		case s.end:
			b.WriteString("{$}")
		case s.wild:
			b.WriteString("{" + name + "}")
		case s.rest && name != "":
			b.WriteString("{" + name + "...}")
		case !s.rest:
			b.WriteString(url.PathEscape(literal(s.text)))
		}
	}
	return b.String()
}

// isExact reports whether the pattern, which matches the path, matches it without a rest.
func (p pattern) isExact(path []string) bool {
	n := len(p.segments)
	return !p.segments[n-1].rest || len(path) == n && path[n-1] == ""
}

// values are those of the pattern's wildcards in a path that it matches, in the order of the
// pattern.
func (p pattern) values(path []string) (all []string) {
	for i, s := range p.segments {
		switch {
		case s.wild && i < len(path):
			all = append(all, path[i])
		case s.rest && s.text != "" && i <= len(path):
			all = append(all, strings.Join(path[i:], "/"))
		}
	}
	return all
}

// names are those of the pattern's wildcards.
func (p pattern) names() (all []string) {
	for _, s := range p.segments {
		if s.wild || s.rest && s.text != "" {
			all = append(all, s.text)
		}
	}
	return all
}

// Meets says in words which requests the route limits, for a person.
func (r Route) Meets() string {
	p, err := parsePattern(r.Match)
	if err != nil {
		return "none"
	}
	method, host := "any method", "any host"
	switch p.method {
	case "":
	case http.MethodGet:
		method = "GET and HEAD"
	default:
		method = p.method
	}
	if p.host != "" {
		host = "host " + p.host
	}
	whole := pattern{segments: p.segments}
	path := whole.String()
	if last := p.segments[len(p.segments)-1]; last.rest {
		whole.segments = p.segments[:len(p.segments)-1]
		path = "all paths"
		if len(whole.segments) > 0 {
			path = whole.String() + " and all paths below it"
		}
	} else if last.end {
		path = strings.TrimSuffix(path, "{$}") + " only"
	}
	return method + ", " + host + ", " + path
}

// registeredAt is where the code is that registered a pattern, which nobody wants to know.
var registeredAt = regexp.MustCompile(` \(registered at [^)]*\)`)

// register registers a pattern. The mux panics if it cannot take it.
func register(mux *http.ServeMux, pattern string, h http.Handler) (err error) {
	defer func() {
		if v := recover(); v != nil {
			text, _, _ := strings.Cut(fmt.Sprint(v), "\n")
			text = strings.TrimSuffix(registeredAt.ReplaceAllString(text, ""), ":")
			err = errors.New(strings.TrimPrefix(text, "http: "))
		}
	}()
	mux.Handle(pattern, h)
	return nil
}
