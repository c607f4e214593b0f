package main

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// What /json cannot read is a bad request, and nobody is asked.
func TestBadJSON(t *testing.T) {
	v := &server{settings: settings{MaxMessage: 1 << 10}} // without a service
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
		w := httptest.NewRecorder()
		v.json(w, httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/json", strings.NewReader(c.body)))
		if w.Code != c.code || w.Header().Get("Content-Type") != "text/plain; charset=utf-8" {
			t.Errorf("%s: %d, want %d: %s", name, w.Code, c.code, w.Body)
		}
	}
}
