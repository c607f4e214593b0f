package main_test

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"regexp"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/KimMachineGun/automemlimit/memlimit"

	tieredd "github.com/tiered-limiter/tiered-limiter/contrib/rls/cmd/tieredd"
	"github.com/tiered-limiter/tiered-limiter/contrib/rls/internal/behavior"
	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/fatal"
	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/redistest"
)

// peak is the most that a process has had in memory, in bytes.
func (p *process) peak(t *testing.T) int {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.Process.Pid))
	if err != nil {
		t.Skip(err)
	}
	kB, _ := strconv.Atoi(regexp.MustCompile(`VmHWM:\s*(\d+) kB`).FindStringSubmatch(string(status))[1])
	return kB * 1024
}

// A flood of values that were never seen before takes the memory that docs/service-operate.md says,
// without GOMEMLIMIT: the collector goes by what is there now, and not by what was there when the
// configuration was read.
func TestMemoryOfAFlood(t *testing.T) {
	if testing.Short() {
		t.Skip("half a minute of real time")
	}
	const callers, calls, each = 4, 4000, 16
	p := start(t, limits, "REDIS_URL="+redistest.Start(t).URL(), patient)
	var all sync.WaitGroup
	for caller := range callers {
		all.Go(func() {
			for i := range calls {
				r := behavior.Request("shop")
				for k := range each {
					one := behavior.Request(fmt.Sprintf("shop | user=%d-%d-%d", caller, i, k))
					r.Descriptors = append(r.Descriptors, one.GetDescriptors()...)
				}
				if _, err := p.client.ShouldRateLimit(t.Context(), r); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	all.Wait()
	if n := p.metric(t, "tiered_keys"); n != 100_000 {
		t.Errorf("%v keys are kept, want the default of 100 000", n)
	}
	peak := p.peak(t)
	t.Logf("at most %d MB resident after %d values", peak/1e6, callers*calls*each)
	if peak > 200e6 {
		t.Error("want at most 200 MB")
	}
}

// Without GOMEMLIMIT the process keeps to the memory of its container, and says so. Where there is
// none, nothing changes.
func TestMemoryOfAContainer(t *testing.T) {
	whole := debug.SetMemoryLimit(-1)
	for _, c := range []struct {
		name      string
		set       string // GOMEMLIMIT
		container memlimit.Provider
		want      int64
		line      string
	}{
		{"a container", "", memlimit.Limit(1000 << 20), 900 << 20, "GOMEMLIMIT=900MiB"},
		{"GOMEMLIMIT is set", "2000MiB", memlimit.Limit(1000 << 20), whole, ""},
		{"a container without a limit", "", func() (uint64, error) { return 0, memlimit.ErrNoLimit }, whole, ""},
		{"no container", "", func() (uint64, error) { return 0, errors.New("no cgroup") }, whole, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			defer debug.SetMemoryLimit(whole)
			t.Setenv("GOMEMLIMIT", c.set)
			if c.set == "" {
				fatal.If(t, os.Unsetenv("GOMEMLIMIT")) // as before at the end of the test
			}
			var log bytes.Buffer
			tieredd.LimitMemory(slog.New(slog.NewTextHandler(&log, nil)), c.container)
			if is := debug.SetMemoryLimit(-1); is != c.want || !strings.Contains(log.String(), c.line) || c.line == "" && log.Len() > 0 {
				t.Errorf("the limit is %d, want %d; the log is %q, want %q", is, c.want, log.String(), c.line)
			}
		})
	}
}
