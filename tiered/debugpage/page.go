// Package debugpage shows what a limiter does, as one web page without scripts: policies, the
// breaker of each Redis node, what is leased, which keys are refused most and why, and the latest
// events.
//
//	mux.Handle("/debug/limiter", page) // of a port that only operators reach
//
// A reader of the page learns the names of nodes and policies, and how much is used. Mount it where
// strangers cannot reach it.
package debugpage

import (
	"bytes"
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"html/template"
	"net/http"
	"strconv"
	"time"

	"github.com/tiered-limiter/tiered-limiter/internal/defaults"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// Options are the options of [New]. nil means the defaults.
type Options struct {
	// ShowKeys shows refused keys as they are. By default the page shows 16 hex digits of their
	// SHA-256, because keys may be e-mail addresses, tokens or IP addresses. A key that can be
	// guessed can be recognized by its hash too.
	ShowKeys bool
}

// New returns the page of a Group. The page answers GET, HEAD and POST under any path. Each request
// calls [tiered.Group.Stats], which walks all keys. With ?every=5 the browser reloads the page
// every 5 s (1 … 300). The error is not nil if g is nil or zero.
//
// A POST with the form value "key" shows the state of that key in each policy, by
// [tiered.Limiter.PeekEach]. It takes nothing. The key is not in the URL, so it is in no access
// log.
func New(g *tiered.Group, o *Options) (http.Handler, error) {
	switch {
	case g == nil:
		return nil, errors.New("debugpage: group is nil: must be set")
	case g.Stats().Format == "":
		return nil, errors.New("debugpage: group is zero: must be made by tiered.NewGroup")
	}
	p := &page{group: g}
	if o != nil {
		p.Options = *o
	}
	return p, nil
}

type page struct {
	group *tiered.Group
	Options
}

//go:embed page.html
var source string

//go:embed page.css
var style string

// policy is the Content-Security-Policy. It allows the page's own style, by its hash, and nothing
// else.
var policy = func() string {
	sum := sha256.Sum256([]byte(style))
	return "default-src 'none'; style-src 'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) +
		"'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
}()

var text = template.Must(template.New("page").Funcs(template.FuncMap{
	"style": func() template.CSS { return template.CSS(style) }, //nolint:gosec // ours, and checked against the policy
	"count": count, "length": length, "ago": ago,
}).Parse(source))

const (
	maxEvery = 300
	maxForm  = 4 * defaults.MaxKeyLength // bytes of a form: a key may be escaped, three bytes for one
)

// ServeHTTP implements http.Handler.
func (p *page) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("Cache-Control", "no-store")
	h.Set("Content-Security-Policy", policy)
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("X-Content-Type-Options", "nosniff")
	switch r.Method {
	case http.MethodGet, http.MethodHead, http.MethodPost:
	default:
		h.Set("Allow", "GET, HEAD, POST")
		http.Error(w, "GET, HEAD or POST", http.StatusMethodNotAllowed)
		return
	}
	every := 0
	if s := r.URL.Query().Get("every"); s != "" {
		n, err := strconv.Atoi(s)
		if err != nil || n < 1 || n > maxEvery {
			http.Error(w, fmt.Sprintf("every is %.20q: must be 1 to %d", s, maxEvery), http.StatusBadRequest)
			return
		}
		every = n
	}
	v := p.view(every)
	if r.Method == http.MethodPost {
		r.Body = http.MaxBytesReader(w, r.Body, maxForm)
		if err := r.ParseForm(); err != nil {
			http.Error(w, "the form cannot be read, or is too long", http.StatusBadRequest)
			return
		}
		v.Found = p.find(r.Context(), r.PostForm.Get("key"))
	}
	var b bytes.Buffer // buffered, so that an error does not leave half a page
	if err := text.Execute(&b, v); err != nil {
		http.Error(w, "the page cannot be drawn", http.StatusServiceUnavailable)
		return
	}
	h.Set("Content-Type", "text/html; charset=utf-8")
	h.Set("Content-Length", strconv.Itoa(b.Len()))
	_, _ = w.Write(b.Bytes()) // net/http omits the body for HEAD
}

// hashed returns the first 16 hex digits of a key's SHA-256.
func hashed(key string) string {
	sum := sha256.Sum256([]byte(key))
	return hex.EncodeToString(sum[:8])
}

// count formats a number with thin spaces between thousands.
func count(n int64) string {
	s := strconv.FormatInt(n, 10)
	first := 0
	if n < 0 {
		first = 1
	}
	for i := len(s) - 3; i > first; i -= 3 {
		s = s[:i] + "\u202f" + s[i:]
	}
	return s
}

// length formats a duration in at most two units: 1.5s, 2m5s, 3h20m.
func length(d time.Duration) string {
	switch {
	case d == 0:
		return "0"
	case d < time.Millisecond:
		return d.Round(time.Microsecond).String()
	case d < time.Second:
		return d.Round(time.Millisecond).String()
	case d < time.Minute:
		return d.Round(time.Second / 10).String()
	case d < time.Hour:
		return d.Round(time.Second).String()
	case d < 48*time.Hour:
		d = d.Round(time.Minute)
		return fmt.Sprintf("%dh%dm", d/time.Hour, d%time.Hour/time.Minute)
	}
	return fmt.Sprintf("%d days", d.Round(24*time.Hour)/(24*time.Hour))
}

// ago returns how long ago t was.
func ago(now, t time.Time) string {
	if d := now.Sub(t).Round(time.Second); d > 0 {
		return length(d) + " ago"
	}
	return "just now"
}
