package debugpage_test

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/fatal"
	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/testgroup"
	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
	"github.com/tiered-limiter/tiered-limiter/tiered/atonce"
	"github.com/tiered-limiter/tiered-limiter/tiered/debugpage"
)

var write = flag.String("write", "", "`file` to write the page into, which make pages PAGE=browser looks at")

const evil = `<script>alert("x")</script>` + "\x00\n"

// used returns a Group to which all has happened that the page tells of.
func used(t *testing.T) *tiered.Group {
	t.Helper()
	store := remote.NewMemory()
	g := fatal.Get(tiered.NewGroup(store, &tiered.Options{Processes: 2}))(t)
	ctx := context.Background()
	t.Cleanup(func() { store.Fail(nil); _ = g.Close(ctx) })
	for i, mode := range []tiered.FailMode{tiered.FailLocal, tiered.FailOpen, tiered.FailClosed} {
		l := testgroup.NewLimiter(t, g, tiered.Policy{
			Name: fmt.Sprint("policy-", i), Limit: tiered.PerMinute(1000).WithBurst(3),
			FailMode: mode,
		})
		for range 1234 {
			l.Allow(ctx, "ann@example.org")
		}
		for range 7 {
			l.Allow(ctx, evil)
			l.Allow(ctx, strings.Repeat("7", 200)) // wider than a phone
		}
		defer func() { l.Allow(ctx, "ann@example.org") }()
	}
	time.Sleep(10 * time.Second)
	store.Fail(errors.New("down"))
	g.CountReload(errors.New("a mistake"))
	return g
}

// hashed is how a key is shown by default.
func hashed(key string) string {
	sum := sha256.Sum256([]byte(key))
	return hex.EncodeToString(sum[:8])
}

func get(t *testing.T, g *tiered.Group, o *debugpage.Options, method, url string) (*http.Response, string) {
	t.Helper()
	p := fatal.Get(debugpage.New(g, o))(t)
	w := httptest.NewRecorder()
	p.ServeHTTP(w, httptest.NewRequest(method, url, nil))
	b := fatal.Get(io.ReadAll(w.Result().Body))(t)
	return w.Result(), string(b)
}

func TestPage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := used(t)
		r, page := get(t, g, nil, http.MethodGet, "/debug")
		if r.StatusCode != 200 || r.Header.Get("Content-Type") != "text/html; charset=utf-8" ||
			r.Header.Get("Cache-Control") != "no-store" {
			t.Errorf("%s %v", r.Status, r.Header)
		}
		for _, want := range []string{
			"1 of 1 Redis nodes does not answer", `<span class="state open">open</span> unreachable`,
			"1\u202f000 per minute, bursts of 3",
			"fail-open", "fail-closed", "fail-local", "1\u202f231", "breaker opened", "the last one failed", "<code>" +
				hashed("ann@example.org") + "</code>", hashed(evil),
		} {
			if !strings.Contains(page, want) {
				t.Errorf("no %q in the page", want)
			}
		}
		for _, secret := range []string{"ann", "alert", "example.org", "http-equiv"} {
			if strings.Contains(page, secret) {
				t.Errorf("%q is in the page", secret)
			}
		}
		if len(page) > 60_000 {
			t.Errorf("%d bytes", len(page))
		}
		if *write != "" {
			_, page = get(t, g, &debugpage.Options{ShowKeys: true}, http.MethodGet, "/debug")
			fatal.If(t, os.WriteFile(*write, []byte(page), 0o600))
		}
		_, page = get(t, g, &debugpage.Options{ShowKeys: true}, http.MethodGet, "/debug?every=7")
		for _, want := range []string{
			"<code>ann@example.org</code>", "&lt;script&gt;alert", `\x00\n`,
			`http-equiv="refresh" content="7"`,
		} {
			if !strings.Contains(page, want) {
				t.Errorf("no %q in the page with keys", want)
			}
		}
		if strings.Contains(page, "<script") {
			t.Error("a key is markup")
		}
	})
}

func TestEmptyPage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := testgroup.New(t, remote.NewMemory(), nil)
		_, page := get(t, g, nil, http.MethodGet, "/")
		for _, want := range []string{
			"There is no policy.", "No key was refused.", "Nothing went wrong.",
			`<span class="state closed">`,
		} {
			if !strings.Contains(page, want) {
				t.Errorf("no %q in the page", want)
			}
		}
		if _, err := debugpage.New(new(tiered.Group), nil); err == nil {
			t.Error("a zero Group is accepted")
		}
		if _, err := debugpage.New(nil, nil); err == nil {
			t.Error("a page of no group")
		}
	})
}

