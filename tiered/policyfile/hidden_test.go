package policyfile_test

import (
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/fatal"
	"github.com/tiered-limiter/tiered-limiter/tiered/policyfile"
)

// A file may keep a limit out of the fields that state it.
func TestHidden(t *testing.T) {
	const text = `version: 1
policies: [{name: user, limit: 9/day}, {name: address, limit: 2/day}]
at_once: [{name: in-flight, places: 5}]
http:
  - match: /
    limits: [{policy: user, key: header X-User}, {policy: address, key: ip, hidden: true}]
grpc:
  - match: /
    limits: [{policy: address, key: ip, hidden: true, at_once: in-flight}]
`
	fatal.If(t, validate(t, compile(t), []byte(text)))
	f := parse(t, text)
	if again := parse(t, f.String()); !f.HTTP[0].Limits[1].Hidden || again.String() != f.String() || !again.GRPC[0].Limits[0].Hidden {
		t.Errorf("written as %s", again)
	}
	h := behind(t, text)
	r := httptest.NewRequest("GET", "/", nil)
	r.Header.Set("X-User", "ann")
	w := httptest.NewRecorder()
	if h.ServeHTTP(w, r); w.Header().Get("X-RateLimit-Limit") != "9" {
		t.Errorf("%+v", w.Header())
	}
	for old, wrong := range map[string][2]string{
		"policy: address, key: ip, hidden: true, at_once": {"key: ip, hidden: true, at_once", "hidden is true without policy: must be left out"},
		"hidden: true}]\ngrpc":                            {"hidden: yes}]\ngrpc", "hidden: is \"yes\": must be true or false"},
	} {
		_, err := policyfile.Parse("p.yaml", []byte(strings.Replace(text, old, wrong[0], 1)))
		if err == nil || !strings.Contains(err.Error(), wrong[1]) {
			t.Errorf("%s: %v", wrong[0], err)
		}
	}
}
