// Package docs_test checks that the documents agree with the code.
package docs_test

import (
	"context"
	"expvar"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/fatal"
	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/redistest"
	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// export is the program of docs/runbook.md: what is between the two marks.
func export(group *tiered.Group) {
	// OPERATIONS
	expvar.Publish("limiter", expvar.Func(func() any { return group.Stats() })) // at /debug/vars, with net/http
	// OPERATIONS
}

// toRoot has a test read the project from its root. In a TestMain that would hide from the go
// command which files the tests open, and it would reuse their results when a page has changed.
func toRoot(t *testing.T) {
	t.Helper()
	t.Chdir("..")
}

// operatorPages are the pages for operators.
var operatorPages = []string{"docs/deploying.md", "docs/redis.md", "docs/runbook.md"}

// block returns the text of the page's one block in a language.
func block(t *testing.T, page, language string) string {
	t.Helper()
	all := regexp.MustCompile("(?s)```"+language+"\n(.*?)```").FindAllStringSubmatch(page, -1)
	if len(all) != 1 {
		t.Fatalf("the page has %d blocks of %s", len(all), language)
	}
	return all[0][1]
}

// The page's program is the one that compiles here, and what it exports can be read.
func TestOperationsExport(t *testing.T) {
	toRoot(t)
	want := strings.TrimSpace(strings.Split(read(t, "docs/operations_test.go"), "\t// OPERATIONS\n")[1])
	if got := strings.TrimSpace(block(t, read(t, "docs/runbook.md"), "go")); got != want {
		t.Errorf("the page says\n%s\n\nand this file\n%s", got, want)
	}
	g := fatal.Get(tiered.NewGroup(remote.NewMemory(), nil))(t)
	export(g)
	text := expvar.Get("limiter").String()
	for _, field := range []string{`"Nodes":{"memory":{`, `"Breaker":"closed"`, `"Policies":{`, `"Format":"tb2"`} {
		if !strings.Contains(text, field) {
			t.Errorf("%s is not in %s", field, text)
		}
	}
	if err := g.Close(context.Background()); err != nil {
		t.Error(err)
	}
}

// The fields of Stats that the operators' pages name exist.
func TestOperationsNamesWhatThereIs(t *testing.T) {
	toRoot(t)
	page := ""
	for _, name := range operatorPages {
		page += read(t, name)
	}
	has := func(of any, path string) bool {
		t := reflect.TypeOf(of)
		for name := range strings.SplitSeq(path, ".") {
			f, ok := t.FieldByName(name)
			if !ok {
				return false
			}
			t = f.Type
		}
		return true
	}
	fields := regexp.MustCompile("`([NP])\\.([A-Za-z.]+)`").FindAllStringSubmatch(page, -1)
	for _, m := range fields {
		if m[1] == "N" && !has(tiered.NodeStats{}, m[2]) || m[1] == "P" && !has(tiered.PolicyStats{}, m[2]) {
			t.Errorf("there is no %s.%s", m[1], m[2])
		}
	}
	if len(fields) < 30 {
		t.Errorf("only %d fields are named: the pattern is wrong", len(fields))
	}
	for _, name := range []string{"Keys", "Evictions", "Standstills", "TraceDropped", "TracePanics", "Script", "Format", "Nodes"} {
		if !strings.Contains(page, "`"+name) && !strings.Contains(page, "Stats()."+name) || !has(tiered.Stats{}, name) {
			t.Errorf("Stats.%s is on none of the pages, or is none", name)
		}
	}
}

// headings are the names by which a page's headings are linked to.
func headings(page string) map[string]bool {
	all := map[string]bool{}
	for _, m := range regexp.MustCompile(`(?m)^#+ (.*)$`).FindAllStringSubmatch(page, -1) {
		name := strings.ReplaceAll(strings.ToLower(m[1]), " ", "-")
		all[regexp.MustCompile(`[^a-z0-9-]`).ReplaceAllString(name, "")] = true
	}
	return all
}

// redisSettings returns the settings of docs/redis.md.
func redisSettings(t *testing.T) map[string]string {
	t.Helper()
	settings := map[string]string{}
	for line := range strings.Lines(block(t, read(t, "docs/redis.md"), "conf")) {
		if line = strings.TrimSpace(line); line == "" || line[0] == '#' {
			continue
		}
		name, value, _ := strings.Cut(line, " ")
		settings[name] = strings.Trim(value, `"`)
	}
	return settings
}

// With what the page says for quotas, a Redis that was killed still has the count of a month.
func TestQuotaOutlastsRedis(t *testing.T) {
	toRoot(t)
	settings := redisSettings(t)
	more := regexp.MustCompile("For quotas write `(\\w+) (\\w+)`").FindStringSubmatch(read(t, "docs/redis.md"))
	if more == nil {
		t.Fatal("the page does not say how to keep quotas")
	}
	settings[more[1]] = more[2]
	var args []string
	for name, value := range settings {
		if !strings.HasPrefix(name, "min-replicas-") { // only with replicas
			args = append(args, "--"+name, value)
		}
	}
	server := redistest.Start(t, args...)
	left := func(take int64) int64 {
		store := fatal.Get(remote.Open(server.URL(), nil))(t)
		defer store.Close()
		g := fatal.Get(tiered.NewGroup(store, &tiered.Options{Budget: 5 * time.Second}))(t) // a busy machine is waited for
		defer g.Close(context.Background())
		d := fatal.Get(perMonth(g, nil, nil))(t).AllowN(t.Context(), "ann", take)
		if d.Reason != tiered.Granted {
			t.Fatalf("%v; %+v", d, g.Stats().Nodes)
		}
		return d.Remaining
	}
	left(4000)
	server.Restart() // kills it first
	if n := left(1); n > 5999 {
		t.Errorf("%d left after 4001 of 10000, and a kill", n)
	}
}

// A server that has the page's settings, and the limiter on it: without a replica it is told why
// nothing is granted, with one the limit holds, and full memory costs no bucket.
func TestOperationsRedisSettings(t *testing.T) {
	toRoot(t)
	args, settings := []string{"--repl-diskless-sync-delay", "0"}, redisSettings(t)
	for name, value := range settings {
		args = append(args, "--"+name, value)
	}
	primary := redistest.Start(t, args...)
	client := primary.Client()
	ctx := context.Background()
	for name, value := range settings {
		if size, ok := strings.CutSuffix(value, "gb"); ok {
			n := fatal.Get(strconv.Atoi(size))(t)
			value = strconv.Itoa(n << 30)
		}
		if has := client.ConfigGet(ctx, name).Val()[name]; has != value {
			t.Errorf("%s is %q, and the page says %q", name, has, value)
		}
	}
	if len(settings) < 12 {
		t.Errorf("only %d settings", len(settings))
	}

	store := fatal.Get(remote.Open(primary.URL(), nil))(t)
	defer store.Close()
	g := fatal.Get(tiered.NewGroup(store, nil))(t)
	defer g.Close(ctx)
	l := fatal.Get(g.NewLimiter(tiered.Policy{Name: "api", Limit: tiered.PerHour(100), FailMode: tiered.FailClosed}))(t)
	until := func(what string, ok func() bool) {
		t.Helper()
		for deadline := time.Now().Add(20 * time.Second); !ok(); time.Sleep(20 * time.Millisecond) { // a real server is waited for
			if time.Now().After(deadline) {
				t.Fatalf("not within 20 s: %s; %+v", what, g.Stats())
			}
		}
	}
	node := func() tiered.NodeStats { return g.Stats().Nodes[string(store.Node(store.Key("api", "k")))] }
	grants := func(key string) bool { return l.Allow(ctx, key).Reason == tiered.Granted }
	refuses := func(key string) func() bool {
		return func() bool {
			if grants(key) {
				t.Fatal("granted")
			}
			return node().Outages.Breaker == "open" && node().Outages.Cause == "cannot serve"
		}
	}

	until("a primary without a replica cannot serve", refuses("early"))
	redistest.Start(t, "--replicaof", "127.0.0.1", strconv.Itoa(primary.Port))
	until("a replica is there", func() bool {
		return strings.Contains(client.Info(ctx, "replication").Val(), "min_slaves_good_slaves:1")
	})
	until("a primary with a replica serves", func() bool { return grants("early") })
	admitted := 0
	for range 150 {
		if d := l.Allow(ctx, "k"); d.Allowed {
			admitted++
		} else if d.Reason == tiered.Unavailable {
			time.Sleep(time.Second) // the machine was busy elsewhere
		}
	}
	if admitted < 50 || admitted > 101 {
		t.Errorf("%d of 150 admitted at 100 per hour", admitted)
	}

	fatal.If(t, client.ConfigSet(ctx, "maxmemory", "1mb").Err())
	until("a full server cannot serve", refuses("late"))
	fatal.If(t, client.ConfigSet(ctx, "maxmemory", "1gb").Err())
	until("it has memory again", func() bool { return grants("late") })
	if n := node().Faults.StateLosses; n > 0 {
		t.Errorf("%d buckets were lost", n)
	}
	if admitted == 100 && grants("k") {
		t.Error("a used-up bucket has tokens again")
	}

	// And one that an operator deletes is counted: of a key that has no lease, which is what
	// frequent ones get.
	until("a key is asked for", func() bool { return grants("rare") })
	fatal.If(t, client.Del(ctx, store.Key("api", "rare")).Err())
	until("its bucket was deleted, and it is asked for again", func() bool { return grants("rare") })
	if n := node().Faults.StateLosses; n != 1 {
		t.Errorf("%d buckets were lost, want the one that was deleted", n)
	}
}
