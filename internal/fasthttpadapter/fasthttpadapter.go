// Package fasthttpadapter lets the middleware of package httplimit decide about requests of
// frameworks that are built on fasthttp. It does not import fasthttp, so that each of them can have
// its own version.
package fasthttpadapter

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"net/url"

	"github.com/tiered-limiter/tiered-limiter/tiered"
	"github.com/tiered-limiter/tiered-limiter/tiered/httplimit"
)

// RequestCtx is what is needed of a *fasthttp.RequestCtx.
type RequestCtx interface {
	Method() []byte
	RequestURI() []byte
	Host() []byte
	RemoteAddr() net.Addr
	TLSConnectionState() *tls.ConnectionState
	SetStatusCode(status int)
	Write(body []byte) (int, error)
	Hijacked() bool
}

// ResponseHeader is what is needed of a *fasthttp.ResponseHeader.
type ResponseHeader interface {
	StatusCode() int
	Del(name string)
	Add(name, value string)
}

// Exchange is a request and its response.
type Exchange struct {
	Request  RequestCtx
	Header   http.Header // of the request: copies, because fasthttp uses its buffers again
	Length   int         // of its body, -1 if that is not known
	Response ResponseHeader

	// Next calls the handler of an admitted request, with the context that httplimit.Settle needs.
	// If counts is set, the status of its answer must be known when it returns.
	Next func(ctx context.Context, counts bool)
}

// Allow takes a token, and answers the request if the limiter refuses. err is what is wrong with
// the request, instead of a key.
func (e *Exchange) Allow(ctx context.Context, l *tiered.Limiter, key string, err error) bool {
	w := &writer{of: e, header: make(http.Header, 4)}
	if err != nil {
		http.Error(w, "The request does not identify its client: "+err.Error(), http.StatusBadRequest) // as httplimit does
		return false
	}
	d := l.Allow(ctx, key)
	if !d.Allowed {
		httplimit.WriteRefusal(w, d)
		return false
	}
	httplimit.WriteHeaders(w.header, d)
	w.copyHeader()
	return true
}

// Serve lets limit decide about the request. ctx is the context of the request. A limit that is nil
// refuses all.
func (e *Exchange) Serve(ctx context.Context, limit func(http.Handler) http.Handler) {
	front := &writer{of: e, header: make(http.Header, 8)}
	r := e.request(ctx)
	switch {
	case r == nil:
		http.Error(front, "Bad Request", http.StatusBadRequest)
		return
	case limit == nil: // the error of httplimit.New was ignored
		httplimit.WriteRefusal(front, tiered.Decision{})
		return
	}
	limit(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		front.copyHeader()
		front.admitted = true
		counts := w != http.ResponseWriter(front)
		if e.Next(r.Context(), counts); !counts {
			return
		}
		status := e.Response.StatusCode()
		if e.Request.Hijacked() {
			status = http.StatusSwitchingProtocols
		}
		w.WriteHeader(status)
	})).ServeHTTP(front, r)
}

// request returns the request as net/http has it, or nil if that cannot read its URL.
func (e *Exchange) request(ctx context.Context) *http.Request {
	r := new(http.Request).WithContext(ctx)
	r.RequestURI = string(e.Request.RequestURI())
	var err error
	if r.URL, err = url.ParseRequestURI(r.RequestURI); err != nil {
		return nil
	}
	r.Method, r.Host, r.RemoteAddr = string(e.Request.Method()), string(e.Request.Host()), e.Request.RemoteAddr().String()
	r.Proto, r.ProtoMajor, r.ProtoMinor = "HTTP/1.1", 1, 1
	r.TLS = e.Request.TLSConnectionState()
	r.Header, r.ContentLength, r.Body = e.Header, int64(e.Length), http.NoBody
	return r
}

// writer writes to a response, until the request is admitted: then that is the handler's.
type writer struct {
	of       *Exchange
	header   http.Header
	admitted bool
}

func (w *writer) Header() http.Header { return w.header }

func (w *writer) WriteHeader(status int) {
	if !w.admitted {
		w.of.Request.SetStatusCode(status)
		w.copyHeader()
	}
}

func (w *writer) Write(b []byte) (int, error) { return w.of.Request.Write(b) }

func (w *writer) copyHeader() {
	for name, values := range w.header {
		w.of.Response.Del(name)
		for _, v := range values {
			w.of.Response.Add(name, v)
		}
	}
}
