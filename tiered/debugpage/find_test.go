package debugpage_test

import (
	"context"
	"errors"
	"html"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/tiered-limiter/tiered-limiter/internal/defaults"
	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/fatal"
	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/testgroup"
	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
	"github.com/tiered-limiter/tiered-limiter/tiered/debugpage"
)

// find is the page after somebody typed a key.
func find(t *testing.T, g *tiered.Group, o *debugpage.Options, key string) (status int, page string) {
	t.Helper()
	h := fatal.Get(debugpage.New(g, o))(t)
	r := httptest.NewRequest(http.MethodPost, "/", strings.NewReader(url.Values{"key": {key}}.Encode()))
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	_, page, _ = strings.Cut(w.Body.String(), "<h2>Find a key</h2>")
	page, _, _ = strings.Cut(page, "<h2>Redis</h2>")
	return w.Code, page
}

// A key that is typed in is shown with each of its limits, and nothing is taken from it.
func TestFindKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := remote.NewMemory()
		g := testgroup.New(t, store, nil)
		ctx := context.Background()
		l := testgroup.NewLimiter(t, g, tiered.Policy{Name: "api", Limit: tiered.PerMinute(3).And(tiered.PerDay(20))})
		fatal.Get(g.NewLimiter(tiered.Policy{Name: "free", Limit: tiered.Unlimited()}))(t)
		l.AllowN(ctx, "ann", 3)
		for range 2 { // looking changes nothing
			code, page := find(t, g, nil, "ann")
			for _, want := range []string{
				hashed("ann"), `data-of="Tokens left">0<`, `data-of="Tokens left">17<`, `data-of="Of at most">20<`,
				"3 per minute", "20 per day", "refused for 20s", "admitted", "unlimited",
			} {
				if code != 200 || !strings.Contains(page, want) {
					t.Errorf("%d, no %q in\n%s", code, want, page)
				}
			}
			if strings.Contains(page, "ann") {
				t.Error("the key is shown as it is")
			}
		}
		if _, page := find(t, g, &debugpage.Options{ShowKeys: true}, evil); strings.Contains(page, "<script") {
			t.Error("a key is not escaped")
		}
		for key, want := range map[string]string{
			"ann": "ann", `a"b`: `"a\"b"`,
			strings.Repeat("x", 100): strings.Repeat("x", 80) + "…", "é": "é", "\xff": `"\xff"`,
		} {
			if _, page := find(t, g, &debugpage.Options{ShowKeys: true}, key); !strings.Contains(page, ">"+html.EscapeString(want)+"<") {
				t.Errorf("%q is not shown as %s in\n%s", key, want, page)
			}
		}
		for _, key := range []string{"", strings.Repeat("x", defaults.MaxKeyLength+1)} {
			if code, page := find(t, g, nil, key); code != 200 || !strings.Contains(page, "invalid key") {
				t.Errorf("%d bytes: %d\n%s", len(key), code, page)
			}
		}
		if code, _ := find(t, g, nil, strings.Repeat("x", 4*defaults.MaxKeyLength)); code != 400 {
			t.Errorf("a form that is too long: %d", code)
		}
		store.Fail(errors.New("away"))
		if code, page := find(t, g, nil, "bob"); code != 200 || !strings.Contains(page, "cannot decide now") {
			t.Errorf("without Redis: %d\n%s", code, page)
		}
		store.Fail(nil)
	})
}
