package main

import (
	"context"
	"crypto/sha256"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/tiered-limiter/tiered-limiter/contrib/rls"
	"github.com/tiered-limiter/tiered-limiter/internal/filechanges"
)

// draft is what was read of the configuration, which may not be whole.
type draft struct {
	sum     [sha256.Size]byte // of all files, or of the error
	written time.Time         // the youngest of them
	files   []rls.File        // until they are parsed
	config  *rls.Config
	err     error

	quiet time.Duration
	lacks int  // rules that are in force
	told  bool // that it waits for that
}

// start reads the configuration for the first time, and uses it.
func (v *server) start(ctx context.Context) {
	var r draft
	func() {
		defer filechanges.Survive(&r.err)
		v.config.Start(ctx, func() ([sha256.Size]byte, time.Time) {
			r = v.read()
			return r.sum, r.written
		})
		v.parse(&r)
	}()
	v.use(ctx, &r)
}

// reload uses the configuration if its files have changed, and have been quiet.
func (v *server) reload(ctx context.Context) {
	var r draft
	var failed error
	is := filechanges.Changed
	func() {
		defer filechanges.Survive(&failed)
		r = v.read()
		is = v.config.Add(r.sum, time.Now(), v.last.quiet) // the first reading never agrees, whatever quiet is
	}()
	switch {
	case failed != nil:
		r = draft{err: failed}
	case is == filechanges.None:
		v.last = draft{}
		return
	case r.sum != v.last.sum:
		v.parse(&r)
		v.last = r
		return
	case is == filechanges.Changing:
		if !v.last.told {
			v.last.told = true
			v.log.Warn("the configuration has less than before: it is used if it stays so, and may be half written",
				"for", v.last.quiet, "rules", v.last.lacks)
		}
		return
	default:
		r, v.last = v.last, draft{}
	}
	v.use(ctx, &r)
}

// read reads the files. What they say is not parsed yet.
func (v *server) read() (r draft) {
	r.files, r.err = v.readFiles(v.directory(), v.Merge)
	h := sha256.New()
	fmt.Fprint(h, r.err)
	for _, f := range r.files {
		fmt.Fprintf(h, "%q %d ", f.Name, len(f.Text))
		h.Write(f.Text)
		r.written = later(r.written, f.Name)
	}
	r.sum = [sha256.Size]byte(h.Sum(nil))
	return r
}

// parse parses what was read, and finds out how long it must stay so before it is used. Whatever
// happens to it there is a mistake of the files: a panic would end all replicas at once, and none
// would start again.
func (v *server) parse(r *draft) {
	files := r.files
	if r.files = nil; r.err != nil {
		return
	}
	defer collectGarbage(false)
	defer filechanges.Survive(&r.err)
	collectGarbage(true)
	if r.config, r.err = rls.Parse(files...); r.err != nil {
		return
	}
	r.lacks = r.config.Lacks(v.service.Config())
	if r.lacks > 0 || slices.ContainsFunc(files, func(f rls.File) bool { return !filechanges.IsEnded(f.Text) }) {
		r.quiet = filechanges.QuietLonger
	}
}

// use makes what was read the configuration. If it cannot be used, the last one stays. It may take
// long, so ctx may end before it does: then it says no more, because its errors are those of a
// Group that was closed.
func (v *server) use(ctx context.Context, r *draft) {
	if ctx.Err() != nil {
		return
	}
	first := v.service.Config() == nil
	if r.err == nil {
		func() {
			defer filechanges.Survive(&r.err)
			collectGarbage(true)
			r.err = v.service.Use(r.config)
		}()
	}
	collectGarbage(false)
	if ctx.Err() != nil {
		return
	}
	v.outlets.counters.Loaded(r.err)
	if r.err != nil || !first { // the first one is no reload
		v.group.CountReload(r.err)
	}
	if r.err != nil {
		v.log.Error("the configuration is not used", "error", r.err)
		return
	}
	v.log.Info("a new configuration is used", "domains", len(r.config.Domains()), "limits", len(r.config.Policies()))
	if all := r.config.Warnings(); all != nil {
		v.log.Warn("the configuration is valid, and may not do what is meant", "warnings", len(all), "first", all[0],
			"remedy", "look at /rlconfig of the debug port, which lists all")
	}
	v.mu.Lock()
	v.configured = !v.NeedDomain || len(r.config.Domains()) > 0
	v.mu.Unlock()
	v.become(nil)
}

// later returns when a file was written, if that is later.
func later(written time.Time, name string) time.Time {
	if info, err := os.Stat(name); err == nil && info.ModTime().After(written) {
		return info.ModTime()
	}
	return written
}
