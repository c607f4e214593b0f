package docs_test

import (
	"bytes"
	"errors"
	"fmt"
	"go/format"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/fatal"
	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/redistest"
)

// The README's first program does what the README says: it limits, and on SIGTERM it gives its
// lease back.
func TestFirstProgram(t *testing.T) {
	toRoot(t)
	server := redistest.StartOpen(t)
	addr := fmt.Sprintf("127.0.0.1:%d", redistest.FreePort(t))
	executable := buildFirstProgram(t, map[string]string{`"redis://localhost:6379"`: "redis://" + server.Addr, `":8080"`: addr})
	program := startProgram(t, executable)

	// A client faster than the limit is refused, and not before it had the burst.
	url := "http://" + addr
	admitted, refused := 0, (*http.Response)(nil)
	for deadline := time.Now().Add(20 * time.Second); refused == nil; {
		if time.Now().After(deadline) {
			t.Fatalf("nothing was refused: %d requests were admitted in 20 s\n%s", admitted, program.output())
		}
		switch r, err := http.Get(url); {
		case err != nil:
			time.Sleep(10 * time.Millisecond) // the program does not listen yet
		case r.StatusCode == http.StatusTooManyRequests:
			refused = discard(t, r)
		case r.StatusCode == http.StatusOK:
			discard(t, r)
			admitted++
		default:
			t.Fatalf("%s\n%s", r.Status, program.output())
		}
	}
	if admitted < 100 { // half of the burst: if the machine is busy, the fail mode answers some requests
		t.Errorf("refused after %d requests, and the burst is 200", admitted)
	}
	if refused.Header.Get("Retry-After") != "1" || refused.Header.Get("X-RateLimit-Limit") != "200" {
		t.Errorf("the refusal says %v", refused.Header)
	}

	// Wait until it holds a lease, and stop it. Without Close the lease would stay for half a
	// second.
	client := server.Client()
	for deadline := time.Now().Add(20 * time.Second); leased(t, client) == "0"; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("no lease within 20 s\n%s", program.output())
		}
		if r, err := http.Get(url); err != nil {
			t.Fatal(err)
		} else {
			discard(t, r)
		}
	}
	fatal.If(t, program.cmd.Process.Signal(syscall.SIGTERM))
	select {
	case err := <-program.ended:
		if err != nil {
			t.Errorf("after SIGTERM: %v", err)
		}
	case <-time.After(20 * time.Second):
		t.Fatalf("still there 20 s after SIGTERM\n%s", program.output())
	}
	if out := leased(t, client); out != "0" {
		t.Errorf("%s tokens are still leased", out)
	}
	if n := client.ZCard(t.Context(), "tl:{~0}pr2").Val(); n != 0 {
		t.Errorf("Redis still counts %d processes", n)
	}
	if !strings.Contains(program.output(), "closed: <nil>\n") {
		t.Errorf("it says %q", program.output())
	}

	// In an outage it answers, and its log has what the limiter says, not what go-redis says.
	server.Kill()
	program = startProgram(t, executable)
	for deadline := time.Now().Add(20 * time.Second); !strings.Contains(program.output(), "redis does not answer"); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("no word of the outage within 20 s\n%s", program.output())
		}
		if r, err := http.Get(url); err == nil && discard(t, r).StatusCode != http.StatusOK {
			t.Fatalf("in the outage: %s", r.Status)
		}
	}
	if strings.Contains(program.output(), "connection pool") {
		t.Errorf("go-redis' lines are in the log:\n%s", program.output())
	}
}

