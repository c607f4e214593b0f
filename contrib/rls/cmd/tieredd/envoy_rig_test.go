package main_test

import (
	"strconv"
	"testing"

	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/redistest"
)

// replicas are replicas of tieredd with one Redis.
type replicas struct {
	redis *redistest.Server
	all   []*process
}

func startReplicas(t *testing.T, n int, config string, env ...string) *replicas {
	t.Helper()
	f := &replicas{redis: redistest.Start(t)}
	env = append([]string{"REDIS_URL=" + f.redis.URL(), "TIERED_PROCESSES=" + strconv.Itoa(n)}, env...)
	for range n {
		f.all = append(f.all, start(t, config, env...))
	}
	return f
}

func (f *replicas) addresses() (all []string) {
	for _, p := range f.all {
		all = append(all, p.address)
	}
	return all
}
