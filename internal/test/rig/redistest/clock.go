package redistest

import (
	"encoding/binary"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/fatal"
)

// clockShim is preloaded into a redis-server. It adds an offset to the time of day, read from a
// file that it maps. It asks the kernel directly: looking up the library's function would allocate,
// and the allocator asks for the time.
const clockShim = `
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile long long *offset; /* microseconds */

__attribute__((constructor)) static void begin(void) {
	int fd = open(getenv("CLOCK_OFFSET_FILE"), O_RDONLY);
	void *p = mmap(0, sizeof *offset, PROT_READ, MAP_SHARED, fd, 0);
	if (fd < 0 || p == MAP_FAILED) abort();
	offset = p;
}

int clock_gettime(clockid_t id, struct timespec *ts) {
	int r = syscall(SYS_clock_gettime, id, ts);
	if (r == 0 && offset && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE)) {
		long long us = *offset, ns = ts->tv_nsec + us % 1000000 * 1000;
		ts->tv_sec += us / 1000000;
		if (ns < 0) ns += 1000000000, ts->tv_sec--;
		if (ns >= 1000000000) ns -= 1000000000, ts->tv_sec++;
		ts->tv_nsec = ns;
	}
	return r;
}

int gettimeofday(struct timeval *tv, void *tz) {
	struct timespec ts;
	int r = clock_gettime(CLOCK_REALTIME, &ts);
	tv->tv_sec = ts.tv_sec;
	tv->tv_usec = ts.tv_nsec / 1000;
	return r;
}

time_t time(time_t *t) {
	struct timespec ts;
	clock_gettime(CLOCK_REALTIME, &ts);
	if (t) *t = ts.tv_sec;
	return ts.tv_sec;
}
`

// StartWithClock is Start for a server whose time of day SetClock sets. Where there is no C
// compiler the test is skipped.
func StartWithClock(t testing.TB) *Server {
	t.Helper()
	cc, err := exec.LookPath("cc")
	if err != nil {
		t.Skip("there is no C compiler, cc, for what is preloaded into redis-server to set its clock")
	}
	s := prepare(t, OnDatabase)
	s.SetClock(0)
	source, library := filepath.Join(s.dir, "clock.c"), filepath.Join(s.dir, "clock.so")
	fatal.If(t, os.WriteFile(source, []byte(clockShim), 0o600))
	if out, err := exec.Command(cc, "-shared", "-fPIC", "-O2", "-o", library, source).CombinedOutput(); err != nil {
		t.Fatalf("cc: %v: %s", err, out)
	}
	s.env = []string{"LD_PRELOAD=" + library, "CLOCK_OFFSET_FILE=" + s.clockFile()}
	s.Restart()
	return s
}

func (s *Server) clockFile() string { return filepath.Join(s.dir, "offset") }

// SetClock sets the clock ahead of the true time, or behind it if ahead is negative, in whole
// microseconds.
func (s *Server) SetClock(ahead time.Duration) {
	s.t.Helper()
	f := fatal.Get(os.OpenFile(s.clockFile(), os.O_WRONLY|os.O_CREATE, 0o600))(s.t)
	// One write in place: the server has the file mapped.
	_, err := f.WriteAt(binary.NativeEndian.AppendUint64(nil, uint64(ahead.Microseconds())), 0)
	fatal.If(s.t, errors.Join(err, f.Close()))
}
