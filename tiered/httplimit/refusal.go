package httplimit

import (
	"encoding/json"
	"net/http"

	"github.com/tiered-limiter/tiered-limiter/internal/rules"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// Refusal says why a request was refused.
type Refusal struct {
	tiered.Decision // its Policy and Key are those that refused

	Status int // the HTTP status for it: 429, 503 or 400

	AtOnce bool // all places of the key are taken, by requests that run

	unnamed bool // the limit is hidden

	KeyError error // what the function of [KeyFunc] says is wrong with the request; otherwise nil
}

// Status returns the HTTP status for a Decision: 200 if it allows. Otherwise it is 429 if a limit
// refused, 400 if the key is missing or too long, and 503 if the client cannot help it. It is never
// 500.
func Status(d tiered.Decision) int {
	if d.Allowed {
		return http.StatusOK
	}
	switch d.Reason {
	case tiered.Limited, tiered.FallbackSpent, tiered.ExceedsBurst:
		return http.StatusTooManyRequests
	case tiered.InvalidKey:
		return http.StatusBadRequest
	}
	return http.StatusServiceUnavailable
}

// WriteRefusal answers a request that d refuses: with the header fields of [WriteHeaders], the
// status of [Status], and a line of text. It is for handlers that ask a Limiter themselves. It
// writes nothing if d allows, or if w is nil.
func WriteRefusal(w http.ResponseWriter, d tiered.Decision) {
	if d.Allowed || w == nil {
		return
	}
	WriteHeaders(w.Header(), d)
	refusal := Refusal{Decision: d, Status: Status(d)}
	http.Error(w, refusal.detail(), refusal.Status)
}

// refuse answers a request that is not let through. The status is that of the Decision.
func (l *limit) refuse(w http.ResponseWriter, r *http.Request, refusal Refusal) {
	if l.Refused != nil {
		l.Refused(r.Context(), refusal.Decision)
	}
	refusal.Status = Status(refusal.Decision)
	switch {
	case l.Denied != nil:
		seen := &statusRecorder{ResponseWriter: w, other: refusal.Status} // a refusal never looks like a served request
		l.Denied(seen.writer(), r, refusal)
		seen.implied()
	case l.Problem:
		refusal.writeProblem(w, l.IETFDraft11)
	default:
		http.Error(w, refusal.detail(), refusal.Status)
	}
}

// detail describes the refusal in a sentence. It repeats neither the key, which may be a secret or
// another client's, nor the name of a policy, which is nothing to a client.
func (r Refusal) detail() string {
	if r.AtOnce {
		return "Too many requests at the same time."
	}
	switch r.Reason {
	case tiered.Limited, tiered.FallbackSpent:
		return "Rate limit exceeded."
	case tiered.ExceedsBurst:
		if r.Burst == 0 {
			return "Requests are not accepted."
		}
		return "The request costs more than the rate limit ever allows at once."
	case tiered.InvalidKey:
		if r.KeyError != nil {
			return "The request does not identify its client: " + r.KeyError.Error()
		}
		return "The request does not identify its client."
	}
	return "The service cannot accept the request now. Try again later."
}

// limit returns the name of the limit that refused: the policy's name, with the limit's number if
// there are several.
func (r Refusal) limit() string { return rules.LimitName(r.Policy, int(r.LimitNumber)) }

// problem is the body of RFC 9457. The types and violated-policies are those of the draft that
// draft11.go names: violated-policies has the names of the policies, as RateLimit-Policy has them,
// whose quota is exceeded.
type problem struct {
	Type     string   `json:"type"`
	Title    string   `json:"title"`
	Status   int      `json:"status"`
	Detail   string   `json:"detail"`
	Violated []string `json:"violated-policies,omitempty"`
}

const problemTypes = "https://iana.org/assignments/http-problem-types#"

// writeProblem answers with a problem. It names the limit that refused if the fields that name
// limits are written too: otherwise a client can do nothing with the name, and should not see it.
func (r Refusal) writeProblem(w http.ResponseWriter, named bool) {
	p := problem{Type: "about:blank", Title: http.StatusText(r.Status), Status: r.Status, Detail: r.detail()}
	switch r.Status {
	case http.StatusTooManyRequests:
		p.Type, p.Title = problemTypes+"quota-exceeded", "Quota exceeded"
		if named && !r.unnamed && !r.AtOnce { // no field tells of places
			p.Violated = []string{r.limit()}
		}
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
