package httplimit_test

import (
	"context"
	"io"
	"net"
	"net/http"
	"testing"

	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/adapters"
	"github.com/tiered-limiter/tiered-limiter/tiered/httplimit"
)

// The table of behaviors that docs/http.md shows: the column of net/http.
func TestTableOfFrameworks(t *testing.T) {
	adapters.Play(t, "net/http", func(t *testing.T, app adapters.App, ln net.Listener) func() error {
		limit := app.Limit(t, func(f func(adapters.Request) (string, error)) httplimit.Key {
			return httplimit.KeyFunc(func(r *http.Request) (string, error) { return f(&request{nil, r}) })
		})
		mux := http.NewServeMux()
		mux.HandleFunc("/{$}", func(w http.ResponseWriter, r *http.Request) { _ = app.Handler(&request{w, r}) })
		limited := limit(mux)
		return adapters.ServeHTTP(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			seen := &recorder{ResponseWriter: w}
			defer func() {
				v := recover()
				if v != nil {
					seen.WriteHeader(http.StatusInternalServerError)
				}
				app.After(adapters.Seen{Status: seen.status, Written: seen.status > 0, Panic: v})
			}()
			req := &request{seen, r}
			app.Before(req)
			limited.ServeHTTP(seen, req.r)
		}), ln)
	})
}

// recorder is what loggers of net/http wrap writers with.
type recorder struct {
	http.ResponseWriter
	status int
}

func (w *recorder) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func (w *recorder) WriteHeader(status int) {
	w.status = status
	w.ResponseWriter.WriteHeader(status)
}

type request struct {
	w http.ResponseWriter
	r *http.Request
}

func (r *request) Context() context.Context { return r.r.Context() }

func (r *request) With(key, value string) {
	r.r = r.r.WithContext(context.WithValue(r.r.Context(), adapters.Key(key), value))
}

func (r *request) Value(key string) any { return r.r.Context().Value(adapters.Key(key)) }

func (r *request) Answer(status int, body string) {
	r.w.WriteHeader(status)
	if body != "" {
		_, _ = io.WriteString(r.w, body)
	}
}

func (r *request) Stream(write func(func(string))) { adapters.Stream(r.w, write) }

func (r *request) Hijack(use func(net.Conn)) { adapters.Hijack(r.w, use) }
