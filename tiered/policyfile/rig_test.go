package policyfile_test

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"go.uber.org/goleak"

	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/fatal"
	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/testgroup"
	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
	"github.com/tiered-limiter/tiered-limiter/tiered/httplimit"
	"github.com/tiered-limiter/tiered-limiter/tiered/policyfile"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const ok = http.StatusOK

func parse(t *testing.T, text string) *policyfile.File {
	t.Helper()
	f := fatal.Get(policyfile.Parse("p.yaml", []byte(text)))(t)
	return f
}

// middleware is that of a policy file.
func middleware(t *testing.T, text string, o *httplimit.Options) (func(http.Handler) http.Handler, *tiered.Group) {
	t.Helper()
	f := parse(t, text)
	g := testgroup.New(t, remote.NewMemory(), nil, f.Policies...)
	m := fatal.Get(f.Middleware(g, o))(t)
	return m, g
}

// served is a handler that answers 200.
var served = http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})

// behind is a handler behind the limits of a policy file.
func behind(t *testing.T, text string) http.Handler {
	t.Helper()
	m, _ := middleware(t, text, nil)
	return m(served)
}

// ask sends a request, and returns the status. Fields are names and values by turns. That of "peer"
// is the client's address.
func ask(h http.Handler, method, target string, fields ...string) int {
	r, w := httptest.NewRequest(method, target, nil), httptest.NewRecorder()
	for i := 0; i < len(fields); i += 2 {
		switch {
		case fields[i] == "peer":
			r.RemoteAddr = fields[i+1]
		case fields[i+1] != "":
			r.Header.Set(fields[i], fields[i+1])
		}
	}
	h.ServeHTTP(w, r)
	return w.Code
}
