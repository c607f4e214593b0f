package policyfile

import (
	"time"

	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// WatchContent is Watch of what content returns, and of when that was written. There are no events:
// the tests are in virtual time, in which no file system is.
func WatchContent(name string, g *tiered.Group, o *Options, content func() ([]byte, time.Time, error)) (*Watcher, error) {
	w, err := newWatcher(name, g, o)
	if err != nil {
		return nil, err
	}
	w.content = func(string) ([]byte, time.Time, error) { return content() }
	if err := w.start(); err != nil {
		return nil, err
	}
	w.tasks.Go(func() { w.watch(nil) })
	return w, nil
}
