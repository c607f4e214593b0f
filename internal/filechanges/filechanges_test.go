package filechanges_test

import (
	"crypto/sha256"
	"errors"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/tiered-limiter/tiered-limiter/internal/filechanges"
)

// Files are used once two readings agree and are old enough, and once only.
func TestReadingsHaveToAgree(t *testing.T) {
	type step struct {
		at, quiet time.Duration
		text      string
		want      filechanges.Change
	}
	const s = time.Second
	for name, steps := range map[string][]step{
		"any second reading": {
			{0, 0, "a", filechanges.Changing}, {0, 0, "a", filechanges.Changed}, {1, 0, "a", filechanges.None}, {
				2, 0, "b",
				filechanges.Changing,
			}, {3, 0, "b", filechanges.Changed},
		},
		"it is being written": {
			{0, 0, "a", filechanges.Changing}, {0, 0, "ab", filechanges.Changing}, {0, 0, "abc", filechanges.Changing}, {
				0, 0,
				"abc", filechanges.Changed,
			},
		},
		"it is as before": {
			{0, 0, "a", filechanges.Changing}, {0, 0, "a", filechanges.Changed}, {1, 0, "b", filechanges.Changing}, {
				2, 0, "a",
				filechanges.None,
			}, {3, 0, "b", filechanges.Changing},
		},
		"it settles": {{0, s, "a", filechanges.Changing}, {s - 1, s, "a", filechanges.Changing}, {
			s, s, "a",
			filechanges.Changed,
		}},
		"it begins again": {{0, s, "a", filechanges.Changing}, {s - 1, s, "b", filechanges.Changing}, {
			s, s, "b",
			filechanges.Changing,
		}, {2*s - 1, s, "b", filechanges.Changed}},
		"there and back": {{0, s, "a", filechanges.Changing}, {s / 2, s, "b", filechanges.Changing}, {
			s, s, "a",
			filechanges.Changing,
		}, {2 * s, s, "a", filechanges.Changed}},
		"the reader changes": {{0, s, "a", filechanges.Changing}, {s, 5 * s, "a", filechanges.Changing}, {
			5 * s, 5 * s, "a",
			filechanges.Changed,
		}},
	} {
		var f filechanges.Files
		begin := time.Unix(1e9, 0)
		for i, step := range steps {
			if got := f.Add(sha256.Sum256([]byte(step.text)), begin.Add(step.at), step.quiet); got != step.want {
				t.Errorf("%s: reading %d says %v, want %v", name, i, got, step.want)
			}
		}
	}
	var f filechanges.Files
	if f.Use(sha256.Sum256(nil)); f.Add(sha256.Sum256(nil), time.Time{}, 0) != filechanges.None {
		t.Error("files that are used are new")
	}
}

// Whatever is read, and whenever: what is used was read without a break for as long as it settles.
func TestWhatIsUsedHasSettled(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var f filechanges.Files
		now, since, before, used := time.Unix(1e9, 0), time.Time{}, -1, -1
		for range rapid.IntRange(1, 40).Draw(t, "readings") {
			now = now.Add(time.Duration(rapid.IntRange(0, 3).Draw(t, "later")))
			text, quiet := rapid.IntRange(0, 2).Draw(t, "text"), time.Duration(rapid.IntRange(0, 4).Draw(t, "quiet"))
			again := text == before
			if !again {
				since, before = now, text
			}
			want := filechanges.Changing
			switch {
			case text == used:
				want = filechanges.None
			case again && now.Sub(since) >= quiet:
				want, used = filechanges.Changed, text
			}
			if got := f.Add([sha256.Size]byte{byte(text + 1)}, now, quiet); got != want {
				t.Fatalf("text %d says %v, want %v", text, got, want)
			}
		}
	})
}

// A panic while files are read is an error, and says nothing of what may be in the files.
func TestPanicIsAMistake(t *testing.T) {
	for want, panics := range map[string]func(){
		"panic: with a string":                     func() { panic("sk-1") },
		"panic: with a *errors.errorString":        func() { panic(errors.New("sk-1")) },
		"panic: runtime error: index out of range": func() { _ = make([]int, 0)[len(t.Name())] },
	} {
		err := func() (err error) {
			defer filechanges.Survive(&err)
			panics()
			return nil
		}()
		if err == nil || !strings.HasPrefix(err.Error(), want) || strings.Contains(err.Error(), "sk-1") {
			t.Errorf("%v, want %s", err, want)
		}
	}
}
