package faults

import (
	"encoding/binary"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/tiered-limiter/tiered-limiter/internal/redistest"
)

// clockShim is preloaded into a redis-server: it adds to the time of day what lies in a file that both map. It asks the
// kernel itself, because looking up the library's function would allocate, and the allocator asks for the time.
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
	if (r == 0 && offset && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE)) ts->tv_sec += *offset / 1000000;
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

// withClock starts one server whose clock can be set.
func withClock(s *stage) {
	cc, err := exec.LookPath("cc")
	if err != nil {
		s.Skip("there is no C compiler, cc, for what is preloaded into redis-server to set its clock")
	}
	dir := s.TempDir()
	source, shim := filepath.Join(dir, "clock.c"), filepath.Join(dir, "clock.so")
	s.clockFile = filepath.Join(dir, "offset")
	if err := os.WriteFile(source, []byte(clockShim), 0o600); err != nil {
		s.Fatal(err)
	}
	s.setClock(0)
	if out, err := exec.Command(cc, "-shared", "-fPIC", "-O2", "-o", shim, source).CombinedOutput(); err != nil {
		s.Fatalf("cc: %v: %s", err, out)
	}
	s.single(redistest.StartEnv(s, []string{"LD_PRELOAD=" + shim, "CLOCK_OFFSET_FILE=" + s.clockFile}))
	s.setClock(time.Minute)
	if ahead := s.ahead(); ahead < 50*time.Second || ahead > 70*time.Second {
		s.Fatalf("the clock of Redis is %v ahead, want a minute: the shim does not work", ahead)
	}
	s.setClock(0)
	s.do("FLUSHALL")
}

// setClock sets the clock of Redis, by that much from the true time.
func (s *stage) setClock(ahead time.Duration) {
	f, err := os.OpenFile(s.clockFile, os.O_WRONLY|os.O_CREATE, 0o600)
	if err != nil {
		s.Fatal(err)
	}
	defer f.Close()
	// In one write over what is there: Redis has the file mapped.
	if _, err := f.WriteAt(binary.NativeEndian.AppendUint64(nil, uint64(ahead.Microseconds())), 0); err != nil {
		s.Fatal(err)
	}
}

// ahead reports by how much the clock of Redis is ahead.
func (s *stage) ahead() time.Duration {
	now, err := s.admin.Time(s.Context()).Result()
	if err != nil {
		s.Fatal(err)
	}
	return time.Until(now)
}
