package main_test

import (
	"bytes"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tiered-limiter/tiered-limiter/contrib/rls"
	tieredd "github.com/tiered-limiter/tiered-limiter/contrib/rls/cmd/tieredd"
	"github.com/tiered-limiter/tiered-limiter/internal/filechanges"
	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/fatal"
)

// small are the settings of a server that nobody calls.
var small = tieredd.Settings{LogLevel: "error", LogFormat: "text", MaxMessage: 1 << 20, MaxStreams: 1}

// newServer returns a server in this process, which reads what files returns. log nil drops its
// lines.
func newServer(t *testing.T, s tieredd.Settings, log *slog.Logger, files func() ([]rls.File, error)) *tieredd.Server {
	t.Helper()
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	v := fatal.Get(tieredd.NewServer(s, log, files))(t)
	return v
}

// The last good configuration stays whatever a reading brings: files that are being written, that
// have mistakes, that cannot be read, or that end in a panic.
func TestLastGoodConfigurationStays(t *testing.T) {
	text := func(domain string) []rls.File {
		return []rls.File{{Name: "a.yaml", Text: []byte("domain: " + domain + "\n")}}
	}
	panics := func() []rls.File { panic("planted") }
	var files func() ([]rls.File, error)
	v := newServer(t, small, nil, func() ([]rls.File, error) { return files() })
	defer v.Close()
	applied := 0
	for i, step := range []struct {
		files   func() ([]rls.File, error)
		domains string // that are in force after the reading
	}{
		{func() ([]rls.File, error) { return nil, errors.New("no file") }, "none"},
		{func() ([]rls.File, error) { return panics(), nil }, "none"},
		{func() ([]rls.File, error) { return text("sh"), nil }, "none"}, // it is being written
		{func() ([]rls.File, error) { return text("shop"), nil }, "none"},
		{func() ([]rls.File, error) { return text("shop"), nil }, "shop"},
		{func() ([]rls.File, error) { return nil, nil }, "shop"},
		{func() ([]rls.File, error) { return panics(), nil }, "shop"},
		{func() ([]rls.File, error) { return append(text(""), text("")...), nil }, "shop"},
		{func() ([]rls.File, error) { return append(text(""), text("")...), nil }, "shop"},
		{func() ([]rls.File, error) { return text("shop"), errors.New("one file cannot be read") }, "shop"},
		{func() ([]rls.File, error) { return text("shop"), errors.New("one file cannot be read") }, "shop"},
		{func() ([]rls.File, error) { return text("bank"), nil }, "shop"},
		{func() ([]rls.File, error) { return text("bank"), nil }, "bank"},
	} {
		files = step.files
		before := v.Config()
		v.Reload(t.Context())
		got := "none"
		if c := v.Config(); c != nil {
			got = strings.Join(c.Domains(), " ")
			if c != before {
				applied++
			}
		}
		if got != step.domains {
			t.Errorf("reading %d: %s is in force, want %s", i, got, step.domains)
		}
	}
	if applied != 2 {
		t.Errorf("%d configurations were used, want 2", applied)
	}
	if r := v.Stats().Reloads; r.Applied != 1 || r.Failed != 4 { // two panics, mistakes, and an error
		t.Errorf("%+v", r)
	}
}

// Half a configuration is not used at the start either, if its writer goes on within 0.1 s. The
// start takes no longer for it.
func TestHalfWrittenFilesAtTheStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		name, begin := filepath.Join(t.TempDir(), "a.yaml"), time.Now()
		if err := os.WriteFile(name, nil, 0o600); err != nil { // it is younger than now in a bubble
			t.Fatal(err)
		}
		const whole = "domain: shop\ndescriptors:\n  - key: user\n    rate_limit: {unit: hour, requests_per_unit: 5}\n"
		v := newServer(t, small, nil, func() ([]rls.File, error) {
			text := whole
			if time.Since(begin) < 60*time.Millisecond {
				text = "domain: shop\n"
			}
			return []rls.File{{Name: name, Text: []byte(text)}}, nil
		})
		defer v.Close()
		v.Start(t.Context())
		if took, c := time.Since(begin), v.Config(); took != filechanges.Quiet || c == nil || len(c.Policies()) != 1 {
			t.Errorf("after %v, in force is %v", took, c)
		}
	})
}

