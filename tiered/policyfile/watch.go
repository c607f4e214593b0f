package policyfile

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fsnotify/fsnotify"
	"go.yaml.in/yaml/v3"

	changes "github.com/tiered-limiter/tiered-limiter/internal/filechanges"
	"github.com/tiered-limiter/tiered-limiter/internal/strictyaml"
	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
	"github.com/tiered-limiter/tiered-limiter/tiered/atonce"
	"github.com/tiered-limiter/tiered-limiter/tiered/httplimit"
)

// DefaultPoll is how often a file is read if nothing tells that it has changed, as on a network's
// file system.
const DefaultPoll = 10 * time.Second

// Options are the options of [Watch]. A nil *Options, and each zero field, means the default.
type Options struct {
	// HTTP are the options of [Watcher.Middleware].
	HTTP *httplimit.Options

	// Poll is how often the file is read besides, at least 10 ms; 0 means DefaultPoll.
	Poll time.Duration

	// Logger gets a line for each reload; nil means [slog.Default].
	Logger *slog.Logger

	// Reloaded is called after each attempt to reload, with what was wrong. It runs on a goroutine
	// of the Watcher, or on that of Reload.
	Reloaded func(error)
}

// Watcher keeps a Group up to date with a file. Its methods may be called concurrently. The zero
// Watcher and a nil one have no file, and refuse all requests.
type Watcher struct {
	path    string
	group   *tiered.Group
	options Options
	done    chan struct{}
	closed  sync.Once
	tasks   sync.WaitGroup

	mu      sync.Mutex    // one reload at a time
	seen    changes.Files // guarded by mu
	last    draft         // guarded by mu
	content func(path string) (text []byte, written time.Time, err error)

	current atomic.Pointer[version]
}

// draft is what was read of the file, which may not be whole.
type draft struct {
	sum  [sha256.Size]byte // of the text or the error
	text []byte
	file *File
	err  error

	written time.Time // zero if it is not known
	quiet   time.Duration
	lost    []string // what the version in force has, and this one has not: it may be half written
	told    bool     // what is lost
}

// version is one version of the file with its middleware.
type version struct {
	text  []byte
	file  *File
	limit func(http.Handler) http.Handler
}

// Watch loads a file, makes its policies those of the Group, and does so again whenever the file
// changes: see [tiered.Group.SetPolicies]. [tiered.Stats] counts these reloads. It returns an error
// if the file cannot be read, or has a mistake, or the Group cannot have its policies, or an option
// is not valid; then the Group is as before. Later mistakes are logged, and change nothing. A file
// that was written just now is read again until it has stayed the same for 0.1 s, which is the
// longest that this takes.
//
// A file may be replaced, written in place, or reached through symbolic links that change, as those
// of a Kubernetes ConfigMap. A change takes effect within a second. One that takes something away,
// such as a policy, a rule or a field, or that leaves the last line without its end, may be half of
// a file that is being written: it takes effect after the file has stayed so for five seconds, and
// a WARN line says what is gone.
func Watch(path string, g *tiered.Group, o *Options) (*Watcher, error) {
	w, err := newWatcher(path, g, o)
	if err != nil {
		return nil, err
	}
	events := w.subscribe() // before it is read, so that no change is missed
	if err := w.start(); err != nil {
		if events != nil {
			_ = events.Close()
		}
		return nil, err
	}
	w.tasks.Go(func() { w.watch(events) })
	return w, nil
}

// newWatcher returns a Watcher that has read nothing yet.
func newWatcher(path string, g *tiered.Group, o *Options) (*Watcher, error) {
	w := &Watcher{path: path, group: g, done: make(chan struct{}), content: read}
	if o != nil {
		w.options = *o
	}
	if w.options.Poll == 0 {
		w.options.Poll = DefaultPoll
	}
	if w.options.Logger == nil {
		w.options.Logger = slog.Default()
	}
	var all []error
	if w.options.Poll < 10*time.Millisecond {
		all = append(all, fmt.Errorf("policyfile: Options.Poll is %v: must be at least 10ms", w.options.Poll))
	}
	switch {
	case g == nil:
		all = append(all, errors.New("policyfile: the Group is nil: must be set"))
	case g.Stats().Format == "":
		all = append(all, errors.New("policyfile: the Group is zero: must be made by tiered.NewGroup"))
	}
	if w.options.HTTP != nil {
		all = append(all, checkOptions(w.options.HTTP))
	}
	return w, errors.Join(all...)
}

