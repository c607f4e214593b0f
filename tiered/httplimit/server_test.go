package httplimit

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// All that a handler may do with a ResponseWriter works behind the middleware as it does without, on real connections.
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
			fmt.Fprint(w, errors.Join(c.SetReadDeadline(time.Now().Add(time.Hour)),
				c.SetWriteDeadline(time.Now().Add(time.Hour))))
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
				for _, o := range []*Options{nil, {Counts: counts}, {Settle: true, Counts: counts}} {
					if got := answer(t, wrap(t, []Rule{{Limiter: l, Key: RemoteIP(), Missing: Refuse}}, o, h),
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
	r, err := s.Client().Get(s.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	b, err := io.ReadAll(r.Body)
	if err != nil || (r.ProtoMajor == 2) != http2 {
		t.Fatal(r.Proto, err)
	}
	return r.Status + "\n" + string(b)
}

// What is below is used, and what is not there is not pretended.
func TestDisguise(t *testing.T) {
	type bare struct{ http.ResponseWriter }
	for _, w := range []http.ResponseWriter{
		httptest.NewRecorder(),
		bare{httptest.NewRecorder()},
		struct {
			http.ResponseWriter
			http.Hijacker
		}{},
		struct {
			http.ResponseWriter
			http.Hijacker
			http.Flusher
		}{},
	} {
		d := (&statusRecorder{ResponseWriter: w}).writer()
		_, flushes := w.(http.Flusher)
		_, hijacks := w.(http.Hijacker)
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

// A connection taken over counts as 101; an answer sent before remains what it was.
func TestHijackCounts(t *testing.T) {
	g, _ := group(t)
	l := limiter(t, g, "p", tiered.PerHour(10))
	statuses := make(chan int, 1)
	s := httptest.NewServer(wrap(t, []Rule{{Limiter: l, Key: RemoteIP(), Missing: Refuse}},
		&Options{Counts: func(status int) bool { statuses <- status; return true }},
		http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			c, rw, err := w.(http.Hijacker).Hijack()
			if err != nil {
				t.Error(err)
				return
			}
			fmt.Fprint(rw, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n")
			_ = rw.Flush()
			_ = c.Close()
		})))
	defer s.Close()
	r, err := s.Client().Get(s.URL)
	if err != nil {
		t.Fatal(err)
	}
	_ = r.Body.Close()
	if got := <-statuses; r.StatusCode != 101 || got != 101 {
		t.Errorf("status %d, counted as %d", r.StatusCode, got)
	}
}

// Server-sent events arrive one by one, with the fields before the first.
func TestStreaming(t *testing.T) {
	g, _ := group(t)
	next := make(chan bool)
	s := httptest.NewServer(wrap(t, []Rule{{
		Limiter: limiter(t, g, "p", tiered.PerHour(10)), Key: RemoteIP(),
		Missing: Refuse,
	}},
		&Options{Counts: func(int) bool { return true }},
		http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			for i := range 3 {
				fmt.Fprintf(w, "data: %d\n", i)
				if err := http.NewResponseController(w).Flush(); err != nil {
					t.Error(err)
				}
				<-next
			}
		})))
	defer s.Close()
	r, err := s.Client().Get(s.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	if r.Header.Get("X-RateLimit-Remaining") != "9" {
		t.Errorf("%v", r.Header)
	}
	lines := bufio.NewReader(r.Body)
	for i := range 3 {
		line, err := lines.ReadString('\n')
		if err != nil || strings.TrimSpace(line) != fmt.Sprint("data: ", i) {
			t.Errorf("%q, %v", line, err)
		}
		next <- true // it would hang before, if the line were not flushed
	}
}
