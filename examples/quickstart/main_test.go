package main_test

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	quickstart "github.com/tiered-limiter/tiered-limiter/examples/quickstart"
	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/redistest"
)

// serve runs the program until the end of the test and returns its URL.
func serve(t *testing.T, args ...string) string {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	out, in := io.Pipe()
	ended := make(chan error, 1)
	go func() { ended <- quickstart.Run(ctx, append([]string{"-addr", "127.0.0.1:0"}, args...), in) }()
	t.Cleanup(func() {
		http.DefaultClient.CloseIdleConnections()
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return told(t, bufio.NewReader(out), "listening on ")
}

// told reads a line that the program prints, and what it says after the prefix.
func told(t *testing.T, out *bufio.Reader, prefix string) string {
	t.Helper()
	line, err := out.ReadString('\n')
	if err != nil || !strings.HasPrefix(line, prefix) {
		t.Fatalf("%q, %v", line, err)
	}
	return strings.TrimSpace(strings.TrimPrefix(line, prefix))
}

func TestPageOfTheRefused(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	pipe, in := io.Pipe()
	ended := make(chan error, 1)
	go func() {
		ended <- quickstart.Run(ctx, []string{"-addr", "127.0.0.1:0", "-rate", "1", "-per", "1h", "-burst", "1", "-debug", "127.0.0.1:0"}, in)
	}()
	out := bufio.NewReader(pipe)
	url, page := told(t, out, "listening on "), told(t, out, "who is refused: ")
	for range 3 {
		get(t, url, "ann")
	}
	r, err := http.Get(page)
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(r.Body)
	_ = r.Body.Close()
	if r.StatusCode != 200 || err != nil || !bytes.Contains(body, []byte("<code>49915e0d7d4b402e</code>")) || bytes.Contains(body, []byte("ann<")) {
		t.Errorf("%s, %v: %s", r.Status, err, body)
	}
	http.DefaultClient.CloseIdleConnections()
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

func get(t *testing.T, url, user string) *http.Response {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("X-User", user)
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	return resp
}

func TestServerLimitsEachUser(t *testing.T) {
	url := serve(t, "-rate", "1", "-burst", "2")
	for i, want := range []int{200, 200, 429} {
		if r := get(t, url, "ann"); r.StatusCode != want || r.Header.Get("X-RateLimit-Limit") != "2" {
			t.Errorf("request %d: %s, headers %v", i, r.Status, r.Header)
		} else if want == 429 && r.Header.Get("Retry-After") != "1" {
			t.Errorf("Retry-After is %q", r.Header.Get("Retry-After"))
		}
	}
	if r := get(t, url, "bob"); r.StatusCode != 200 {
		t.Errorf("another user: %s", r.Status)
	}
	for i, want := range []int{200, 200, 429} {
		if r := get(t, url, ""); r.StatusCode != want {
			t.Errorf("nobody %d: %s", i, r.Status)
		}
	}
}

// Two processes on one Redis share the limit. A client that comes back after Retry-After is
// admitted.
func TestRetryAfterLeadsToAdmission(t *testing.T) {
	redis := redistest.Start(t)
	urls := []string{
		serve(t, "-rate", "1", "-burst", "2", "-redis", redis.URL()), serve(t, "-rate", "1", "-burst", "2", "-redis", redis.URL()),
	}
	refused := 0
	for i := range 6 {
		begun := time.Now()
		r := get(t, urls[i%2], "ann")
		if r.StatusCode == http.StatusOK {
			continue
		}
		refused++
		wait, err := strconv.Atoi(r.Header.Get("Retry-After"))
		if r.StatusCode != 429 || err != nil || wait < 1 { // more than 1 s if the fail mode has admitted some
			t.Fatalf("%s, Retry-After %q", r.Status, r.Header.Get("Retry-After"))
		}
		// Once is enough, unless the machine is so busy that the fail mode decides: then what it
		// admits is charged afterwards.
		for tries := 1; r.StatusCode != http.StatusOK; tries++ {
			if tries > 5 {
				t.Fatalf("after %d times %d s: %s, Retry-After %q", tries, wait, r.Status, r.Header.Get("Retry-After"))
			}
			time.Sleep(time.Until(begun.Add(time.Duration(wait) * time.Second).Add(time.Since(begun)))) // from the answer on
			begun = time.Now()
			r = get(t, urls[i%2], "ann")
		}
	}
	if refused == 0 {
		t.Error("nothing was refused: the test sees nothing")
	}
}

// curl understands what it is told: it reads the answer, and with --retry it comes back when it
// may.
func TestCurl(t *testing.T) {
	curl, err := exec.LookPath("curl")
	if err != nil {
		t.Skip("no curl in PATH")
	}
	url := serve(t, "-rate", "1", "-per", "3s", "-burst", "1")
	ask := func(args ...string) string {
		t.Helper()
		out, err := exec.CommandContext(t.Context(), curl, append(args, "--silent", "--show-error", "--max-time", "20", url)...).CombinedOutput()
		if err != nil {
			t.Fatalf("curl %q: %v: %s", args, err, out)
		}
		return string(out)
	}
	read := func() string {
		r, err := http.ReadResponse(bufio.NewReader(bytes.NewBufferString(ask("--include", "--header", "X-User: ann"))), nil)
		if err != nil {
			t.Fatal(err)
		}
		_ = r.Body.Close()
		h := r.Header
		return fmt.Sprint(r.StatusCode, " ", h.Get("X-RateLimit-Limit"), " ", h.Get("X-RateLimit-Remaining"), " ", h.Get("X-RateLimit-Reset"), " ", h.Get("Retry-After"))
	}
	got, begun := "", time.Time{}
	for range 20 { // on a machine so slow that there is another token by then, the next one is refused
		begun = time.Now()
		if got = read(); got != "200 1 0 3 " {
			break
		}
	}
	if want := "429 1 0 3 3"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	// With --retry, Retry-After takes the place of curl's own pause, which would be a second.
	file := filepath.Join(t.TempDir(), "body")
	status := ask("--header", "X-User: ann", "--output", file, "--write-out", "%{http_code}", "--retry", "1")
	body, err := os.ReadFile(file)
	if took := time.Since(begun); err != nil || status != "200" || string(body) != "hello\n" || took < 2*time.Second {
		t.Errorf("curl came back after %v: %s %q (%v)", took, status, body, err)
	}
	if got := ask("--head", "--header", "X-User: cid"); !strings.HasPrefix(got, "HTTP/1.1 200") || !strings.Contains(got, "X-Ratelimit-Remaining: 0") {
		t.Errorf("HEAD: %s", got)
	}
}

func TestBadRedisURLIsNotShown(t *testing.T) {
	err := quickstart.Run(t.Context(), []string{"-redis", "redis://user:s3cr3t@%zz"}, io.Discard)
	if err == nil || strings.Contains(err.Error(), "s3cr3t") {
		t.Errorf("error %v", err)
	}
}
