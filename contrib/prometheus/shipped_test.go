package promlimit_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/fatal"
	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered/metrics"
)

// known has the labels of each metric of the Collector of one Group.
func known(t *testing.T) map[string][]string {
	t.Helper()
	reader := fatal.Get(metrics.NewReader(newGroup(t, remote.NewMemory())))(t)
	all := map[string][]string{}
	for _, m := range reader.Metrics() {
		all[m.Name] = m.Labels
	}
	if len(all) < 50 {
		t.Fatalf("only %d metrics", len(all))
	}
	return all
}

// dashboard returns the queries of dashboard.json by panel, as Prometheus gets them from Grafana.
func dashboard(t *testing.T) map[string][]string {
	t.Helper()
	var board struct {
		Panels []struct {
			ID                 int
			Title, Description string
			Targets            []struct{ Expr string }
		}
	}
	text, err := os.ReadFile("dashboard.json")
	if err == nil {
		err = json.Unmarshal(text, &board)
	}
	if err != nil {
		t.Fatal(err)
	}
	queries := map[string][]string{}
	for i, p := range board.Panels {
		if p.ID != i+1 || p.Description == "" || len(p.Targets) == 0 || queries[p.Title] != nil {
			t.Errorf("panel %d is %+v", i, p)
		}
		for _, target := range p.Targets {
			q := strings.NewReplacer("$__rate_interval", "5m", "$job", ".*").Replace(target.Expr)
			queries[p.Title] = append(queries[p.Title], q)
		}
	}
	if len(queries) < 12 {
		t.Errorf("%d panels", len(queries))
	}
	return queries
}

var (
	series    = regexp.MustCompile(`(tiered_[a-z_]+)(?:\{([^}]*)\})?`)
	label     = regexp.MustCompile(`([a-z_]+)(?:=|!=|=~|!~)"([^"]*)"`)
	alertName = regexp.MustCompile(`- alert: (\w+)`)

	by = regexp.MustCompile(`\b(?:by|on) \(([a-z, ]*)\)`)
)

// Each metric and label of the dashboard and the rules is one that the Collector has.
func TestShippedNames(t *testing.T) {
	metrics := known(t)
	rules := fatal.Get(os.ReadFile("alerts.yaml"))(t)
	queries := regexp.MustCompile(`(?m)^\s+expr: (>-\n(?:\s{10}.*\n)+|.*\n)`).FindAllString(string(rules), -1)
	if n := strings.Count(string(rules), "- alert:"); len(queries) != n {
		t.Errorf("%d of %d alerts: the pattern is wrong", len(queries), n)
	}
	for _, of := range dashboard(t) {
		queries = append(queries, of...)
	}
	values := reasonsAndStates(t)
	for _, q := range queries {
		found := series.FindAllStringSubmatch(q, -1)
		if len(found) == 0 {
			t.Errorf("no metric in %s", q)
		}
		labels := []string{"job", "le"} // Prometheus adds them
		for _, m := range found {
			name := m[1]
			if _, ok := metrics[name]; !ok {
				name = strings.TrimSuffix(name, "_bucket")
			}
			if _, ok := metrics[name]; !ok {
				t.Errorf("there is no %s, in %s", m[1], q)
			}
			labels = append(labels, metrics[name]...)
			for _, l := range label.FindAllStringSubmatch(m[2], -1) {
				if l[1] == "job" {
					continue
				}
				if !slices.Contains(metrics[name], l[1]) {
					t.Errorf("%s has no label %s, in %s", name, l[1], q)
				}
				for value := range strings.SplitSeq(l[2], "|") {
					if !values[l[1]+"="+value] {
						t.Errorf("%s is never %q, in %s", l[1], value, q)
					}
				}
			}
		}
		for _, m := range by.FindAllStringSubmatch(q, -1) {
			for name := range strings.SplitSeq(m[1], ", ") {
				if !slices.Contains(labels, name) {
					t.Errorf("no metric has a label %s, in %s", name, q)
				}
			}
		}
	}
}

