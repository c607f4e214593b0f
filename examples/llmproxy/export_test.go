package main

import (
	"log/slog"
	"net/http"
	"net/url"

	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// Run is the program.
var Run = run

// Service is a proxy without a listener.
type Service struct {
	Target     *url.URL
	RPM, TPM   int64
	Plans      string
	CachedFree bool
	Log        *slog.Logger
}

// Handler returns what the program serves.
func (s Service) Handler(g *tiered.Group) (http.Handler, error) {
	one := service{limits: limits{s.RPM, s.TPM}, target: s.Target, plans: map[string]limits{}, cachedFree: s.CachedFree, log: s.Log}
	if s.Log == nil {
		one.log = slog.New(slog.DiscardHandler)
	}
	if s.Plans != "" {
		if err := one.readPlans(s.Plans); err != nil {
			return nil, err
		}
	}
	return one.proxy(g)
}

// AtMost is what a request reserves.
func AtMost(r *http.Request) (most int64, status int) {
	w := new(recorder)
	readCall(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { most = callOf(r.Context()).most })).ServeHTTP(w, r)
	return most, w.status
}

type recorder struct{ status int }

func (*recorder) Header() http.Header         { return http.Header{} }
func (*recorder) Write(b []byte) (int, error) { return len(b), nil }
func (r *recorder) WriteHeader(status int)    { r.status = status }

const LongestBody = longestBody
