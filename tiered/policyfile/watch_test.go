package policyfile_test

import (
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/fatal"
	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/testgroup"
	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
	"github.com/tiered-limiter/tiered-limiter/tiered/policyfile"
)

// folder is a directory with a policy file that is watched.
type folder struct {
	*policyfile.Watcher
	t        *testing.T
	dir      string
	group    *tiered.Group
	reloaded chan error
	log      strings.Builder
}

const first = "version: 1\npolicies: [{name: a, limit: 10/h}, {name: b, limit: 5/s}]\n" +
	"http: [{match: /a/, limits: [{policy: a, key: header X-User}]}]\n"

// watching starts to watch a file with the text above. Without poll, changes are found by events.
func watching(t *testing.T, path string, poll time.Duration) *folder {
	f := &folder{t: t, dir: filepath.Dir(path), reloaded: make(chan error, 100)}
	f.group = testgroup.New(t, remote.NewMemory(), nil)
	f.Watcher = fatal.Get(policyfile.Watch(path, f.group, &policyfile.Options{
		Poll: poll, Logger: slog.New(slog.NewTextHandler(&f.log, nil)), Reloaded: func(err error) { f.reloaded <- err },
	}))(t)
	t.Cleanup(f.Close)
	return f
}

func write(t *testing.T, path, text string) {
	t.Helper()
	fatal.If(t, os.WriteFile(path, []byte(text), 0o600))
}

// wait waits for a reload. A real file system and real time are at work, so it is patient.
func (f *folder) wait() error {
	f.t.Helper()
	select {
	case err := <-f.reloaded:
		return err
	case <-time.After(time.Minute):
		f.t.Fatal("no reload within a minute")
		return nil
	}
}

// limit is that of a policy of the Group, as text.
func (f *folder) limit(name string) string {
	l, ok := f.group.Limiter(name)
	if !ok {
		return "none"
	}
	return l.Policy().Limit.String()
}

// Where no events are to be had the log says so, and the file is polled. Here the way to it goes up
// from behind a link, so that its folder by name does not exist.
func TestWatchWithoutEvents(t *testing.T) {
	dir := t.TempDir()
	fatal.If(t, os.MkdirAll(dir+"/a/b/c", 0o700))
	fatal.If(t, os.Symlink(dir+"/a/b/c", dir+"/link"))
	fatal.If(t, os.Mkdir(dir+"/a/x", 0o700))
	path := dir + "/link/../../x/p.yaml" // which is a/x/p.yaml
	write(t, path, first)
	f := watching(t, path, 20*time.Millisecond)
	write(t, path, strings.Replace(first, "10/h", "20/h", 1))
	if err := f.wait(); err != nil || f.limit("a") != "20/h" {
		t.Errorf("%v, %s", err, f.limit("a"))
	}
	f.Close()
	if log := f.log.String(); !strings.Contains(log, "policy file is not watched, only polled") {
		t.Errorf("the log says %s", log)
	}
}

// However a file is changed, the Group follows. A mistake changes nothing.
func TestWatch(t *testing.T) {
	for name, poll := range map[string]time.Duration{"by events": time.Hour, "by polls": 20 * time.Millisecond} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "policies.yaml")
			write(t, path, first)
			f := watching(t, path, poll)
			write(t, path, strings.Replace(first, "10/h", "20/h", 1)) // in place
			if err := f.wait(); err != nil || f.limit("a") != "20/h" {
				t.Errorf("in place: %v, %s", err, f.limit("a"))
			}
			write(t, path, first[:40]) // half of it
			if err := f.wait(); err == nil || f.limit("a") != "20/h" || f.limit("b") != "5/s" {
				t.Errorf("half written: %v, %s, %s", err, f.limit("a"), f.limit("b"))
			}
			write(t, path+".new", strings.Replace(first, "10/h", "30/h", 1))
			fatal.If(t, os.Rename(path+".new", path))
			if err := f.wait(); err != nil || f.limit("a") != "30/h" {
				t.Errorf("replaced: %v, %s", err, f.limit("a"))
			}
			fatal.If(t, os.Remove(path))
			if err := f.wait(); err == nil || f.limit("a") != "30/h" {
				t.Errorf("removed: %v, %s", err, f.limit("a"))
			}
			write(t, path, strings.Replace(first, "10/h", "40/h", 1))
			if err := f.wait(); err != nil || f.limit("a") != "40/h" {
				t.Errorf("made anew: %v, %s", err, f.limit("a"))
			}
			if s := f.group.Stats().Reloads; s.Applied != 3 || s.Failed != 2 || s.Err != nil {
				t.Errorf("%+v", s)
			}
			f.Close()
			if n := strings.Count(f.log.String(), "policies of before stay in force"); n != 2 {
				t.Errorf("%d lines about mistakes:\n%s", n, f.log.String())
			}
		})
	}
}

