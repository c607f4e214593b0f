package policyfile_test

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	changes "github.com/tiered-limiter/tiered-limiter/internal/filechanges"
	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/fatal"
	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/testgroup"
	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
	"github.com/tiered-limiter/tiered-limiter/tiered/httplimit"
	"github.com/tiered-limiter/tiered-limiter/tiered/policyfile"
)

// desk is a file that is watched in virtual time.
type desk struct {
	*policyfile.Watcher
	mu      sync.Mutex
	content func() ([]byte, error)
	lines   bytes.Buffer
	reports []string // what was wrong, if anything
}

// put makes the file say this from now on.
func (d *desk) put(text string) { d.say(func() ([]byte, error) { return []byte(text), nil }) }

func (d *desk) say(content func() ([]byte, error)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.content = content
}

// Write takes lines of the log.
func (d *desk) Write(line []byte) (int, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.lines.Write(line)
}

// reloads are the reports of all reloads, and log is what was logged.
func (d *desk) reloads() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.reports)
}

func (d *desk) log() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.lines.String()
}

// watchText watches a file with this text. It must be in a bubble.
func watchText(t *testing.T, text string) *desk {
	t.Helper()
	d := new(desk)
	d.put(text)
	d.Watcher = watchContent(t, func() ([]byte, time.Time, error) {
		d.mu.Lock()
		defer d.mu.Unlock()
		text, err := d.content()
		return text, time.Time{}, err
	}, &policyfile.Options{
		Poll: 200 * time.Millisecond, Logger: slog.New(slog.NewTextHandler(d, nil)),
		Reloaded: func(err error) {
			d.mu.Lock()
			defer d.mu.Unlock()
			d.reports = append(d.reports, fmt.Sprint(err))
		},
	})
	return d
}

// watchContent watches what content returns, for a Group of its own.
func watchContent(t *testing.T, content func() ([]byte, time.Time, error), o *policyfile.Options) *policyfile.Watcher {
	t.Helper()
	g := testgroup.New(t, remote.NewMemory(), nil)
	w := fatal.Get(policyfile.WatchContent("p.yaml", g, o, content))(t)
	t.Cleanup(w.Close)
	return w
}

// after lets time pass, and returns the names of the policies and of the rules that are in force
// then.
func (d *desk) after(pause time.Duration) string {
	time.Sleep(pause)
	synctest.Wait()
	var all []string
	for _, p := range policiesOf(d.Group()) {
		all = append(all, p.Name)
	}
	slices.Sort(all)
	for _, r := range d.File().HTTP {
		all = append(all, r.Match)
	}
	return strings.Join(all, " ")
}

const twoPolicies = "version: 1\npolicies:\n  - {name: a, limit: 100/h}\n  - {name: b, limit: 100/h}\n" +
	"http:\n  - match: /\n    limits: [{policy: a, key: ip}]\n"

// A writer that pauses leaves half of a file, which may be a valid one with less: fewer policies,
// no rules. It is not used before the writer has paused for five seconds, and a line says what
// would be gone.
func TestHalfWrittenFileIsNotUsed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := watchText(t, twoPolicies)
		half := twoPolicies[:strings.Index(twoPolicies, "  - {name: b")]
		d.put(half)
		if got := d.after(4 * time.Second); got != "a b /" {
			t.Errorf("half of the file is in force: %s", got)
		}
		if n := strings.Count(d.log(), `level=WARN`); n != 1 ||
			!strings.Contains(d.log(), `gone="policies[\"b\"], http"`) {
			t.Errorf("the log says\n%s", d.log())
		}
		d.put(twoPolicies) // the rest arrives
		if got := d.after(10 * time.Second); got != "a b /" || len(d.reloads()) != 0 {
			t.Errorf("%s is in force, after reloads %q", got, d.reloads())
		}
		d.put(half) // a person means it
		if got := d.after(4 * time.Second); got != "a b /" {
			t.Errorf("it is in force too early: %s", got)
		}
		if got := d.after(2 * time.Second); got != "a" || !slices.Equal(d.reloads(), []string{"<nil>"}) {
			t.Errorf("a file that has less on purpose is not used: %s, %q", got, d.reloads())
		}
		d.put(twoPolicies) // more than before is used soon
		if got := d.after(500 * time.Millisecond); got != "a b /" {
			t.Errorf("a file with more is not used: %s", got)
		}
		d.put(half)
		time.Sleep(time.Second)
		if err := d.Reload(); err != nil || d.after(0) != "a" { // who asks for it gets it
			t.Errorf("%v, %s", err, d.after(0))
		}
	})
}

