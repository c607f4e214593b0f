package adversary

import (
	"fmt"
	"math"
	"runtime"
	"strings"
	"sync"
)

// History is a schedule of one of the two worlds, that of a bucket and that of the standing shares. It can be played any
// number of times. B is where it is played.
type History[S, B any] interface {
	Play(in B) Outcome
	Without(in B) S // the shortest history found that still breaks something
	Describe(in B) string
}

// Outcome is the result of a history.
type Outcome struct {
	Fault string  // what broke, "" if nothing did
	Count int     // calls that the store executed, or admissions
	Slack float64 // tokens that were left of the limit that came nearest to its bound; negative if it was exceeded
}

// Report is the result of many histories. Broken describes the shortest form of those that broke something, at most one
// of each worker.
type Report struct {
	Played, Count int
	Slack         float64 // the least
	Broken        []string
}

// Drive plays the histories of count seeds from first on, until one breaks something. There are as many workers as
// processors, each with a place of its own.
func Drive[S History[S, B], B any](
	first uint64, count int, draw func(seed uint64) S, place func(worker int) B,
) Report {
	sum := Report{Slack: math.Inf(1)}
	var mu sync.Mutex
	next := first
	var workers sync.WaitGroup
	for worker := range runtime.GOMAXPROCS(0) {
		workers.Go(func() {
			in := place(worker)
			for {
				mu.Lock()
				seed := next
				if next++; seed-first >= uint64(count) || len(sum.Broken) > 0 {
					mu.Unlock()
					return
				}
				mu.Unlock()
				h := draw(seed)
				o := h.Play(in)
				broken := ""
				if o.Fault != "" {
					broken = fmt.Sprintf("seed %d: %s\nshrunk: %s", seed, o.Fault, h.Without(in).Describe(in))
				}
				mu.Lock()
				sum.Played, sum.Count, sum.Slack = sum.Played+1, sum.Count+o.Count, min(sum.Slack, o.Slack)
				if broken != "" {
					sum.Broken = append(sum.Broken, broken)
				}
				mu.Unlock()
			}
		})
	}
	workers.Wait()
	return sum
}

// Journal is what a world writes down: its first fault, and every step if it is to be described.
type Journal struct {
	Fault string
	log   *strings.Builder
	start int // length of log before the step under way
}

// Describe has the journal keep every step.
func (j *Journal) Describe() { j.log = new(strings.Builder) }

// Text returns what was kept.
func (j *Journal) Text() string { return j.log.String() }

// Failf records the first fault.
func (j *Journal) Failf(format string, args ...any) {
	if j.Fault == "" {
		j.Fault = fmt.Sprintf(format, args...)
		j.Logf("BROKEN: %s", j.Fault)
	}
}

// Logf adds a line.
func (j *Journal) Logf(format string, args ...any) {
	if j.log != nil {
		fmt.Fprintf(j.log, "        "+format+"\n", args...)
	}
}

// Step begins the part of a step.
func (j *Journal) Step(i int, what any) {
	if j.log != nil {
		j.start = j.log.Len()
		fmt.Fprintf(j.log, "%4d  %v\n", i, what)
	}
}

// Undo removes the part of the last step, which was not possible.
func (j *Journal) Undo() {
	if j.log != nil {
		before := j.log.String()[:j.start]
		j.log.Reset()
		j.log.WriteString(before)
	}
}
