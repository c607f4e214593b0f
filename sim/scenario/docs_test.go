package scenario

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/tiered-limiter/tiered-limiter/internal/rig/must"
	"github.com/tiered-limiter/tiered-limiter/internal/section"
)

var page = filepath.Join("..", "scenarios.md")

// The tables of the reference are those of the code. After a change: go test ./sim/scenario -update.
func TestDocs(t *testing.T) {
	text := must.Get(os.ReadFile(page))(t)
	for name, body := range map[string]string{
		"fields": fieldTables(), "shapes": kindsTable("traffic"), "faults": kindsTable("faults"),
		"metrics": metricsTable(), "happenings": codes(Happenings), "bounds": boundsTable(),
	} {
		want := must.Get(section.Replace(string(text), name, body))(t)
		if want == string(text) {
			continue
		}
		if !*update {
			t.Errorf("sim/scenarios.md has not what the code says of %s:\n%s", name, body)
		} else if err := section.Write(page, name, body); err != nil {
			t.Fatal(err)
		}
	}
}

// The examples of the reference are valid, and the errors that it quotes are what is said.
func TestDocsExamples(t *testing.T) {
	text := must.Get(os.ReadFile(page))(t)
	block := func(language string) string {
		m := regexp.MustCompile("(?s)\n```"+language+"\n(.*?)\n```").FindAllSubmatch(text, -1)
		if len(m) != 1 {
			t.Fatalf("%d blocks of %q, want 1", len(m), language)
		}
		return string(m[0][1])
	}
	example := block("yaml")
	s := mustParse(t, example)
	cells := 1
	for _, a := range s.Sweep {
		cells *= len(a.Values)
	}
	if !strings.Contains(string(text), fmt.Sprintf("each combination, %d here", cells)) {
		t.Errorf("the example's sweep has %d combinations", cells)
	}
	for _, m := range regexp.MustCompile("`([a-z]+(?:\\.[a-z0-9]+)*)=([0-9][^`\\s]*)`").FindAllStringSubmatch(string(text), -1) {
		if err := mustParse(t, example).Set(m[1], m[2]); err != nil {
			t.Errorf("%s: %v", m[0], err)
		}
	}
	_, err := Parse("#\n#\n#\n#\n#\ntraffic:\n  - {shape: poisson, limit: api, rate: 1500}\nfaults:\n" +
		"  - {at: 20s, kind: blakhole}\n")
	for _, quoted := range strings.Split(block("text"), "\n") {
		for part := range strings.SplitSeq(quoted, "…") {
			if err == nil || !strings.Contains(err.Error(), part) {
				t.Errorf("%q is quoted, and this is said:\n%v", part, err)
			}
		}
	}
}

func code(s string) string { return "`" + s + "`" }

func codes(all []string) string {
	written := make([]string, len(all))
	for i, s := range all {
		written[i] = code(s)
	}
	return strings.Join(written, " ")
}

func fieldTables() string {
	text := ""
	for i := range mappings {
		m := &mappings[i]
		switch {
		case m.path == "":
			text += "Of the scenario itself, besides the lists `expect` and `sometimes` and the mapping `sweep`:\n\n"
		case m.most > 0:
			text += "\n" + code(m.path) + ", a list:\n\n"
		default:
			text += "\n" + code(m.path) + ":\n\n"
		}
		text += fieldsTable(m)
	}
	return text + "\nAfter an expectation:\n\n" + fieldsTable(&expectations)
}

func fieldsTable(m *mapping) string {
	rows := [][]string{{"field", "what it is", "range", "left out"}}
	for _, f := range m.fields {
		left := f.left
		if slices.Contains(m.needs, f.name) {
			left = "must be there"
		}
		span := f.span
		if f.name == m.by {
			span = "see below"
		}
		rows = append(rows, []string{code(f.name), f.what, span, left})
	}
	return section.Table(rows)
}

func kindsTable(path string) string {
	m := find(path)
	rows := [][]string{{m.by, "must have", "may have", "what it is"}}
	for _, k := range m.kinds {
		may := without(k.Takes, k.Needs)
		rows = append(rows, []string{code(k.Name), codes(k.Needs), codes(may), k.What})
	}
	return section.Table(rows)
}

func without(all, some []string) []string {
	return slices.DeleteFunc(slices.Clone(all), func(s string) bool { return slices.Contains(some, s) })
}

func metricsTable() string {
	rows := [][]string{{"metric", "unit", "is written", "what it is"}}
	for _, m := range Metrics {
		_, form, _ := strings.Cut(units[m.Unit].form, "as in ")
		written := code(strings.ReplaceAll(form, " or ", "` or `"))
		rows = append(rows, []string{code(m.Name), m.Unit.String(), written, m.What})
	}
	return section.Table(rows)
}

func boundsTable() string {
	rows := [][]string{{"of", "at most"}}
	for _, b := range []struct {
		what string
		most int
	}{
		{"text, in bytes", MaxBytes},
		{"name, in characters", maxName},
		{"learn, in characters", maxLearn},
		{"limits", maxLimits},
		{"traffic", maxTraffic},
		{"faults", maxFaults},
		{"expectations", maxExpect},
		{"axes of a sweep", maxAxes},
		{"values of an axis", maxValues},
		{"combinations of a sweep", maxCells},
	} {
		rows = append(rows, []string{b.what, fmt.Sprint(b.most)})
	}
	return section.Table(rows)
}