// buildFirstProgram compiles the README's first program, with its addresses replaced, and returns
// the name of the executable.
func buildFirstProgram(t *testing.T, addresses map[string]string) string {
	t.Helper()
	readme := fatal.Get(os.ReadFile("README.md"))(t)
	found := regexp.MustCompile("(?s)```go\n(package main\n.*?)```").FindAllSubmatch(readme, -1)
	if len(found) != 1 {
		t.Fatalf("the README has %d programs", len(found))
	}
	source := found[0][1]
	if pretty, err := format.Source(source); err != nil || !bytes.Equal(pretty, source) {
		t.Errorf("gofmt would change the README's program, or it is none: %v", err)
	}
	_, code, _ := bytes.Cut(source, []byte("\n)\n")) // behind the imports
	if n := len(regexp.MustCompile(`(?m)^.*\S`).FindAll(code, -1)); n > 25 {
		t.Errorf("the README's program has %d lines of code", n)
	}
	for literal, addr := range addresses {
		if n := bytes.Count(source, []byte(literal)); n != 1 {
			t.Fatalf("%s is %d times in the README's program", literal, n)
		}
		source = bytes.ReplaceAll(source, []byte(literal), fmt.Appendf(nil, "%q", addr))
	}
	dir := t.TempDir()
	file, executable := filepath.Join(dir, "main.go"), filepath.Join(dir, "program")
	fatal.If(t, os.WriteFile(file, source, 0o600))
	for _, args := range [][]string{{"vet", file}, {"build", "-o", executable, file}} {
		if out, err := exec.Command("go", args...).CombinedOutput(); err != nil {
			t.Fatalf("go %s: %v\n%s", args[0], err, out)
		}
	}
	return executable
}

// runningProgram is a program under test.
type runningProgram struct {
	cmd   *exec.Cmd
	ended chan error
	log   string // name of the file that it writes to
}

// startProgram runs a program until it ends, or until the end of the test. It has a file to serve.
func startProgram(t *testing.T, executable string) *runningProgram {
	t.Helper()
	p := &runningProgram{cmd: exec.Command(executable), ended: make(chan error, 1), log: filepath.Join(t.TempDir(), "log")}
	log := fatal.Get(os.Create(p.log))(t)
	defer log.Close()
	p.cmd.Dir, p.cmd.Stdout, p.cmd.Stderr = t.TempDir(), log, log
	public := filepath.Join(p.cmd.Dir, "public")
	fatal.If(t, errors.Join(os.Mkdir(public, 0o700), os.WriteFile(filepath.Join(public, "index.html"), nil, 0o600)))
	p.cmd.SysProcAttr = redistest.DieWithParent()
	fatal.If(t, p.cmd.Start())
	gone := make(chan struct{})
	go func() { p.ended <- p.cmd.Wait(); close(gone) }()
	t.Cleanup(func() { _ = p.cmd.Process.Kill(); <-gone })
	return p
}

func (p *runningProgram) output() string {
	text, err := os.ReadFile(p.log)
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// discard reads an answer to its end, so that its connection is used again.
func discard(t *testing.T, r *http.Response) *http.Response {
	t.Helper()
	_, err := io.Copy(io.Discard, r.Body)
	fatal.If(t, errors.Join(err, r.Body.Close()))
	return r
}

// leased returns how many tokens of the client's bucket are leased, by what Redis stores: field o
// of the token bucket.
func leased(t *testing.T, client *redis.Client) string {
	t.Helper()
	out, err := client.HGet(t.Context(), "tl:{per-ip/127.0.0.1}tb2", "o").Result()
	if errors.Is(err, redis.Nil) {
		return "0"
	}
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// The README's one command makes all packages of a checkout compile in a module beside it.
func TestWorkspaceOfACheckout(t *testing.T) {
	if testing.Short() {
		t.Skip("it may fetch what the modules of contrib need")
	}
	command := regexp.MustCompile(`(?m)^    (go work init .*)$`).FindSubmatch(fatal.Get(os.ReadFile("../README.md"))(t))
	if command == nil {
		t.Fatal("the README has no such command")
	}
	root, dir := fatal.Get(filepath.Abs(".."))(t), t.TempDir()
	fatal.If(t, errors.Join(os.Symlink(root, filepath.Join(dir, "tiered-limiter")), os.Mkdir(filepath.Join(dir, "app"), 0o700)))
	for name, text := range map[string]string{
		"go.mod": "module example.com/app\n\ngo 1.26\n",
		"main.go": `package main

import (
	_ "github.com/tiered-limiter/tiered-limiter/contrib/ginlimit"
	_ "github.com/tiered-limiter/tiered-limiter/contrib/prometheus"
	_ "github.com/tiered-limiter/tiered-limiter/tiered"
)

func main() {}
`,
	} {
		fatal.If(t, os.WriteFile(filepath.Join(dir, "app", name), []byte(text), 0o600))
	}
	for _, line := range []string{string(command[1]), "go vet ."} {
		c := exec.Command("sh", "-c", line)
		c.Dir = filepath.Join(dir, "app")
		c.Env = append(os.Environ(), "GOWORK=", "GOFLAGS=")
		if out, err := c.CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", line, err, out)
		}
	}
}
