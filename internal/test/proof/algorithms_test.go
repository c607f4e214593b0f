package proof_test

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tiered-limiter/tiered-limiter/internal/test/proof/adversary"
	"github.com/tiered-limiter/tiered-limiter/internal/test/proof/answers"
	"github.com/tiered-limiter/tiered-limiter/internal/test/proof/legal"
	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/redistest"
	"github.com/tiered-limiter/tiered-limiter/lua"
	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// A new algorithm is a row in lua/algorithm.go, a script and a model. This test says what else has
// to know it, and is red until all of that does: it walks the rows through it. TestWindowKinds in
// remote does so with the random histories.
func TestEveryAlgorithm(t *testing.T) {
	choices := lua.Choices()
	for a := range lua.Algorithm(lua.Algorithms) {
		t.Run(a.String(), func(t *testing.T) {
			knows := func(where string, check func() error) {
				t.Helper()
				if err := safely(check); err != nil {
					t.Errorf("%s does not know it: %v", where, err)
				}
			}
			file := "lua/" + strings.ReplaceAll(a.String(), " ", "_") + ".lua"
			knows("internal/model/key.go", func() error { return modeled(a) })
			knows("internal/test/proof/mutants/mutants.txt", func() error {
				return says("internal/test/proof/mutants/mutants.txt", `(?m)^file .*$`, "file "+file)
			})
			if a.Has(lua.Leased) {
				knows("internal/test/proof/adversary/scopes.go", func() error { return played(a) })
			}
			if !slices.Contains(choices, a) {
				return
			}
			constant := strings.ReplaceAll(title(a.String()), " ", "")
			knows("tiered/algorithm.go", func() error {
				p := tiered.Policy{Name: "x", Limit: tiered.PerMinute(9), Algorithm: tiered.Algorithm(a)}
				return cmp.Or(says("tiered/algorithm.go", `(?m)^\t\w+ Algorithm = .*$`, constant+" Algorithm ="), p.Validate())
			})
			knows("internal/test/proof/legal/draw.go", func() error { return drawn(legal.Algorithms, a) })
			knows("internal/test/proof/answers/sequence.go", func() error { return drawn(answers.Algorithms, a) })
			for _, page := range []struct{ path, place, text string }{
				{"tiered/policyfile/schema.json", `(?s)"algorithm": {.*?\]`, `"` + a.String() + `"`},
				{"docs/configuration.md", "(?m)^- `algorithm`: .*$", "`" + a.String() + "`"},
				{"docs/service-reference.md", `(?m)^ *algorithm: .*$`, a.String()},
				{"docs/choosing.md", `(?s).*`, "| `" + constant + "` |"},
				{"CHANGELOG.md", `(?s)\*\*Algorithms\*\*.*?\n- `, a.String()},
			} {
				knows(page.path, func() error { return says(page.path, page.place, page.text) })
			}
			for word := range strings.FieldsSeq(a.String()) {
				knows("docs/peers.md", func() error {
					return says("docs/peers.md", `(?m)^\| \*\*tiered-limiter\*\* .*$`, word)
				})
			}
			if a.Has(lua.NamesPer) {
				knows("docs/several-limits.md", func() error {
					return says("docs/several-limits.md", "(?s)\n- \\*\\*`Name`, `Algorithm`.*?\n\n", "`"+constant+"`")
				})
			}
			rights := redistest.Rights(t, redistest.OnServer)
			for _, command := range a.Script().Commands() {
				if !slices.Contains(rights, "+"+command) {
					knows("docs/redis.md, for "+command+",", func() error {
						return says("docs/redis.md", "(?m)^- Policies of .*$", "`"+constant+"`")
					})
				}
			}
		})
	}
}

// safely is check, and an error if it panics.
func safely(check func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panics: %v", p)
		}
	}()
	return check()
}

// says returns an error if a place of a file does not have a text.
func says(path, place, text string) error {
	all, err := os.ReadFile("../../../" + path)
	if err != nil {
		return err
	}
	for _, found := range regexp.MustCompile(place).FindAllString(string(all), -1) {
		if strings.Contains(found, text) {
			return nil
		}
	}
	return fmt.Errorf("there is no %s", text)
}

// title begins each word with a capital letter.
func title(words string) (all string) {
	for word := range strings.FieldsSeq(words) {
		all += strings.ToUpper(word[:1]) + word[1:] + " "
	}
	return all
}

// modeled asks the model for a token.
func modeled(a lua.Algorithm) error {
	calls := []lua.Call{{
		Bucket: "b", Algorithm: a, Want: 1, Min: 1, TTL: 1e6, Fleet: 1, Cap: 5, Tokens: 5, Period: 1e6, Span: 5,
	}}
	results := make([]remote.Result, 1)
	remote.NewMemory().Run(context.Background(), time.Second, calls, results)
	if r := results[0]; r.Err != nil || r.Reply.Grant != 1 {
		return fmt.Errorf("%+v", r)
	}
	return nil
}

// played reports whether the adversary plays an algorithm that is leased.
func played(a lua.Algorithm) error {
	if !slices.Contains(adversary.Algorithms(), a) || len(adversary.Scopes(a)) == 0 {
		return fmt.Errorf("it plays %v", adversary.Algorithms())
	}
	return nil
}

func drawn(from []tiered.Algorithm, a lua.Algorithm) error {
	if !slices.Contains(from, tiered.Algorithm(a)) {
		return fmt.Errorf("it draws %v", from)
	}
	return nil
}
