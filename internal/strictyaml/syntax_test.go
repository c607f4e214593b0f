package strictyaml_test

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/tiered-limiter/tiered-limiter/internal/strictyaml"
)

// Each mistake of syntax is told with line and column.
func TestPlacesOfSyntax(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{"all: [a\n", "2:1: did not find expected ',' or ']', in what begins at 1:6"},
		{"a: b: c\n", "1:5: mapping values are not allowed in this context"},
		{"a:\n\t- b\n", "2:1: a tab: lines must be indented by spaces"},
		{"a:\n  - é: @\n", "2:8: found character that cannot start any token"},
		{"@\n", "1:1: found character that cannot start any token"},
		{"a:\n  - b: *sk-1\n", "2:8: unknown anchor"}, // its name may be a secret
		{"a: b\nc: [é\xff]\n", "2:6: invalid leading UTF-8 octet"},
		{"a: b\nc: \"é\x01\"\n", "2:6: control characters are not allowed"},
		{"a: \"\\q\"\n", "1:5: found unknown escape character"},
		{"a: 'x\nb: y\n", "3:1: found unexpected end of stream, in what begins at 1:4"},
		{"{\"a\": [1, 2,\n \"b\": 3}\n", "2:8: did not find expected ',' or ']', in what begins at 1:7"},
		{"\xff\xfea\x00:\x00\n\x00\t\x00b\x00\n\x00\t\x00c\x00", "2:1: found character that cannot start any token"}, // UTF-16
		{"a:\n  - x: [1\n  - y: 2\n  - z: \"b\n  - w: 3\n", "3:6: did not find expected ',' or ']', in what begins at 2:8\n" +
			"6:1: found unexpected end of stream, in what begins at 4:8"},
		{"a:\n- x: &b 1\n\ty: 2\n- c: *b\n", "3:1: found a tab character that violates indentation, in what begins at 2:9"}, // b is left out
	} {
		_, err := strictyaml.Document("", []byte(c.text), 1000, "a list")
		if err == nil || err.Error() != c.want {
			t.Errorf("%q: said\n%v\nwant\n%s", c.text, err, c.want)
		}
	}
}

// In this file each mistake is in an element of its own.
const wholeSyntax = `version: 1
policies:
  - name: a
    limit: 1/s
    also: [1/h]
  # a comment
  - name: b
    limit: 2/s
  - {name: c, limit: 3/s}

  - name: d
    limit: "4/s"
    keys:
      x: 1/s
http:
- match: /
  limits:
    - policy: a
- match: /b
  limits: [{policy: b, key: ip}]
- match: /c
  limits: []
last:
  one: 1
  two: 2
  three: 3
`

// No mistake of syntax hides one in another element, and two make up no third one.
func TestNoMistakeOfSyntaxHidesAnother(t *testing.T) {
	told := func(text string) (all []string) {
		if _, err := strictyaml.Document("f", []byte(text), 1<<20, ""); err != nil {
			all = strings.Split(err.Error(), "\n")
		}
		return all
	}
	if all := told(wholeSyntax); all != nil {
		t.Fatalf("%q", all)
	}
	place, mistakes := regexp.MustCompile(`^f:\d+:\d+: \S`), []struct{ good, bad string }{
		{"limit: 1/s\n    also", "limit 1/s\n    also"},
		{"also: [1/h]", "also: [1/h"},
		{"    limit: 2/s", "\tlimit: 2/s"},
		{"    limit: 2/s", "   limit: 2/s"},
		{"{name: c, limit: 3/s}", "{name: c limit: 3/s}"},
		{"{name: c, limit: 3/s}", "{name: c, limit: 3/s"},
		{`"4/s"`, `"4/s" "`},
		{`"4/s"`, `"4\/s\q"`},
		{"x: 1/s", "x: @"},
		{"x: 1/s", "x: *y"},
		{"x: 1/s", "x: 1/s: 2"},
		{"- policy: a", "-policy: a: b"},
		{"key: ip}]", "key: ip]}"},
		{"limits: []", "limits: [}"},
		{"limits: []", "limits: ["}, // noticed in the next line, as the following
		{"limits: [{policy: b, key: ip}]", "limits: ["},
		{"also: [1/h]", "also: ["},
		{"two: 2", "two: : 2"},
		{"three: 3", "three: '"},
	}
	pairs := 0
	for i, a := range mistakes {
		withA := strings.Replace(wholeSyntax, a.good, a.bad, 1)
		one := told(withA)
		if len(one) != 1 || !place.MatchString(one[0]) {
			t.Errorf("%q: %q", a.bad, one)
		}
		for _, b := range mistakes[i+1:] {
			if isTogether(a.good, b.good) {
				continue
			}
			pairs++
			want := append(told(strings.Replace(wholeSyntax, b.good, b.bad, 1)), one...)
			got := told(strings.Replace(withA, b.good, b.bad, 1))
			slices.Sort(want)
			slices.Sort(got)
			if !slices.Equal(got, want) {
				t.Errorf("%q and %q: said\n%s\nwant\n%s", a.bad, b.bad, strings.Join(got, "\n"), strings.Join(want, "\n"))
			}
		}
	}
	t.Logf("%d pairs", pairs)
}

// isTogether reports whether two texts are in one element.
func isTogether(a, b string) bool {
	return elementOf(a) == elementOf(b)
}

func elementOf(text string) int {
	before := wholeSyntax[:strings.Index(wholeSyntax, text)]
	return strings.Count(before, "\n  - ") + strings.Count(before, "\n- ") + 10*strings.Count(before, "\n  t")
}

// Whatever a text is: what is wrong with it has a place in it, and is told once.
func TestAnySyntaxHasAPlace(t *testing.T) {
	place := regexp.MustCompile(`^f:(\d+):(\d+): \S`)
	for i := range wholeSyntax {
		for _, odd := range []string{"", "\t", "[", "}", "'", "\"", ": ", "@", "\x00", "\xff", "\n", "*a", "- ", "!<", "| x"} {
			text := wholeSyntax[:i] + odd + wholeSyntax[i:]
			if odd == "" {
				text = wholeSyntax[:i]
			}
			_, err := strictyaml.Document("f", []byte(text), 1<<20, "")
			if err == nil || strings.Contains(err.Error(), "second document") || strings.Contains(err.Error(), "is empty") {
				continue
			}
			seen := map[string]bool{}
			for _, m := range strings.Split(err.Error(), "\n") {
				at := place.FindStringSubmatch(m)
				if line := 0; at != nil {
					_, _ = fmt.Sscan(at[1], &line)
					if line > 1+strings.Count(text, "\n")+1 {
						at = nil
					}
				}
				if at == nil || seen[m] {
					t.Errorf("%q at %d: %s", odd, i, err)
				}
				seen[m] = true
			}
		}
	}
}