// checkOptions finds what is wrong with the options of all middleware, before the Group has
// changed.
func checkOptions(o *httplimit.Options) error {
	l, err := tiered.New(remote.NewMemory(), tiered.Policy{Name: "none", Limit: tiered.Unlimited()}, &tiered.Options{
		Logger: slog.New(slog.DiscardHandler), // it is no Redis of the user's
	})
	if err != nil {
		return err
	}
	defer func() { _ = l.Group().Close(context.Background()) }()
	own := *o
	own.Plan = nil // it is for policies of the file
	_, err = httplimit.New([]httplimit.Rule{{Limiter: l, Key: httplimit.RemoteIP(), Missing: httplimit.Refuse}}, &own)
	return err
}

// isZero reports whether w is nil or was not made by Watch.
func (w *Watcher) isZero() bool { return w == nil || w.current.Load() == nil }

// Close stops the reloads. The policies stay.
func (w *Watcher) Close() {
	if w.isZero() {
		return
	}
	w.closed.Do(func() { close(w.done) })
	w.tasks.Wait()
}

// File returns the latest version of the file that is in force. Do not change it.
func (w *Watcher) File() *File {
	if w.isZero() {
		return nil
	}
	return w.current.Load().file
}

// Group returns the Group that has the file's policies.
func (w *Watcher) Group() *tiered.Group {
	if w.isZero() {
		return nil
	}
	return w.group
}

