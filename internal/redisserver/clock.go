package redisserver

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"
)

// clockShim is preloaded into a redis-server. It adds an offset to the time of day, read from a file that both map.
// It asks the kernel directly: looking up the library's function would allocate, and the allocator asks for the
// time.
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

// Clock sets the time of day of the servers that were started with its Env. It is not for concurrent use.
type Clock struct{ dir string }

// ErrNoCompiler says why the clock of a server cannot be set.
var ErrNoCompiler = errors.New("there is no C compiler, cc, for what is preloaded into redis-server to set its clock")

// NewClock compiles what sets the clock of a server, into dir. The error may be ErrNoCompiler.
func NewClock(dir string) (*Clock, error) {
	cc, err := exec.LookPath("cc")
	if err != nil {
		return nil, ErrNoCompiler
	}
	c := &Clock{dir: dir}
	source := filepath.Join(c.dir, "clock.c")
	if err := errors.Join(os.WriteFile(source, []byte(clockShim), 0o600), c.Set(0)); err != nil {
		return nil, err
	}
	if out, err := exec.Command(cc, "-shared", "-fPIC", "-O2", "-o", c.shim(), source).CombinedOutput(); err != nil {
		return nil, fmt.Errorf("cc: %w: %s", err, out)
	}
	return c, nil
}

func (c *Clock) shim() string { return filepath.Join(c.dir, "clock.so") }
func (c *Clock) file() string { return filepath.Join(c.dir, "offset") }

// Env returns the environment variables for a server.
func (c *Clock) Env() []string {
	return []string{"LD_PRELOAD=" + c.shim(), "CLOCK_OFFSET_FILE=" + c.file()}
}

// Set sets the clock ahead of the true time, or behind it if ahead is negative, in whole microseconds.
func (c *Clock) Set(ahead time.Duration) error {
	f, err := os.OpenFile(c.file(), os.O_WRONLY|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	// One write in place: the servers have the file mapped.
	_, err = f.WriteAt(binary.NativeEndian.AppendUint64(nil, uint64(ahead.Microseconds())), 0)
	return errors.Join(err, f.Close())
}
