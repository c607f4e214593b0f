package services_test

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/fleet"
	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/redistest"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// Four processes serve a user who asks for more than the limit, while the file changes between two
// limits, and has mistakes in between, as a ConfigMap changes: by a link to another directory.
// Every request is answered, no token is lost, and no interval has more than the larger limit
// allows.
func TestReloadUnderLoad(t *testing.T) {
	if testing.Short() {
		t.Skip("ten seconds of real time")
	}
	const processes, callers, length = 4, 16, 10 * time.Second
	larger := tiered.PerSecond(200).WithBurst(100)
	file := func(limit string) string {
		return "version: 1\npolicies:\n  - {name: per-user, limit: " + limit + "}\n" +
			"http:\n  - match: /api/\n    limits:\n      - {policy: per-user, key: credential Authorization, missing: exempt}\n"
	}
	versions := []string{file("100/s burst 50"), file("200/s burst 100"), "version: 1\npolicies: broken"}

	// The directory is mounted as Kubernetes does it: data is a link to a directory that is never
	// written again.
	mount := t.TempDir()
	swap := func(n int) {
		t.Helper()
		dir := "..v" + strconv.Itoa(n)
		var err error
		step := func(next func() error) {
			if err == nil {
				err = next()
			}
		}
		step(func() error { return os.Mkdir(filepath.Join(mount, dir), 0o700) })
		step(func() error {
			return os.WriteFile(filepath.Join(mount, dir, "policies.yaml"), []byte(versions[n%len(versions)]), 0o600)
		})
		step(func() error { return os.Symlink(dir, filepath.Join(mount, "..next")) })
		step(func() error { return os.Rename(filepath.Join(mount, "..next"), filepath.Join(mount, "..data")) })
		if err != nil {
			t.Fatal(err)
		}
	}
	swap(0)
	if err := os.Symlink(filepath.Join("..data", "policies.yaml"), filepath.Join(mount, "policies.yaml")); err != nil {
		t.Fatal(err)
	}

	redis := redistest.Start(t)
	var users, operators []string
	var programs []*program
	for range processes {
		user, operator := freeAddress(t), freeAddress(t)
		programs = append(programs, start(t, "api", nil, "-addr", user, "-operators", operator, "-redis", redis.URL(),
			"-policies", filepath.Join(mount, "policies.yaml"), "-processes", strconv.Itoa(processes)))
		users, operators = append(users, "http://"+user+"/api/hello"), append(operators, "http://"+operator)
	}
	for i := range programs {
		eventually(t, "ready", func() bool { code, _ := get(operators[i]+"/readyz", ""); return code == http.StatusOK })
		eventually(t, "serving", func() bool { code, _ := get(users[i], ""); return code == http.StatusOK })
	}

	var mu sync.Mutex
	var records []fleet.Record
	other := map[int]int{} // answers by status that are neither 200 nor 429
	var all sync.WaitGroup
	begin := time.Now()
	for i := range callers {
		all.Go(func() {
			for time.Since(begin) < length {
				before := time.Since(begin)
				code, _ := get(users[i%processes], "ann")
				after := time.Since(begin)
				mu.Lock()
				records = append(records, fleet.Record{
					Before: int64(before), After: int64(after), Allowed: code == http.StatusOK,
				})
				if code != http.StatusOK && code != http.StatusTooManyRequests {
					other[code]++
				}
				mu.Unlock()
				time.Sleep(20 * time.Millisecond)
			}
		})
	}
	for n := 1; time.Since(begin) < length; n++ {
		time.Sleep(400 * time.Millisecond)
		swap(n)
	}
	all.Wait()

	admitted := 0
	for _, r := range records {
		if r.Allowed {
			admitted++
		}
	}
	verdict := fleet.Judge(records, larger)
	t.Logf("%d requests, %d admitted, %.1f tokens over the larger limit in the worst interval",
		len(records), admitted, verdict.Over())
	if verdict.Over() > 0 {
		t.Errorf("%+v", verdict.Worst)
	}
	if len(other) > 0 {
		t.Errorf("answers by status: %v", other)
	}
	if admitted < 500 {
		t.Errorf("%d admitted: must be 100 per second at least, give or take", admitted)
	}
	for i, p := range programs {
		_, metrics := get(operators[i]+"/metrics", "")
		if n := figure(t, metrics, "tiered_leased_tokens_total", "burnt"); n != 0 {
			t.Errorf("process %d lost %v tokens", i, n)
		}
		p.terminate(t) // gives back what it holds, or ends with an error
		if log := p.printed(); strings.Count(log, "policy file reloaded") < 2 || !strings.Contains(log, "policy file not reloaded") {
			t.Errorf("process %d has not reloaded:\n%s", i, log)
		}
	}
}

// figure returns a series of the policy per-user.
func figure(t *testing.T, metrics, name, outcome string) float64 {
	t.Helper()
	m := regexp.MustCompile(fmt.Sprintf(`(?m)^%s\{outcome="%s",policy="per-user"\} (\S+)$`, name, outcome)).FindStringSubmatch(metrics)
	if m == nil {
		t.Fatalf("no %s of %s:\n%.3000s", name, outcome, metrics)
	}
	n, err := strconv.ParseFloat(m[1], 64)
	if err != nil {
		t.Fatal(err)
	}
	return n
}
