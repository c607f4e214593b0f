// Package filechanges tells when files that may change have changed. What is being written is not
// used: two readings have to agree.
//
// A program begins with Start. Then it reads all its files every now and then, and adds the hash of
// what it has read, also of an error:
//
//	switch seen.Add(sha256.Sum256(text), time.Now(), 0) {
//	case filechanges.None: // nothing to do
//	case filechanges.Changing: // read them again soon
//	case filechanges.Changed: // use them, or say what is wrong with them. Add will say None until they change again
//	}
//
// An error belongs into the hash because files that cannot be read are a change as well, which is
// told once.
package filechanges

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"runtime"
	"runtime/debug"
	"time"
)

// Quiet is how long files must stay the same at a start, and at the least how long one that an
// editor writes in parts.
const Quiet = 100 * time.Millisecond

// QuietLonger is how long files must stay the same that may be half written, because they have less
// than before, or a last line without its end. A writer that pauses for longer is taken at its
// word.
const QuietLonger = 5 * time.Second

// IsEnded reports whether the last line of a file has its end. Half of "burst 200" is "burst 20"
// otherwise.
func IsEnded(text []byte) bool {
	return bytes.HasSuffix(text, []byte("\n")) || bytes.HasSuffix(text, []byte("]")) || bytes.HasSuffix(text, []byte("}"))
}

// Files are the readings of some files. The zero Files have used nothing. They are not safe for
// concurrent use.
type Files struct {
	used, last [sha256.Size]byte
	since      time.Time // the first of the readings that are as the last one
}

// Change is what a reading tells.
type Change int

// The changes.
const (
	None     Change = iota // the files are as those that were used last
	Changing               // they are new, and may be half written: the next readings tell
	Changed                // they are new, and have stayed so. From here on they are those that were used last
)

// Add adds a reading, by the hash of all files. It is Changed once a second reading agrees, and the
// first of those that agree is old enough. quiet is that age: 0 if any second reading will do. Who
// finds something odd in the files, such as less than there was, passes a longer one.
func (f *Files) Add(sum [sha256.Size]byte, now time.Time, quiet time.Duration) Change {
	if sum == f.used {
		f.last = sum
		return None
	}
	if sum != f.last {
		f.last, f.since = sum, now
		return Changing
	}
	if now.Sub(f.since) < quiet {
		return Changing
	}
	f.used = sum
	return Changed
}

// Start reads files for the first time, and uses what was read last: of a start nobody can say that
// the files of before stay. It reads them again until two readings agree and nothing was written
// for [Quiet], but for no longer than that. Files that are older are used at once. read returns the
// hash of all files, and when the youngest of them was written: the zero time if that is not known,
// as after an error.
func (f *Files) Start(ctx context.Context, read func() (sum [sha256.Size]byte, written time.Time)) {
	end := time.Now().Add(Quiet)
	last, _ := read()
	for {
		sum, written := read()
		now := time.Now()
		if f.Use(sum); sum == last && now.Sub(written) >= Quiet || !now.Before(end) {
			return
		}
		last = sum
		select {
		case <-ctx.Done():
			return
		case <-time.After(min(Quiet/4, end.Sub(now))):
		}
	}
}

// Use tells that files are used although no second reading has agreed: those of a reload that was
// asked for.
func (f *Files) Use(sum [sha256.Size]byte) { f.used, f.last = sum, sum }

// Survive makes a panic the error of who reads files, and is deferred: the panic would end the
// service, on all machines at once. Of what was panicked with it says only the type, and the text
// of a runtime error: anything else may be from the files, which may have secrets.
func Survive(err *error) {
	if v := recover(); v != nil {
		what := fmt.Sprintf("with a %T", v)
		if e, ok := v.(runtime.Error); ok {
			what = e.Error()
		}
		*err = fmt.Errorf("panic: %s\n%s", what, debug.Stack())
	}
}