// Wherever a file is cut while it is written anew, what was in force stays, for as long as its
// writer does not pause for five seconds.
func TestFileCutAtEachByte(t *testing.T) {
	whole := fatal.Get(os.ReadFile("testdata/whole.yaml"))(t)
	policies, rules, _ := bytes.Cut(whole, []byte("http:\n"))
	for name, text := range map[string]string{
		"as people write it": string(whole),
		"rules first":        "http:\n" + string(rules) + string(policies),
		"no newline": strings.TrimSpace(twoPolicies) + "\n  - {match: /x, limits: [{policy: b, key: ip, cost: 22}]}\n" +
			"grpc:\n  - match: /\n    limits:\n      - policy: a\n        key: ip\n        cost: 22",
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := watchText(t, text)
				whole := d.File()
				for cut := range strings.TrimSuffix(text, "\n") {
					if _, err := policyfile.Parse("", []byte(text[:cut])); err != nil {
						continue // it changes nothing
					}
					d.put(text[:cut])
					time.Sleep(time.Second)
					synctest.Wait()
					if d.File() != whole {
						t.Fatalf("the first %d bytes are in force: %q", cut, text[max(0, cut-40):cut])
					}
					d.put(text)
					time.Sleep(500 * time.Millisecond)
				}
				if ended := strings.HasSuffix(text, "\n"); !ended && !strings.Contains(d.log(), `gone="the end of its last line"`) {
					t.Errorf("the log says\n%s", d.log())
				}
			})
		})
	}
}

// What is between two readings that agree does not matter, and an error is told once.
func TestReadingsOfAFile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := watchText(t, twoPolicies)
		more := strings.Replace(twoPolicies, "100/h", "200/h", 1)
		n := 0
		d.say(func() ([]byte, error) { // it changes with each reading
			n++
			return []byte(strings.Repeat("#\n", n) + more), nil
		})
		if d.after(3 * time.Second); len(d.reloads()) != 0 {
			t.Errorf("a file that changes all the time was used: %q", d.reloads())
		}
		d.say(func() ([]byte, error) { return nil, errors.New("gone") })
		if d.after(time.Minute); !slices.Equal(d.reloads(), []string{"gone"}) {
			t.Errorf("reloads: %q", d.reloads())
		}
		d.put(twoPolicies) // as is in force: what was wrong is over
		if d.after(time.Minute); !slices.Equal(d.reloads(), []string{"gone", "<nil>"}) {
			t.Errorf("reloads: %q", d.reloads())
		}
		d.put("version: 2\n")
		if d.after(time.Minute); len(d.reloads()) != 3 || !strings.Contains(d.reloads()[2], "version") {
			t.Errorf("reloads: %q", d.reloads())
		}
	})
}

// Options that are not valid change nothing, whether the file has rules or not, and hide no other
// mistake.
func TestWatchThatFailsLeavesTheGroup(t *testing.T) {
	for _, text := range []string{twoPolicies, twoPolicies[:strings.Index(twoPolicies, "http")]} {
		g := testgroup.New(t, remote.NewMemory(), nil)
		fatal.Get(g.NewLimiter(tiered.Policy{Name: "old", Limit: tiered.PerSecond(5)}))(t)
		path := t.TempDir() + "/p.yaml"
		fatal.If(t, os.WriteFile(path, []byte(text), 0o600))
		_, err := policyfile.Watch(path, g, &policyfile.Options{HTTP: &httplimit.Options{Jitter: -1}, Poll: 1})
		for _, want := range []string{"Options.Jitter is", "Options.Poll is"} {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%v, want %s", err, want)
			}
		}
		if _, ok := g.Limiter("old"); !ok || len(policiesOf(g)) != 1 {
			t.Errorf("the Group has changed: %v", policiesOf(g))
		}
	}
}

