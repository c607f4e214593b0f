package main_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/tiered-limiter/tiered-limiter/internal/rig/must"
)

// What /json cannot read is a bad request, and takes nothing.
func TestBadJSON(t *testing.T) {
	p := start(t, limits, "TIERED_MAX_MESSAGE=1024")
	for name, c := range map[string]struct {
		body string
		code int
	}{
		"nothing":                  {"", http.StatusBadRequest},
		"negative hits":            {`{"domain": "d", "hitsAddend": -1}`, http.StatusBadRequest},
		"negative hits of one":     {`{"domain": "d", "descriptors": [{"hitsAddend": "-1"}]}`, http.StatusBadRequest},
		"too many hits":            {`{"domain": "d", "hitsAddend": 4294967296}`, http.StatusBadRequest},
		"text that is not UTF-8":   {"{\"domain\": \"\xff\"}", http.StatusBadRequest},
		"half a surrogate pair":    {`{"domain": "\ud800"}`, http.StatusBadRequest},
		"a field twice":            {`{"domain": "d", "domain": "e"}`, http.StatusBadRequest},
		"a field that is not ours": {`{"domain": "d", "hits": 1}`, http.StatusBadRequest},
		"too long":                 {`{"domain": "` + strings.Repeat("d", 1<<10) + `"}`, http.StatusRequestEntityTooLarge},
	} {
		r := must.Get(p.http.Post(p.public+"/json", "application/json", strings.NewReader(c.body)))(t)
		_ = r.Body.Close()
		if r.StatusCode != c.code || r.Header.Get("Content-Type") != "text/plain; charset=utf-8" {
			t.Errorf("%s: %s, want %d", name, r.Status, c.code)
		}
	}
	p.play(t, [2]string{"shop | user=a", "OK | OK 99/100"})
}
