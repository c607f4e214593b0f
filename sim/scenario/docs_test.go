package scenario

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/tiered-limiter/tiered-limiter/internal/section"
)

var page = filepath.Join("..", "scenarios.md")

// The tables of the reference are those of the code. After a change: go test ./sim/scenario -update.
func TestDocs(t *testing.T) {
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	for name, body := range map[string]string{
		"statements": statementsTable(), "parameters": parameterTables(), "shapes": shapesTable(), "faults": faultsTable(),
		"metrics": metricsTable(), "happenings": happeningsList(), "bounds": boundsTable(),
	} {
		want, err := section.Replace(string(text), name, body)
		if err != nil {
			t.Fatal(err)
		}
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
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	block := func(language string) string {
		m := regexp.MustCompile("(?s)\n```"+language+"\n(.*?)\n```").FindAllSubmatch(text, -1)
		if len(m) != 1 {
			t.Fatalf("%d blocks of %q, want 1", len(m), language)
		}
		return string(m[0][1])
	}
	s := mustParse(t, block("sim"))
	cells := 1
	for _, a := range s.Sweep {
		cells *= len(a.Values)
	}
	if !strings.Contains(string(text), fmt.Sprintf("each combination, %d here", cells)) {
		t.Errorf("the example's sweep has %d combinations", cells)
	}
	if _, err := ParseJSON([]byte(block("json"))); err != nil {
		t.Error(err)
	}
	for _, m := range regexp.MustCompile("`([a-z]+(?:\\.[a-z0-9]+)*)=([^`\\s]+)`").FindAllStringSubmatch(string(text), -1) {
		if err := mustParse(t, block("sim")).Set(m[1], m[2]); err != nil {
			t.Errorf("%s: %v", m[0], err)
		}
	}
	_, err = Parse("#\n#\n#\n#\n#\n#\ntraffic poisson rate=1500\n#\nat 20s    blakhole")
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

func statementsTable() string {
	rows := [][]string{{"statement", "what it says", "how often"}}
	what := map[string]string{
		"name": "what the scenario is called", "learn": "what it shows, in a line", "limit": "a policy's limit",
		"fleet": "the processes", "traffic": "a stream of requests", "net": "the way to Redis and back, while nothing is wrong",
		"at": "something goes wrong", "run": "how long it all lasts", "expect": "what must be true",
		"sometimes": "what must happen at least once", "sweep": "what to vary",
	}
	for _, st := range statements {
		often := "any number"
		switch {
		case slices.Contains([]string{"name", "fleet", "run"}, st.name):
			often = "once"
		case st.once():
			often = "at most once"
		case slices.Contains([]string{"limit", "traffic"}, st.name):
			often = "once or more"
		}
		if what[st.name] == "" {
			panic("what is " + st.name + "?")
		}
		rows = append(rows, []string{code(st.name + " " + st.form), what[st.name], often})
	}
	return section.Table(rows)
}

func parameterTables() string {
	return "`limit NAME` (1 to 64 of " + code(nameRule) + "):\n\n" + fieldsTable("limit", "rate") +
		"\n`fleet`:\n\n" + fieldsTable("fleet", "n") +
		"\n`traffic SHAPE`; which shape takes what is told below:\n\n" + fieldsTable("traffic") +
		"\n`net`:\n\n" + fieldsTable("net") +
		"\n`run TIME`, a time of " + lengthField.span + ":\n\n" + fieldsTable("run") +
		"\n`at TIME KIND`; which kind takes what is told below:\n\n" + fieldsTable("at") +
		"\n`expect`:\n\n" + fieldsTable("expect")
}

func fieldsTable(statement string, needs ...string) string {
	rows := [][]string{{"parameter", "what it is", "range", "left out"}}
	for _, f := range find(statement).fields {
		left := f.left
		if slices.Contains(needs, f.name) {
			left = "must be there"
		}
		rows = append(rows, []string{code(f.name), f.what, f.span, left})
	}
	return section.Table(rows)
}

func shapesTable() string {
	rows := [][]string{{"shape", "must have", "may have", "what it is"}}
	for _, s := range Shapes {
		rows = append(rows, []string{code(s.Name), codes(s.Needs), codes(without(s.Takes, s.Needs)), s.What})
	}
	return section.Table(rows)
}

func faultsTable() string {
	rows := [][]string{{"fault", "must have", "may have", "what it is"}}
	for _, k := range Kinds {
		_, takes, needs, _ := find("at").takes(&Fault{Kind: k.Name})
		rows = append(rows, []string{code(k.Name), codes(needs), codes(without(takes, needs)), k.What})
	}
	return section.Table(rows)
}

func without(all, some []string) []string {
	return slices.DeleteFunc(slices.Clone(all), func(s string) bool { return slices.Contains(some, s) })
}

func metricsTable() string {
	rows := [][]string{{"metric", "unit", "is written", "what it is"}}
	for _, m := range Metrics {
		rows = append(rows, []string{code(m.Name), m.Unit.String(), code(strings.ReplaceAll(units[m.Unit].form, " or ", "` or `")), m.What})
	}
	return section.Table(rows)
}

func happeningsList() string { return codes(Happenings) }

func boundsTable() string {
	rows := [][]string{{"of", "at most"}}
	for _, b := range []struct {
		what string
		most int
	}{
		{"text, in bytes", maxBytes},
		{"text, in lines", maxLines},
		{"JSON, in bytes", maxJSON},
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