// A ConfigMap of Kubernetes is a directory of links through a link that is replaced.
func TestWatchConfigMap(t *testing.T) {
	dir := t.TempDir()
	version := func(name, text string) {
		fatal.If(t, os.Mkdir(filepath.Join(dir, name), 0o700))
		write(t, filepath.Join(dir, name, "policies.yaml"), text)
		fatal.If(t, os.Symlink(name, filepath.Join(dir, "..new")))
		fatal.If(t, os.Rename(filepath.Join(dir, "..new"), filepath.Join(dir, "..data")))
	}
	version("..1", first)
	path := filepath.Join(dir, "policies.yaml")
	fatal.If(t, os.Symlink(filepath.Join("..data", "policies.yaml"), path))
	f := watching(t, path, time.Hour)
	version("..2", strings.Replace(first, "10/h", "20/h", 1))
	if err := f.wait(); err != nil || f.limit("a") != "20/h" {
		t.Errorf("%v, %s", err, f.limit("a"))
	}
}

// What cannot change at run time is refused, with the way round it, and nothing else changes.
func TestReloadOfWhatCannotChange(t *testing.T) {
	path := filepath.Join(t.TempDir(), "policies.yaml")
	write(t, path, first)
	f := watching(t, path, time.Hour)
	f.Close() // only Reload from here on
	const text = `version: 1
policies:
  - {name: new, limit: 1/s}
  - {name: b, limit: 6/s and 9/h}
  - {name: a, limit: 10/h, algorithm: sliding window}
http: [{match: /a/, limits: [{policy: a, key: header X-User}]}]
`
	write(t, path, text)
	const why = ", because the buckets in Redis count by it: give the policy another name, or restart"
	want := path + `:4:22: policy "b": Policy.Limit is 2 limits: must stay 1 limit` + why + "\n" +
		path + `:5:39: policy "a": Policy.Algorithm is sliding window: must stay token bucket` + why
	if err := f.Reload(); err == nil || err.Error() != want || f.limit("b") != "5/s" || f.limit("new") != "none" {
		t.Errorf("%v, want\n%s\nlimit %s", err, want, f.limit("b"))
	}
	other := strings.NewReplacer("name: a", "name: a2", "policy: a", "policy: a2", " and 9/h", "").Replace(text)
	write(t, path, other)
	if err := f.Reload(); err != nil || f.limit("a2") != "10/h" || f.limit("b") != "6/s" {
		t.Errorf("%v, %s, %s", err, f.limit("a2"), f.limit("b"))
	}
}

// The middleware limits by the routes of the latest version.
func TestMiddlewareFollows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		file := strings.Replace(first, "10/h", "2/h", 1)
		w := watchText(t, file)
		passed := 0
		h := w.Middleware(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { passed++ }))
		for i, c := range []struct {
			path, user string
			want       int
		}{
			{"/a/x", "ann", ok},
			{"/a/x", "", http.StatusBadRequest},
			{"/a/x", "ann", ok},
			{"/a/x", "ann", http.StatusTooManyRequests},
			{"/b", "ann", ok},                         // no route
			{"/a", "ann", http.StatusTooManyRequests}, // the mux would redirect, and next may not
			{"reload", "", 0},
			{"/a/x", "ann", ok}, // a route of before
			{"/ann/b", "ann", http.StatusTooManyRequests},
		} {
			if c.path == "reload" {
				w.put(strings.Replace(file, "match: /a/", `match: "/{user}/b"`, 1))
				fatal.If(t, w.Reload())
			} else if code := ask(h, http.MethodGet, c.path, "X-User", c.user); code != c.want {
				t.Errorf("request %d of %s: %d, want %d", i, c.path, code, c.want)
			}
		}
		if passed != 4 {
			t.Errorf("%d requests passed", passed)
		}
	})
}

func TestWatchMistakes(t *testing.T) {
	g := testgroup.New(t, remote.NewMemory(), nil)
	path := filepath.Join(t.TempDir(), "p.yaml")
	write(t, path, first)
	for want, watch := range map[string]func() error{
		"no such file": func() error {
			_, err := policyfile.Watch(path+"x", g, nil)
			return err
		},
		"Options.Poll is 1ms: must be at least 10ms": func() error {
			_, err := policyfile.Watch(path, g, &policyfile.Options{Poll: time.Millisecond})
			return err
		},
		"the Group has no policy \"a\"": func() error {
			f, err := policyfile.Load(path)
			if err == nil {
				_, err = f.Middleware(g, nil)
			}
			return err
		},
	} {
		if err := watch(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
	if n := len(policiesOf(g)); n != 0 {
		t.Errorf("the Group has %d policies", n)
	}
}
