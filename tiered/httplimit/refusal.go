package httplimit

import (
	"encoding/json"
	"fmt"
	"net/http"

	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// Refusal says why a request was refused.
type Refusal struct {
	tiered.Decision // its Policy and Key are those that refused

	Status int // the HTTP status for it: 429, 503 or 400
}

// status returns the HTTP status for a refusal. It is 503 if the client cannot help it, and never 500.
func status(r tiered.Reason) int {
	switch r {
	case tiered.Limited, tiered.ShareSpent, tiered.ExceedsBurst:
		return http.StatusTooManyRequests
	case tiered.InvalidKey:
		return http.StatusBadRequest
	}
	return http.StatusServiceUnavailable
}

// refuse answers a request that is not let through.
func (l *limit) refuse(w http.ResponseWriter, r *http.Request, d tiered.Decision) {
	refusal := Refusal{d, status(d.Reason)}
	switch {
	case l.Denied != nil:
		seen := &refusalWriter{ResponseWriter: w, refused: refusal.Status}
		l.Denied(seen, r, refusal)
		seen.answer()
	case l.Problem:
		refusal.writeProblem(w)
	default:
		http.Error(w, refusal.detail(), refusal.Status)
	}
}

// detail describes the refusal in a sentence. It does not repeat the key, which may be a secret or another
// client's.
func (r Refusal) detail() string {
	switch r.Reason {
	case tiered.Limited, tiered.ShareSpent:
		return fmt.Sprintf("Over the limit of policy %q.", r.limit())
	case tiered.ExceedsBurst:
		if r.Limit == 0 {
			return fmt.Sprintf("Policy %q admits nothing now.", r.Policy)
		}
		return fmt.Sprintf("The request costs more than policy %q ever admits at once.", r.limit())
	case tiered.InvalidKey:
		return fmt.Sprintf("The request does not say whom policy %q is to count it for.", r.Policy)
	}
	return "The service cannot admit the request now."
}

// limit returns the name of the limit that refused: the policy's name, with the limit's number if there are
// several.
func (r Refusal) limit() string { return limitName(r.Policy, int(r.Which)) }

// problem is the body of RFC 9457. The types and violated-policies are those of the draft that draft11.go names.
type problem struct {
	Type     string   `json:"type"`
	Title    string   `json:"title"`
	Status   int      `json:"status"`
	Detail   string   `json:"detail"`
	Violated []string `json:"violated-policies,omitempty"`
}

const problemTypes = "https://iana.org/assignments/http-problem-types#"

func (r Refusal) writeProblem(w http.ResponseWriter) {
	p := problem{Type: "about:blank", Title: http.StatusText(r.Status), Status: r.Status, Detail: r.detail()}
	switch r.Status {
	case http.StatusTooManyRequests:
		p.Type, p.Title, p.Violated = problemTypes+"quota-exceeded", "Quota exceeded", []string{r.limit()}
	case http.StatusServiceUnavailable:
		p.Type, p.Title = problemTypes+"temporary-reduced-capacity", "Temporarily reduced capacity"
	}
	b, err := json.Marshal(p)
	if err != nil { // cannot happen with strings and a number
		http.Error(w, r.detail(), r.Status)
		return
	}
	h := w.Header()
	h.Set("Content-Type", "application/problem+json")
	h.Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(r.Status)
	_, _ = w.Write(b)
}

// refusalWriter answers with the refusal's status if a handler sets none, so that a refused request never looks
// like a served one.
type refusalWriter struct {
	http.ResponseWriter
	refused int
	wrote   bool
}

// Unwrap is for http.ResponseController.
func (w *refusalWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func (w *refusalWriter) WriteHeader(status int) {
	w.wrote = w.wrote || status >= 200
	w.ResponseWriter.WriteHeader(status)
}

func (w *refusalWriter) Write(b []byte) (int, error) {
	w.answer()
	return w.ResponseWriter.Write(b)
}

// FlushError is for http.ResponseController, which prefers it to Flush.
func (w *refusalWriter) FlushError() error {
	w.answer()
	return http.NewResponseController(w.ResponseWriter).Flush()
}

// answer writes the status if none was written.
func (w *refusalWriter) answer() {
	if !w.wrote {
		w.WriteHeader(w.refused)
	}
}
