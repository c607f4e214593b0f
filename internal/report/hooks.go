package report

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"sync/atomic"
)

// hookRoom bounds the events that wait for the hooks: some milliseconds of a busy process, about
// 100 kB.
const hookRoom = 1024

// Hooks calls hooks, which are functions of the user, one after the other on a goroutine of its
// own. They may be slow, and they may panic. All methods may be called concurrently.
type Hooks struct {
	events  chan func() // capacity hookRoom
	dropped atomic.Int64
	panics  atomic.Int64
}

// NewHooks returns Hooks that Run works for.
func NewHooks() *Hooks { return &Hooks{events: make(chan func(), hookRoom)} }

// Call has event called soon, which calls a hook. It drops event if too many wait.
func (h *Hooks) Call(event func()) {
	select {
	case h.events <- event:
	default:
		h.dropped.Add(1)
	}
}

// Dropped returns how many events were dropped because the hooks were too slow.
func (h *Hooks) Dropped() int64 { return h.dropped.Load() }

// Panics returns how many events' hooks panicked.
func (h *Hooks) Panics() int64 { return h.panics.Load() }

// Run calls the hooks until ctx ends, and then for the events that are queued by then. It says of
// each panic what PanicOf does.
func (h *Hooks) Run(ctx context.Context, panicked func(what string)) {
	call := func(event func()) {
		defer func() {
			if v := recover(); v != nil {
				h.panics.Add(1)
				panicked(PanicOf(v))
			}
		}()
		event()
	}
	for {
		select {
		case event := <-h.events:
			call(event)
		case <-ctx.Done():
			for range len(h.events) { // no more than these: a hook may cause events for ever
				call(<-h.events)
			}
			return
		}
	}
}

// PanicOf says what a function of the user panicked with, and where: "string in main.planOf, line
// 17". The value may contain a key, so only its type is said, and the text of a runtime error,
// which has only numbers and types. It must be called by the deferred function that recovered v.
func PanicOf(v any) string {
	what := fmt.Sprintf("%T", v)
	if err, ok := v.(runtime.Error); ok {
		what = err.Error()
	}
	var stack [32]uintptr
	frames := runtime.CallersFrames(stack[:runtime.Callers(0, stack[:])])
	panicking := false
	for {
		f, more := frames.Next()
		switch ofRuntime := strings.HasPrefix(f.Function, "runtime."); {
		case f.Function == "runtime.gopanic":
			panicking = true
		case panicking && !ofRuntime && f.Function != "":
			return fmt.Sprintf("%s in %s, line %d", what, f.Function, f.Line)
		case !more:
			return what
		}
	}
}