// Half a file is not used at the start either, whether it is valid or not, if its writer goes on
// within 0.1 s. The start takes no longer for it, and no time at all if the file is older.
func TestHalfWrittenFileAtTheStart(t *testing.T) {
	half, broken := twoPolicies[:strings.Index(twoPolicies, "  - {name: b")], twoPolicies[:len(twoPolicies)-5]
	for name, c := range map[string]struct {
		texts []string // each for 40 ms
		age   time.Duration
		took  time.Duration
	}{
		"whole, old":            {[]string{twoPolicies}, time.Hour, 0},
		"whole, new":            {[]string{twoPolicies}, 0, changes.Quiet},
		"whole, 60 ms old":      {[]string{twoPolicies}, 60 * time.Millisecond, 50 * time.Millisecond},
		"of the future":         {[]string{twoPolicies}, -time.Hour, changes.Quiet},
		"half, then whole":      {[]string{half, twoPolicies}, 0, changes.Quiet},
		"broken, then whole":    {[]string{broken, twoPolicies}, 0, changes.Quiet},
		"empty, half and whole": {[]string{"", half, twoPolicies}, 0, changes.Quiet},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				begin := time.Now()
				w := watchContent(t, func() ([]byte, time.Time, error) {
					i := min(int(time.Since(begin)/(40*time.Millisecond)), len(c.texts)-1)
					return []byte(c.texts[i]), begin.Add(time.Duration(i)*40*time.Millisecond - c.age), nil
				}, nil)
				if took := time.Since(begin); took != c.took || w.File().String() != parse(t, twoPolicies).String() {
					t.Errorf("after %v, want %v, in force is %s", took, c.took, w.File())
				}
			})
		})
	}
}

// Lost things are named once, by the outermost.
func TestLost(t *testing.T) {
	var ten, names string
	for i := range 10 {
		ten += fmt.Sprintf(", {name: m%d, limit: 1/s}", i)
		names += fmt.Sprintf(`, policies["m%d"]`, i)
	}
	const c = ", {limit: 1/s, keys: {x: 1/s, y: 2/s}, name: c}"
	const b = ", {policy: b, key: ip, missing: next}, {policy: b, key: method}"
	const p = ", {policy: z, at_once: p, key: ip}, {at_once: q, key: ip}"
	file := "version: 1\npolicies: [{name: a, limit: 9/s and 8/h and 9/d}, {name: b, limit: 1/s}, {name: y, limit: 5/s}, {name: z, limit: 5/s}" + ten + c + "]\n" +
		"http: [{match: /, limits: [{policy: a, key: [ip, method], cost: 2}" + b + p + "]}]\n" +
		"at_once: [{name: p, places: 1}, {name: q, places: 1}, {name: r, places: 1}]\n"
	for _, c := range []struct{ from, to, want string }{
		{"1/s", "3/s", ""},
		{c, "", `policies["c"]`},
		{ten, "", names[2:]},
		{ten + c, "", names[2:] + ", and 1 more"},
		{"name: c", "name: d", `policies["c"]`},
		{", y: 2/s", "", `1 of policies["c"].keys`},
		{" keys: {x: 1/s, y: 2/s},", "", `policies["c"].keys`},
		{", cost: 2", "", `http["/"].limits["a"].cost`},
		{"[ip, method]", "ip", `http["/"].limits["a"].key`},
		{b, "", `http["/"].limits["b"], http["/"].limits["b" 2]`},
		{b, ", {policy: b, key: ip}", `http["/"].limits["b"].missing, http["/"].limits["b" 2]`},
		{"match: /,", "match: /x,", `http["/"]`},
		{p, "", `http["/"].limits["z"], http["/"].limits["q"]`},
		{"at_once: p, ", "", `http["/"].limits["z"].at_once`},
		{"policy: z, ", "", `http["/"].limits["z"].policy`},
		{"{policy: a, key", "{policy: a, at_once: r, key", ""},
		{"at_once: q, key", "policy: y, at_once: q, key", ""},
	} {
		synctest.Test(t, func(t *testing.T) {
			d := watchText(t, file)
			d.put(strings.Replace(file, c.from, c.to, 1))
			d.after(4 * time.Second)
			if c.want != "" {
				c.want = "gone=" + strconv.Quote(c.want)
			}
			if got := d.log(); !strings.Contains(got, c.want) || strings.Contains(got, "gone=") != (c.want != "") {
				t.Errorf("without %q, the log is %s, want %s", c.from, got, c.want)
			}
		})
	}
}
