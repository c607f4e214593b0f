package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"math"
	"mime"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/tiered-limiter/tiered-limiter/tiered"
	"github.com/tiered-limiter/tiered-limiter/tiered/httplimit"
)

// The policies.
const (
	perRequest = "requests-per-minute"
	perToken   = "tokens-per-minute"
)

// limits are those of a client, per minute.
type limits struct{ requests, tokens int64 }

// service is the service of models, with the limits of its clients.
type service struct {
	limits
	target     *url.URL
	plans      map[string]limits
	cachedFree bool
	log        *slog.Logger

	told sync.Map // what was logged once
}

// proxy limits what it passes on.
func (s *service) proxy(group *tiered.Group) (http.Handler, error) {
	requests := tiered.Policy{Name: perRequest, Limit: tiered.PerMinute(s.requests), Plans: map[string]tiered.Limit{}}
	tokens := tiered.Policy{
		Name: perToken, Limit: tiered.PerMinute(s.tokens), Plans: map[string]tiered.Limit{},
		MaxDebt: 10 * s.tokens, // answers under way may cost many bursts together
	}
	for name, plan := range s.plans {
		requests.Plans[name], tokens.Plans[name] = tiered.PerMinute(plan.requests), tiered.PerMinute(plan.tokens)
	}
	var rules []httplimit.Rule
	for _, p := range []tiered.Policy{requests, tokens} {
		limiter, err := group.NewLimiter(p)
		if err != nil {
			return nil, err
		}
		rule := httplimit.Rule{Limiter: limiter}
		if p.Name == perToken {
			rule.Cost = func(r *http.Request) int64 { return callOf(r.Context()).most }
		}
		// A credential counts by its hash: the secret stays here. The Messages API has its own
		// field.
		rule.Key, rule.Missing = httplimit.Credential("Authorization"), httplimit.Next
		rules = append(rules, rule)
		rule.Key, rule.Missing = httplimit.Credential("X-Api-Key"), httplimit.Refuse
		rules = append(rules, rule)
	}
	o := &httplimit.Options{Settle: true, IETFDraft11: true, Denied: refuse}
	if len(s.plans) > 0 {
		o.Plan = func(r *http.Request) string { return r.Header.Get("X-Plan") }
	}
	limit, err := httplimit.New(rules, o)
	if err != nil {
		return nil, err
	}
	return readCall(limit(&httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(s.target)
			r.Out.Header.Del("Accept-Encoding") // the transport asks for gzip, and reads it
			if r.In.Header.Get("Authorization") != "" {
				r.Out.Header.Del("X-Api-Key") // the service must go by the credential that counts
			}
		},
		ModifyResponse: s.watch,
		ErrorHandler:   s.unreachable,
		FlushInterval:  -1, // each piece of a stream at once
	})), nil
}

// watch reads along with an answer. One that failed gives its tokens back, and the request too if
// that was not the client's fault.
func (s *service) watch(r *http.Response) error {
	ctx := r.Request.Context()
	switch kind, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type")); {
	case r.StatusCode == http.StatusSwitchingProtocols:
		s.unknown(ctx, "the connection changed its protocol")
	case r.StatusCode >= 500, r.StatusCode == http.StatusTooManyRequests:
		s.settle(ctx, map[string]int64{perToken: 0, perRequest: 0})
	case r.StatusCode >= 400:
		s.settle(ctx, map[string]int64{perToken: 0})
	case r.Header.Get("Content-Encoding") != "" && r.Header.Get("Content-Encoding") != "identity":
		s.unknown(ctx, "the answer has the encoding "+r.Header.Get("Content-Encoding"))
	case kind == "text/event-stream":
		call := callOf(ctx)
		r.Body = &stream{ReadCloser: r.Body, u: usage{}, dropUsage: call.addedUsage, ended: func(u usage) { s.ended(ctx, kind, u) }}
		if call.addedUsage {
			r.Header.Del("Content-Length") // an event may be left out
			r.ContentLength = -1
		}
	default:
		r.Body = &whole{ReadCloser: r.Body, ended: func(u usage) { s.ended(ctx, kind, u) }}
	}
	return nil
}

// unreachable answers for a service that does not. A client that hung up has cost what was taken:
// nobody says how far the model got.
func (s *service) unreachable(w http.ResponseWriter, r *http.Request, err error) {
	if r.Context().Err() == nil {
		s.settle(r.Context(), map[string]int64{perToken: 0, perRequest: 0})
	}
	s.log.Warn("the service does not answer", "error", err)
	writeError(w, http.StatusBadGateway, "api_error", "The service of language models does not answer.")
}

// ended settles an answer that is over. If nobody says what it cost, the estimate stands.
func (s *service) ended(ctx context.Context, kind string, u usage) {
	switch cost := u.cost(s.cachedFree); {
	case u.found:
		s.settle(ctx, map[string]int64{perToken: cost})
	case u.failed: // before it cost anything
		s.settle(ctx, map[string]int64{perToken: 0})
	case callOf(ctx).most > 0:
		s.unknown(ctx, "an answer of type "+kind+" has no usage")
	}
}

func (s *service) settle(ctx context.Context, costs map[string]int64) {
	if err := httplimit.Settle(ctx, costs); err != nil {
		s.log.Error("llmproxy", "error", err)
	}
}

// unknown logs once for each reason that an answer's cost is not known.
func (s *service) unknown(ctx context.Context, reason string) {
	if _, told := s.told.LoadOrStore(reason+callOf(ctx).api, true); !told {
		s.log.Warn("the cost of an answer is not known: what was estimated stands", "reason", reason, "api", callOf(ctx).api)
	}
}

// refuse tells a client of these protocols what it understands. Retry-After is set.
func refuse(w http.ResponseWriter, _ *http.Request, r httplimit.Refusal) {
	kind, text := "api_error", "The service cannot accept the request now. Try again later."
	switch {
	case r.Status == http.StatusBadRequest:
		kind, text = "authentication_error", "The request has neither Authorization nor X-Api-Key."
	case r.Reason == tiered.ExceedsBurst:
		kind = "rate_limit_error"
		text = fmt.Sprintf("The request may cost %d tokens, and %d per minute are allowed: set a smaller max_tokens.", r.Cost, r.Burst)
	case r.Status == http.StatusTooManyRequests:
		kind = "rate_limit_error"
		text = fmt.Sprintf("Over the limit of %s. Try again in %v.", strings.ReplaceAll(r.Policy, "-", " "),
			time.Duration(math.Ceil(r.RetryAfter.Seconds()))*time.Second)
	}
	writeError(w, r.Status, kind, text)
}

// writeError writes an error that clients of all three protocols read: those of Chat Completions
// and Responses look for error, and those of Messages for type and error.
func writeError(w http.ResponseWriter, status int, kind, text string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(map[string]any{
		"type": "error", "error": map[string]any{"type": kind, "code": kind, "message": text},
	})
}