// Wherever a file is cut while it is written anew, what was in force stays, for as long as its
// writer does not pause for five seconds. A line says so, and no value of a rule.
func TestConfigurationCutAtEachByte(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		const whole = "domain: shop\ndescriptors:\n  - key: user\n    value: sk-1\n" +
			"    rate_limit: {unit: hour, requests_per_unit: 50}\n    descriptors:\n      - key: path\n        rate_limit:\n          unit: hour\n          requests_per_unit: 500\n"
		text := whole
		v := newServer(t, small, slog.New(slog.NewTextHandler(&log, nil)), func() ([]rls.File, error) {
			return []rls.File{{Name: "a.yaml", Text: []byte(text)}}, nil
		})
		defer v.Close()
		v.Start(t.Context())
		after := func(seconds int) string {
			for range seconds {
				time.Sleep(time.Second)
				v.Reload(t.Context())
			}
			return v.Config().String()
		}
		want := v.Config().String()
		for cut := range len(whole) - 1 {
			text = whole[:cut]
			if got := after(4); got != want {
				t.Fatalf("the first %d bytes are in force: %s", cut, got)
			}
			text = whole
			after(1)
		}
		if said := log.String(); !strings.Contains(said, "level=WARN") || strings.Contains(said, "sk-") {
			t.Errorf("the log says %.500s", said)
		}
		text = whole[:strings.Index(whole, "    descriptors")] // an operator means it
		if got := after(7); got == want || len(v.Config().Policies()) != 1 {
			t.Errorf("a configuration that has less on purpose is not used: %s", got)
		}
		text = whole // more than before is used soon
		if got := after(2); got != want {
			t.Errorf("a configuration with more is not used: %s", got)
		}
	})
}

// pipes is a listener whose connections are in memory.
type pipes chan net.Conn

func (p pipes) Accept() (net.Conn, error) {
	if c, ok := <-p; ok {
		return c, nil
	}
	return nil, net.ErrClosed
}
func (p pipes) Close() error   { return nil }
func (p pipes) Addr() net.Addr { return &net.TCPAddr{} }

// Neither port keeps who sends nothing more, and a profile may take longer than a request may take
// to arrive.
func TestSlowClientsAreLetGo(t *testing.T) {
	const body = "POST /slow HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\nx"
	for name, c := range map[string]struct {
		port, sent, want string
		kept             time.Duration
	}{
		"a body that never comes, public":   {"public", body, "", 10 * time.Second},
		"a body that never comes, debug":    {"debug", body, "", 10 * time.Second},
		"nothing after an answer, public":   {"public", "GET / HTTP/1.1\r\nHost: a\r\n\r\n", "done", 10 * time.Second},
		"nothing after an answer, debug":    {"debug", "GET / HTTP/1.1\r\nHost: a\r\n\r\n", "done", 10 * time.Second},
		"nothing at all, public":            {"public", "", "", 5 * time.Second},
		"nothing at all, debug":             {"debug", "", "", 5 * time.Second},
		"a profile of half a minute, debug": {"debug", "GET /long HTTP/1.1\r\nHost: a\r\n\r\n", "whole", 40 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				mux := http.NewServeMux()
				mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
					_, err := io.ReadAll(r.Body)
					if err == nil {
						_, _ = io.WriteString(w, "done")
					}
				})
				mux.HandleFunc("/long", func(w http.ResponseWriter, r *http.Request) {
					select {
					case <-time.After(30 * time.Second):
						_, _ = io.WriteString(w, "whole")
					case <-r.Context().Done():
					}
				})
				server, operators := tieredd.Servers(mux, mux)
				if c.port == "debug" {
					server = operators
				}
				at := make(pipes, 1)
				client, conn := net.Pipe()
				at <- conn
				go func() { _ = server.Serve(at) }()
				go func() { _, _ = io.WriteString(client, c.sent) }()
				begin := time.Now()
				got, _ := io.ReadAll(client) // until the server closes it
				if took := time.Since(begin); took != c.kept {
					t.Errorf("it was kept for %v, want %v", took, c.kept)
				}
				if !strings.Contains(string(got), c.want) {
					t.Errorf("the answer is %q, want %s", got, c.want)
				}
				_ = client.Close()
				close(at)
				_ = server.Close()
			})
		})
	}
}