// Reload reads the file now, whether it has changed or not, and uses it at once. It returns what is
// wrong with it; then nothing has changed.
func (w *Watcher) Reload() error {
	if w.isZero() {
		return errors.New("policyfile: the Watcher is nil or zero: must be made by Watch")
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	err := w.load()
	w.report(err)
	return err
}

// start reads the file for the first time, and uses it.
func (w *Watcher) start() error {
	var r draft
	w.seen.Start(context.Background(), func() ([sha256.Size]byte, time.Time) {
		r = w.read()
		return r.sum, r.written
	})
	return w.use(&r)
}

// load reads the file and uses it.
func (w *Watcher) load() error {
	r := w.read()
	w.seen.Use(r.sum)
	w.last = draft{}
	return w.use(&r)
}

// read reads the file. What it says is not parsed yet.
func (w *Watcher) read() (r draft) {
	r.text, r.written, r.err = w.content(w.path)
	r.sum = sha256.Sum256(fmt.Appendf(nil, "%v\n%s", r.err, r.text))
	return r
}

// parse parses what was read, and finds out how long it must stay so before it is used.
func (w *Watcher) parse(r *draft) {
	r.quiet = changes.Quiet
	if r.err != nil || r.file != nil {
		return
	}
	defer changes.Survive(&r.err)
	if r.file, r.err = Parse(w.path, r.text); r.err != nil {
		return
	}
	if now := w.current.Load(); now != nil {
		r.lost = lost(now.text, r.text)
	}
	if !changes.IsEnded(r.text) {
		r.lost = append(r.lost, "the end of its last line")
	}
	if len(r.lost) > 0 {
		r.quiet = changes.QuietLonger
	}
}

// use makes the Group that of the file. All that a file can make fail is tried before the Group
// changes.
func (w *Watcher) use(r *draft) (err error) {
	defer changes.Survive(&err)
	if w.parse(r); r.err != nil {
		return r.err
	}
	if err := w.group.SetPolicies(r.file.Policies); err != nil {
		return r.file.refused(w.path, err)
	}
	if err := atonce.SetPolicies(w.group, r.file.AtOnce); err != nil {
		return err
	}
	limit, err := r.file.Middleware(w.group, w.options.HTTP)
	if err != nil {
		return err
	}
	w.current.Store(&version{r.text, r.file, limit})
	return nil
}

// refused names all that a Group has against the policies of the file, each with its place.
func (f *File) refused(name string, err error) error {
	r := strictyaml.Reader{Name: name}
	for _, e := range split(err) {
		at, of := map[string]*yaml.Node{"": {}}, ""
		for _, p := range f.read {
			if prefix := fmt.Sprintf("policy %.80q: ", p.Name); strings.HasPrefix(e.Error(), prefix) {
				at, of, e = p.at, prefix, errors.Unwrap(e)
				break
			}
		}
		for _, one := range split(e) {
			n := at[""]
			if m := ofField.FindStringSubmatch(one.Error()); m != nil {
				n = cmp.Or(at[m[1]], at[m[2]], n)
			}
			text := plain(one)
			if strings.Contains(text, "must stay") {
				text += ": give the policy another name, or restart"
			}
			r.Bad(n, "%s%s", of, text)
		}
	}
	r.Sort()
	return r.Err()
}

// report counts and logs a reload.
func (w *Watcher) report(err error) {
	if w.group.CountReload(err); err != nil {
		w.options.Logger.Error("policy file not reloaded: the policies of before stay in force", "file", w.path, "error", err)
	} else {
		w.options.Logger.Info("policy file reloaded", "file", w.path)
	}
	if w.options.Reloaded != nil {
		w.options.Reloaded(err)
	}
}

// subscribe returns the events of the file's directory, or nil if there are none to be had.
func (w *Watcher) subscribe() *fsnotify.Watcher {
	events, err := fsnotify.NewWatcher()
	if err == nil {
		err = events.Add(filepath.Dir(w.path))
	}
	if err != nil {
		if events != nil {
			_ = events.Close()
		}
		w.options.Logger.Warn("policy file is not watched, only polled", "file", w.path, "error", err)
		return nil
	}
	return events
}

// watch reloads the file when it has changed, until Close.
func (w *Watcher) watch(events *fsnotify.Watcher) {
	var changed chan fsnotify.Event
	var failed chan error
	if events != nil {
		defer func() { _ = events.Close() }()
		changed, failed = events.Events, events.Errors
	}
	poll := time.NewTicker(w.options.Poll)
	defer poll.Stop()
	for {
		select {
		case <-w.done:
			return
		case <-changed:
		case <-failed: // events were lost
		case <-poll.C:
		}
		w.check()
	}
}

// check reads the file, again until it stays the same if it is new.
func (w *Watcher) check() {
	for w.look() {
		select {
		case <-w.done:
			return
		case <-time.After(changes.Quiet):
		}
	}
}

// look reads the file, and uses it if it is new and has been quiet. It reports whether it has to be
// read again soon.
func (w *Watcher) look() (again bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	r := w.read()
	is := w.seen.Add(r.sum, time.Now(), w.last.quiet) // the first reading of a text never agrees, whatever quiet is
	switch {
	case is == changes.None:
		return false
	case r.sum != w.last.sum:
		w.parse(&r)
		w.last = r
		return true
	case is == changes.Changing:
		if len(w.last.lost) > 0 && !w.last.told {
			w.last.told = true
			w.options.Logger.Warn("policy file has less than before: it is used if it stays so, and may be half written",
				"file", w.path, "for", w.last.quiet, "gone", strings.Join(w.last.lost, ", "))
		}
		return true
	}
	r, w.last = w.last, draft{}
	w.report(w.use(&r))
	return false
}

// Middleware limits requests by the routes of the file, of its latest version.
func (w *Watcher) Middleware(next http.Handler) http.Handler {
	type built struct {
		of      *version
		handler http.Handler
	}
	var current atomic.Pointer[built]
	return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if w.isZero() {
			httplimit.WriteRefusal(rw, tiered.Decision{})
			return
		}
		b, of := current.Load(), w.current.Load()
		if b == nil || b.of != of {
			b = &built{of, of.limit(next)}
			current.Store(b)
		}
		b.handler.ServeHTTP(rw, r)
	})
}
