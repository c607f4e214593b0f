package httplimit_test

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"testing"
	"time"

	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/fatal"
	"github.com/tiered-limiter/tiered-limiter/tiered"
	"github.com/tiered-limiter/tiered-limiter/tiered/httplimit"
)

// All that a handler may do with a ResponseWriter works behind the middleware as it does without,
// on real connections.
func TestResponseController(t *testing.T) {
	handlers := map[string]http.HandlerFunc{
		"flush": func(w http.ResponseWriter, _ *http.Request) {
			fmt.Fprint(w, "one ")
			if err := http.NewResponseController(w).Flush(); err != nil {
				fmt.Fprint(w, err)
			}
			w.(http.Flusher).Flush() // as handlers have done it for ten years
			fmt.Fprint(w, "two")
		},
		"deadlines": func(w http.ResponseWriter, _ *http.Request) {
			c := http.NewResponseController(w)
			fmt.Fprint(w, errors.Join(c.SetReadDeadline(time.Now().Add(time.Hour)), c.SetWriteDeadline(time.Now().Add(time.Hour))))
		},
		"full duplex": func(w http.ResponseWriter, r *http.Request) {
			err := http.NewResponseController(w).EnableFullDuplex()
			fmt.Fprint(w, r.ProtoMajor == 1 && err != nil) // HTTP/2 has always been
		},
		"hijack": func(w http.ResponseWriter, r *http.Request) {
			c, rw, err := http.NewResponseController(w).Hijack()
			if err != nil {
				fmt.Fprint(w, errors.Is(err, http.ErrNotSupported) && r.ProtoMajor == 2)
				return
			}
			fmt.Fprint(rw, "HTTP/1.1 200 OK\r\nContent-Length: 4\r\nConnection: close\r\n\r\ntrue")
			_ = rw.Flush()
			_ = c.Close()
		},
		"is a Hijacker": func(w http.ResponseWriter, r *http.Request) {
			_, is := w.(http.Hijacker)
			fmt.Fprint(w, is == (r.ProtoMajor == 1))
		},
		"a file": func(w http.ResponseWriter, r *http.Request) { http.ServeFile(w, r, "doc.go") },
		"read from": func(w http.ResponseWriter, r *http.Request) {
			f, err := os.Open("doc.go")
			if err != nil {
				panic(err)
			}
			defer f.Close()
			_, is := w.(io.ReaderFrom)
			n, err := io.Copy(w, f)
			fmt.Fprint(w, n > 0, err, is || r.ProtoMajor == 2)
		},
		"string": func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "s") },
	}
	counts := func(s int) bool { return s < 400 }
	for name, h := range handlers {
		for _, http2 := range []bool{false, true} {
			t.Run(fmt.Sprint(name, " http2=", http2), func(t *testing.T) {
				g, _ := group(t)
				l := limiter(t, g, "p", tiered.PerHour(10))
				plain := answer(t, h, http2)
				for _, o := range []*httplimit.Options{nil, {Counts: counts}, {Settle: true, Counts: counts}} {
					if got := answer(t, wrap(t, []httplimit.Rule{{Limiter: l, Key: httplimit.RemoteIP(), Missing: httplimit.Refuse}}, o, h),
						http2); got != plain || got == "" {
						t.Errorf("with %+v: %q, without the middleware %q", o, got, plain)
					}
				}
			})
		}
	}
}

func answer(t *testing.T, h http.Handler, http2 bool) string {
	t.Helper()
	s := httptest.NewUnstartedServer(h)
	s.EnableHTTP2 = http2
	s.StartTLS()
	defer s.Close()
	r := fatal.Get(s.Client().Get(s.URL))(t)
	defer r.Body.Close()
	b, err := io.ReadAll(r.Body)
	if err != nil || (r.ProtoMajor == 2) != http2 {
		t.Fatal(r.Proto, err)
	}
	return r.Status + "\n" + string(b)
}

// unwrapping is a writer of another middleware, which http.ResponseController looks through.
type unwrapping struct{ http.ResponseWriter }

func (w unwrapping) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// What is below is used, and what is not there is not pretended.
func TestDisguise(t *testing.T) {
	type bare struct{ http.ResponseWriter }
	below := httptest.NewRecorder()
	g, _ := group(t)
	l := limiter(t, g, "p", tiered.PerHour(100))
	for _, w := range []http.ResponseWriter{
		below,
		bare{below},
		struct {
			http.ResponseWriter
			http.Hijacker
		}{ResponseWriter: below},
		struct {
			http.ResponseWriter
			http.Hijacker
			http.Flusher
		}{ResponseWriter: below},
		unwrapping{below},
		unwrapping{struct {
			http.ResponseWriter
			http.Hijacker
		}{ResponseWriter: below}},
	} {
		var d http.ResponseWriter
		wrap(t, []httplimit.Rule{perUser(l)}, &httplimit.Options{Counts: func(int) bool { return true }},
			http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { d = w })).ServeHTTP(w, requestOf("ann"))
		below := w
		if u, ok := w.(unwrapping); ok {
			below = u.ResponseWriter
		}
		_, flushes := below.(http.Flusher)
		_, hijacks := below.(http.Hijacker)
		_, f := d.(http.Flusher)
		_, h := d.(http.Hijacker)
		if f != flushes || h != hijacks {
			t.Errorf("%T: flusher %v, hijacker %v, is a flusher %v, a hijacker %v", w, f, h, flushes, hijacks)
		}
		if u, ok := d.(interface{ Unwrap() http.ResponseWriter }); !ok || u.Unwrap() != w {
			t.Errorf("%T is not unwrapped", w)
		}
	}
}
