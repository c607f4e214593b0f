package layout_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// mostTracked is the most that a file in git may have, in bytes. What is larger is build output, or
// data that belongs elsewhere: each clone and each module zip carries it for ever.
const mostTracked = 300_000

// executables are the first bytes of files that a linker wrote: ELF, Windows, Mach-O in both byte
// orders and with several architectures, WebAssembly, and an archive of object files.
var executables = []string{
	"\x7fELF", "MZ", "\xcf\xfa\xed\xfe", "\xfe\xed\xfa\xcf", "\xce\xfa\xed\xfe", "\xfe\xed\xfa\xce",
	"\xca\xfe\xba\xbe", "\x00asm", "!<arch>\n",
}

// TestTrackedFiles refuses build output in git. Once a program of 41 MB was committed, three
// quarters of every clone.
func TestTrackedFiles(t *testing.T) {
	t.Chdir("../..")
	out, err := exec.CommandContext(t.Context(), "git", "ls-files", "-z", "--cached").Output()
	if err != nil {
		t.Skipf("this is no git checkout: %v", err)
	}
	for name := range strings.SplitSeq(strings.TrimSuffix(string(out), "\x00"), "\x00") {
		if err := checkTracked(name); err != nil {
			t.Error(err)
		}
	}
}

// checkTracked reports what is wrong with a tracked file. A file that was deleted and is still in
// the index is fine.
func checkTracked(name string) error {
	f, err := os.Open(name)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil || !info.Mode().IsRegular() {
		return err
	}
	if info.Size() > mostTracked {
		return fmt.Errorf("%s has %d bytes: a tracked file has at most %d", name, info.Size(), mostTracked)
	}
	head := make([]byte, 8)
	n, err := io.ReadFull(f, head)
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
		return err
	}
	for _, magic := range executables {
		if bytes.HasPrefix(head[:n], []byte(magic)) {
			return fmt.Errorf("%s begins with %q, so it is a program: git rm it, and ignore it", name, magic)
		}
	}
	return nil
}

func TestTrackedFilesBroken(t *testing.T) {
	dir := t.TempDir()
	for _, c := range []struct {
		name, content, want string
	}{
		{"source", "package layout", ""},
		{"empty", "", ""},
		{"short", "MA", ""},
		{"program", "\x7fELF\x02\x01\x01", "is a program"},
		{"windows", "MZ\x90\x00", "is a program"},
		{"large", strings.Repeat("a", mostTracked+1), "at most 300000"},
		{"full", strings.Repeat("a", mostTracked), ""},
	} {
		path := filepath.Join(dir, c.name)
		if err := os.WriteFile(path, []byte(c.content), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := fmt.Sprint(checkTracked(path)); c.want == "" && got != "<nil>" || !strings.Contains(got, c.want) {
			t.Errorf("%s: %s, want %q", c.name, got, c.want)
		}
	}
}
