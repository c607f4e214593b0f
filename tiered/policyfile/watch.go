package policyfile

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fsnotify/fsnotify"

	"github.com/tiered-limiter/tiered-limiter/tiered"
	"github.com/tiered-limiter/tiered-limiter/tiered/httplimit"
)

const (
	// DefaultPoll is how often a file is read if nothing tells that it has changed, as on a network's file system.
	DefaultPoll = 10 * time.Second

	// settles is how long a file must stay the same before it is read as whole: an editor writes it in parts.
	settles = 100 * time.Millisecond
)

// Options are the options of [Watch]. A nil *Options, and each zero field, means the default.
type Options struct {
	// HTTP are the options of [Watcher.Middleware].
	HTTP *httplimit.Options

	// Poll is how often the file is read besides, at least 10 ms; 0 means DefaultPoll.
	Poll time.Duration

	// Logger gets a line for each reload; nil means [slog.Default].
	Logger *slog.Logger

	// Reloaded is called after each attempt to reload, with what was wrong. It runs on a goroutine of the Watcher, or on
	// that of Reload.
	Reloaded func(error)
}

// Watcher keeps a Group up to date with a file. Its methods may be called concurrently. The zero Watcher and a nil one
// have no file, and refuse all requests.
type Watcher struct {
	path    string
	group   *tiered.Group
	options Options
	done    chan struct{}
	closed  sync.Once
	tasks   sync.WaitGroup

	mu   sync.Mutex // one reload at a time
	seen []byte     // the content that was read last, right or wrong; guarded by mu

	current atomic.Pointer[version]
}

// version is one version of the file with its middleware.
type version struct {
	file  *File
	limit func(http.Handler) http.Handler
}

// Watch loads a file, makes its policies those of the Group, and does so again whenever the file changes: see
// [tiered.Group.SetPolicies]. [tiered.Stats] counts these reloads. It returns an error if the file cannot be read, or
// has a mistake, or the Group cannot have its policies; then the Group is as before. Later mistakes are logged, and
// change nothing.
//
// A file may be replaced, written in place, or reached through symbolic links that change, as those of a Kubernetes
// ConfigMap. A change takes effect within a second.
func Watch(path string, g *tiered.Group, o *Options) (*Watcher, error) {
	w := &Watcher{path: path, group: g, done: make(chan struct{})}
	if o != nil {
		w.options = *o
	}
	if w.options.Poll == 0 {
		w.options.Poll = DefaultPoll
	}
	if w.options.Logger == nil {
		w.options.Logger = slog.Default()
	}
	switch {
	case w.options.Poll < 10*time.Millisecond:
		return nil, fmt.Errorf("policyfile: Options.Poll is %v: must be at least 10ms", w.options.Poll)
	case g == nil:
		return nil, errors.New("policyfile: the Group is nil: must be set")
	case g.Stats().Format == "":
		return nil, errors.New("policyfile: the Group is zero: must be made by tiered.NewGroup")
	}
	data, err := read(path)
	if err == nil {
		err = w.apply(data)
	}
	if err != nil {
		return nil, err
	}
	events := w.subscribe()
	w.tasks.Go(func() { w.watch(events) })
	return w, nil
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

// Reload reads the file now, whether it has changed or not. It returns what is wrong with it; then nothing has changed.
func (w *Watcher) Reload() error {
	if w.isZero() {
		return errors.New("policyfile: the Watcher is nil or zero: must be made by Watch")
	}
	data, err := read(w.path)
	w.mu.Lock()
	defer w.mu.Unlock()
	if err == nil {
		err = w.apply(data)
	}
	w.report(err)
	return err
}

// apply makes the Group that of the file's content.
func (w *Watcher) apply(data []byte) error {
	w.seen = data
	f, err := Parse(w.path, data)
	if err != nil {
		return err
	}
	if err := w.group.SetPolicies(f.Policies); err != nil {
		return fmt.Errorf("policyfile: %s: %w: give the policy another name, or restart", w.path, err)
	}
	limit, err := f.Middleware(w.group, w.options.HTTP)
	if err != nil {
		return err
	}
	w.current.Store(&version{f, limit})
	return nil
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

// check reloads the file if its content is new and stays the same for a moment.
func (w *Watcher) check() {
	var before []byte
	for {
		data, err := read(w.path)
		w.mu.Lock()
		same := w.seen != nil && bytes.Equal(data, w.seen)
		w.mu.Unlock()
		switch {
		case err != nil:
			w.mu.Lock()
			if w.seen != nil { // it is told once
				w.seen = nil
				w.report(err)
			}
			w.mu.Unlock()
			return
		case same:
			return
		case before != nil && bytes.Equal(data, before):
			w.mu.Lock()
			w.report(w.apply(data))
			w.mu.Unlock()
			return
		}
		before = data
		select {
		case <-w.done:
			return
		case <-time.After(settles):
		}
	}
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