// reasonsAndStates are all values of labels other than names: "reason=granted".
func reasonsAndStates(t *testing.T) map[string]bool {
	t.Helper()
	all := map[string]bool{}
	text := fatal.Get(os.ReadFile("testdata/scrape.txt"))(t)
	for _, l := range label.FindAllStringSubmatch(string(text), -1) {
		all[l[1]+"="+l[2]] = true
	}
	for _, o := range []string{"answered", "saturated", "cannot serve", "misconfigured", "other failure"} {
		all["outcome="+o] = true // TestText leaves them out
	}
	return all
}

// Each alert names causes of the runbook that exist, and alerts_test.yaml has a case in which it
// fires and one in which it does not.
func TestAlerts(t *testing.T) {
	texts := map[string]string{}
	for _, name := range []string{"alerts.yaml", "alerts_test.yaml", "../../docs/runbook.md"} {
		text := fatal.Get(os.ReadFile(name))(t)
		texts[name] = string(text)
	}
	alerts := alertName.FindAllStringSubmatch(texts["alerts.yaml"], -1)
	for _, m := range alerts {
		cases := texts["alerts_test.yaml"]
		for _, want := range []string{
			"alertname: " + m[1] + "\n        exp_alerts:\n", `job="` + m[1] + `"`, `job="quiet-` + m[1] + `"`,
		} {
			if !strings.Contains(cases, want) {
				t.Errorf("alerts_test.yaml has no %s", want)
			}
		}
	}
	rows := regexp.MustCompile(`runbook: "([0-9, ]+)"`).FindAllStringSubmatch(texts["alerts.yaml"], -1)
	if len(rows) != len(alerts) {
		t.Errorf("%d of %d alerts name a cause of the runbook", len(rows), len(alerts))
	}
	_, causes, _ := strings.Cut(texts["../../docs/runbook.md"], "\n## Causes and alarms\n")
	for _, m := range rows {
		for row := range strings.SplitSeq(m[1], ", ") {
			if !strings.Contains(causes, "\n"+row+". ") {
				t.Errorf("the runbook has no cause %s", row)
			}
		}
	}
}

// promtool runs Prometheus' tool, or skips the test if it is not installed.
func promtool(t *testing.T, args ...string) {
	t.Helper()
	path, err := exec.LookPath("promtool")
	if err != nil {
		t.Skip("promtool is not in PATH: install Debian's package prometheus, or sh scripts/install-prometheus.sh")
	}
	if out, err := exec.Command(path, args...).CombinedOutput(); err != nil {
		t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

func TestPromtoolCheckRules(t *testing.T) { promtool(t, "check", "rules", "alerts.yaml") }

func TestPromtoolTestRules(t *testing.T) { promtool(t, "test", "rules", "alerts_test.yaml") }

// The queries of the dashboard are valid PromQL: promtool reads them as rules.
func TestPromtoolDashboard(t *testing.T) {
	var rules strings.Builder
	rules.WriteString("groups:\n  - name: dashboard\n    rules:\n")
	queries, n := dashboard(t), 0
	for _, title := range slices.Sorted(maps.Keys(queries)) {
		for _, q := range queries[title] {
			n++
			fmt.Fprintf(&rules, "      - {record: 'q%d', expr: '%s'}\n", n, strings.ReplaceAll(q, "'", "''"))
		}
	}
	file := filepath.Join(t.TempDir(), "dashboard.yaml")
	fatal.If(t, os.WriteFile(file, []byte(rules.String()), 0o600))
	promtool(t, "check", "rules", file)
}

// docs/metrics.md names each metric, with its further labels in brackets, and no other.
func TestPage(t *testing.T) {
	page := strings.Join(strings.Fields(string(fatal.Get(os.ReadFile("../../docs/metrics.md"))(t))), " ")
	_, page, _ = strings.Cut(page, "## The metrics")
	metrics := known(t)
	named := map[string]bool{}
	for _, m := range regexp.MustCompile("`(tiered_[a-z_]+)`(?: \\(([^)]*)\\))?").FindAllStringSubmatch(page, -1) {
		labels, ok := metrics[m[1]]
		if !ok {
			t.Errorf("there is no %s", m[1])
		}
		named[m[1]] = true
		for _, name := range labels {
			if name != "policy" && name != "node" && !strings.Contains(m[2], "`"+name+"`") {
				t.Errorf("%s does not name the label %s", m[1], name)
			}
		}
	}
	for name := range metrics {
		if !named[name] {
			t.Errorf("the page has no %s", name)
		}
	}
}
