package docs_test

import (
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/adapters"
	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/fatal"
	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
	"github.com/tiered-limiter/tiered-limiter/tiered/atonce"
	"github.com/tiered-limiter/tiered-limiter/tiered/httplimit"
)

// From docs/http.md. The code about the debug page is in getting_started_test.go.

func limitRoutes(http *http.ServeMux, perUser, perIP *tiered.Limiter, api http.Handler) error {
	limit, err := httplimit.New([]httplimit.Rule{
		{Limiter: perUser, Key: httplimit.Credential("Authorization"), Missing: httplimit.Exempt},
		{Limiter: perIP, Key: httplimit.RemoteIP(), Missing: httplimit.Refuse},
	}, nil)
	if err != nil {
		return err
	}
	http.Handle("/api/", limit(api))
	return nil
}

func limitBesideCORS(http *http.ServeMux, limit func(http.Handler) http.Handler, api http.Handler) {
	exposed := "Retry-After, X-RateLimit-Limit, X-RateLimit-Remaining, X-RateLimit-Reset" // with IETFDraft11 also RateLimit-Policy, RateLimit
	http.Handle("/api/", cors(exposed, limit(api)))
}

// cors is a CORS middleware for one origin.
func cors(exposed string, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Access-Control-Allow-Origin", "https://shop.example")
		w.Header().Set("Access-Control-Expose-Headers", exposed)
		if httplimit.Preflight(r) {
			w.WriteHeader(http.StatusNoContent)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// A page of another origin can read a refusal and each of its fields, and a preflight takes
// nothing.
func TestRefusalForAPageOfAnotherOrigin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := fatal.Get(tiered.New(remote.NewMemory(), tiered.Policy{Name: "p", Limit: tiered.PerHour(1)}, nil))(t)
		defer l.Group().Close(t.Context())
		mux := http.NewServeMux()
		limitBesideCORS(mux, fatal.Get(httplimit.ByIP(l))(t), http.NotFoundHandler())
		for i, c := range []struct {
			method string
			status int
		}{{http.MethodOptions, 204}, {http.MethodGet, 404}, {http.MethodGet, 429}} {
			r, w := httptest.NewRequest(c.method, "/api/", nil), httptest.NewRecorder()
			r.Header.Set("Origin", "https://shop.example")
			r.Header.Set("Access-Control-Request-Method", "GET")
			mux.ServeHTTP(w, r)
			if w.Code != c.status || w.Header().Get("Access-Control-Allow-Origin") == "" {
				t.Errorf("request %d: status %d, %v", i, w.Code, w.Header())
			}
			exposed := strings.Split(w.Header().Get("Access-Control-Expose-Headers"), ", ")
			for name := range w.Header() {
				ours := name == "Retry-After" || strings.HasPrefix(name, "X-Ratelimit-")
				if ours && !slices.ContainsFunc(exposed, func(e string) bool { return strings.EqualFold(e, name) }) {
					t.Errorf("request %d: %s is not exposed", i, name)
				}
			}
		}
	})
}

func askInHandler(limiter *tiered.Limiter, userID string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		d := limiter.Allow(r.Context(), userID)
		if !d.Allowed {
			httplimit.WriteRefusal(w, d) // status, fields and a line of text
			return
		}
		httplimit.WriteHeaders(w.Header(), d)
	}
}

// If the Group is closed before the server, the fail mode decides requests that still come, and none
// of them has a place.
func TestRequestsAfterClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for mode, want := range map[tiered.FailMode]int{tiered.FailOpen: 404, tiered.FailClosed: 503} {
			group := fatal.Get(tiered.NewGroup(remote.NewMemory(), nil))(t)
			l := fatal.Get(group.NewLimiter(tiered.Policy{Name: "p", Limit: tiered.PerHour(1), FailMode: mode}))(t)
			places := fatal.Get(atonce.New(group, atonce.Policy{Name: "places", Places: 5, FailMode: mode}))(t)
			status := func(rule httplimit.Rule) int {
				rule.Key, rule.Missing = httplimit.RemoteIP(), httplimit.Refuse
				limit := fatal.Get(httplimit.New([]httplimit.Rule{rule}, nil))(t)
				w := httptest.NewRecorder()
				limit(http.NotFoundHandler()).ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", nil))
				return w.Code
			}
			byRate, byPlaces := httplimit.Rule{Limiter: l}, httplimit.Rule{AtOnce: places}
			if before := status(byPlaces); status(byRate) != 404 || before != 404 {
				t.Errorf("%v, before: %d", mode, before)
			}
			fatal.If(t, group.Close(t.Context()))
			if rate, place := status(byRate), status(byPlaces); rate != want || place != 503 {
				t.Errorf("%v, after: %d by the rate, and %d by the places", mode, rate, place)
			}
		}
	})
}

// The page's list of what a framework cannot do is what is played on each of them.
func TestExceptionsOfFrameworksAreOnThePage(t *testing.T) {
	page := strings.Join(strings.Fields(string(fatal.Get(os.ReadFile("http.md"))(t))), " ")
	_, list, _ := strings.Cut(page, "The exceptions: ")
	list, _, _ = strings.Cut(list, " ## ")
	if want := strings.Join(strings.Fields(adapters.Markdown()), " "); list != want {
		t.Errorf("docs/http.md has\n%s\nand must have\n%s", list, adapters.Markdown())
	}
}

// The rows of the page's table about answers that do not need an outage.
func TestHTTPPage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		group := fatal.Get(tiered.NewGroup(remote.NewMemory(), nil))(t)
		defer group.Close(t.Context())
		policies := map[string]*tiered.Limiter{}
		for name, limit := range map[string]tiered.Limit{
			"user": tiered.PerSecond(100).WithBurst(200), "ip": tiered.PerSecond(1), "blocked": tiered.Blocked(),
		} {
			policies[name] = fatal.Get(group.NewLimiter(tiered.Policy{Name: name, Limit: limit}))(t)
		}
		mux := http.NewServeMux()
		api := http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})
		fatal.If(t, limitRoutes(mux, policies["user"], policies["ip"], api))
		mux.Handle("/handler", askInHandler(policies["user"], "ann"))
		mux.Handle("/blocked", askInHandler(policies["blocked"], "ann"))
		for _, c := range []struct {
			path, address                  string
			status                         int
			limit, remaining, reset, retry string
		}{
			{"/handler", "192.0.2.1:1", 200, "200", "199", "1", ""},
			{"/blocked", "192.0.2.1:1", 429, "", "", "", ""},
			{"/api/", "192.0.2.1:1", 200, "1", "0", "1", ""},
			{"/api/", "192.0.2.1:1", 429, "1", "0", "1", "1"},
			{"/api/", "@", 400, "", "", "", ""}, // a unix socket has no address
		} {
			r, w := httptest.NewRequest(http.MethodGet, c.path, nil), httptest.NewRecorder()
			r.RemoteAddr = c.address
			mux.ServeHTTP(w, r)
			for name, want := range map[string]string{
				"X-RateLimit-Limit": c.limit, "X-RateLimit-Remaining": c.remaining, "X-RateLimit-Reset": c.reset,
				"Retry-After": c.retry,
			} {
				if got := w.Header().Get(name); got != want {
					t.Errorf("%s %s: %s is %q, want %q", c.path, c.address, name, got, want)
				}
			}
			if w.Code != c.status {
				t.Errorf("%s: status %d, want %d", c.path, w.Code, c.status)
			}
		}
	})
}
