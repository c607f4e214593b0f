package tiered_test

import (
	"bytes"
	"errors"
	"log/slog"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/redistest"
	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// When Redis first answers, the log has one line: where and what it is, whose limits it keeps, and
// for how many processes. It has no second one after an outage, and none before Redis answers.
func TestLogWhenRedisFirstAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		store := remote.NewMemory()
		store.Fail(errors.New("down"))
		g := must(tiered.NewGroup(store, &tiered.Options{Logger: slog.New(slog.NewTextHandler(&log, nil))}))
		for _, name := range []string{"api", "login", "c", "d", "e", "f"} {
			must(g.NewLimiter(tiered.Policy{Name: name, Limit: tiered.PerSecond(10)}))
		}
		time.Sleep(30 * time.Second)
		if strings.Contains(log.String(), `msg="redis answers"`) {
			t.Errorf("before it has answered:\n%s", &log)
		}
		store.Fail(nil)
		time.Sleep(30 * time.Second)
		store.Fail(errors.New("down"))
		time.Sleep(30 * time.Second)
		store.Fail(nil)
		time.Sleep(30 * time.Second)
		ok(t, g.Close(t.Context()))
		const want = `level=INFO msg="redis answers" node=memory server=memory policies="api, login, c, d, e, …" processes=1` + "\n"
		if strings.Count(log.String(), want) != 1 || strings.Count(log.String(), `msg="redis answers"`) != 1 {
			t.Errorf("the log is\n%s", &log)
		}
	})
}

// The line of a real Redis has its version, and is there when a process ends before a second.
func TestLogOfTheVersion(t *testing.T) {
	server := redistest.Start(t)
	var log bytes.Buffer
	g := must(tiered.NewGroup(open(t, server.URL()), &tiered.Options{Logger: slog.New(slog.NewTextHandler(&log, nil))}))
	must(g.NewLimiter(tiered.Policy{Name: "api", Limit: tiered.PerSecond(10)}))
	ok(t, g.Ping(t.Context()))
	ok(t, g.Close(t.Context()))
	want := regexp.MustCompile(`msg="redis answers" node=` + regexp.QuoteMeta(server.Addr) + ` server="(redis|valkey) [0-9.]+" policies=api processes=1`)
	if !want.MatchString(log.String()) {
		t.Errorf("the log is\n%s", &log)
	}
}