// Nothing but GET and HEAD, nothing from elsewhere, no script; the style that is there is the one
// that is allowed.
func TestManners(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := testgroup.New(t, remote.NewMemory(), nil)
		for method, want := range map[string]int{
			"GET": 200, "HEAD": 200, "POST": 200, "PUT": 405, "DELETE": 405,
			"OPTIONS": 405, "BREW": 405,
		} {
			r, page := get(t, g, nil, method, "/")
			h := r.Header
			if r.StatusCode != want || want == 405 && h.Get("Allow") != "GET, HEAD, POST" ||
				want == 405 && strings.Contains(page, "<") {
				t.Errorf("%s: %s %v", method, r.Status, h)
			}
			if !strings.HasPrefix(h.Get("Content-Security-Policy"), "default-src 'none'; style-src 'sha256-") ||
				h.Get("X-Content-Type-Options") != "nosniff" {
				t.Errorf("%s: %v", method, h)
			}
		}
		for every, want := range map[string]int{
			"1": 200, "300": 200, "0": 400, "301": 400, "-1": 400, "x": 400,
			"5%3Burl=https://example.org": 400,
		} {
			if r, _ := get(t, g, nil, http.MethodGet, "/?every="+every); r.StatusCode != want {
				t.Errorf("every=%s: %s, want %d", every, r.Status, want)
			}
		}
		r, page := get(t, g, nil, http.MethodGet, "/")
		_, css, _ := strings.Cut(page, "<style>")
		css, _, _ = strings.Cut(css, "</style>")
		sum := sha256.Sum256([]byte(css))
		policy := r.Header.Get("Content-Security-Policy")
		if want := "'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'"; css == "" ||
			!strings.Contains(policy, want) {
			t.Errorf("the policy is %q, the style %s", policy, want)
		}
		if strings.Contains(page, " style=") || strings.Contains(page, "<script") || strings.Contains(page, "src=") {
			t.Error("the page has what its policy forbids")
		}
	})
}

func TestWords(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0: "0", 1500: "2µs", 2345 * time.Microsecond: "2ms", 1520 * time.Millisecond: "1.5s", 125 * time.Second: "2m5s",
		200 * time.Minute: "3h20m", 75 * time.Hour: "3 days", 1<<63 - 1: "106751 days",
	} {
		if got := debugpage.Length(d); got != want {
			t.Errorf("%d ns: %s, want %s", d, got, want)
		}
	}
	for n, want := range map[int64]string{
		0: "0", 999: "999", -999: "-999", 1000: "1 000", 1234567: "1 234 567",
		-123456: "-123 456",
	} {
		if got := strings.ReplaceAll(debugpage.Count(n), "\u202f", " "); got != want {
			t.Errorf("%d: %s, want %s", n, got, want)
		}
	}
}

// The page tells who waits, for how long, and who gave up; and nothing where nobody ever waited.
func TestWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := testgroup.New(t, remote.NewMemory(), nil)
		l := testgroup.NewLimiter(t, g, tiered.Policy{Name: "api", Limit: tiered.PerMinute(1)})
		l.Allow(t.Context(), "k")
		if _, body := get(t, g, nil, http.MethodGet, "/"); strings.Contains(body, "gave up") ||
			strings.Contains(body, "at most") {
			t.Error("nobody waited yet")
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if l.Wait(ctx, "k") == nil {
			t.Error("a token before its time")
		}
		for range 3 {
			go l.Wait(t.Context(), "k") //nolint:errcheck // their figures are looked at
		}
		time.Sleep(61 * time.Second)
		const cell = `<span>2 <span class="less">1m0s at most, 1 gave up</span></span>`
		if _, body := get(t, g, nil, http.MethodGet, "/"); !strings.Contains(body, cell) {
			t.Error("no figures of those who wait")
		}
		time.Sleep(2 * time.Minute)
	})
}

// The page says which part of the standing shares a process has.
func TestStandingShares(t *testing.T) {
	limit := tiered.PerSecond(100)
	for _, row := range []struct {
		standing float64
		outside  int64
		want     string
	}{
		{0, 0, ""},
		{1.0 / 8, 0, ", with 25.0 % of the standing shares (4 processes have some)"},
		{1.0 / 8, 2, ", without standing shares because 2 processes do not split it alike"},
	} {
		var p tiered.PolicyStats
		p.Standing.Outside = row.outside
		got := debugpage.StandingOf(tiered.Policy{Name: "api", Limit: limit, Standing: row.standing}, p, 0.25, 4)
		if got != row.want {
			t.Errorf("%v, %d outside: %q, want %q", row.standing, row.outside, got, row.want)
		}
	}
}

// The page shows what runs at the same time, if there is a policy for it.
func TestAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := fatal.Get(tiered.NewGroup(remote.NewMemory(), nil))(t)
		defer func() { _ = g.Close(context.Background()) }()
		if _, page := get(t, g, nil, http.MethodGet, "/"); strings.Contains(page, "At the same time") {
			t.Error("the page shows places of no policy")
		}
		l := fatal.Get(atonce.New(g, atonce.Policy{Name: "in-flight", Places: 1}))(t)
		place := fatal.Get(l.Acquire(context.Background(), "k"))(t)
		if _, err := l.Acquire(context.Background(), "k"); err == nil {
			t.Error("two run")
		}
		_, page := get(t, g, nil, http.MethodGet, "/")
		for _, want := range []string{">in-flight<", `data-of="Running">1<`, `data-of="Refused"><span>1<`} {
			if !strings.Contains(page, want) {
				t.Errorf("the page lacks %q", want)
			}
		}
		place.Release()
	})
}
