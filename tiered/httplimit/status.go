package httplimit

import (
	"bufio"
	"io"
	"net"
	"net/http"
)

// statusRecorder records the status of an answer, and gives one to an answer that sets none. It
// passes everything else on, also for [http.ResponseController].
type statusRecorder struct {
	http.ResponseWriter
	status int
	other  int // the status of an answer that sets none, if it is not 200
}

// Unwrap is for http.ResponseController.
func (w *statusRecorder) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// WriteHeader records the first final status. Statuses 1xx are not final, except 101.
func (w *statusRecorder) WriteHeader(status int) {
	if w.status == 0 && (status >= 200 || status == http.StatusSwitchingProtocols) {
		w.status = status
	}
	w.ResponseWriter.WriteHeader(status)
}

func (w *statusRecorder) Write(b []byte) (int, error) {
	w.implied()
	return w.ResponseWriter.Write(b)
}

// WriteString avoids a copy if the writer below has WriteString.
func (w *statusRecorder) WriteString(s string) (int, error) {
	w.implied()
	return io.WriteString(w.ResponseWriter, s)
}

// ReadFrom lets io.Copy use the writer below, for example its sendfile.
func (w *statusRecorder) ReadFrom(r io.Reader) (int64, error) {
	w.implied()
	return io.Copy(w.ResponseWriter, r)
}

// implied records the status of an answer that sets none. net/http writes a 200 itself.
func (w *statusRecorder) implied() {
	switch {
	case w.status > 0:
	case w.other > 0:
		w.WriteHeader(w.other)
	default:
		w.status = http.StatusOK
	}
}

// final returns the status of an answer whose handler has returned.
func (w *statusRecorder) final() int {
	w.implied()
	return w.status
}

// writer returns a writer with those optional interfaces of ResponseWriter that the one below has,
// or one that it unwraps: otherwise http.ResponseController would pass by the recorder. HTTP/1 has
// both; HTTP/2 cannot be hijacked.
func (w *statusRecorder) writer() http.ResponseWriter {
	flushes, hijacks := unwraps[http.Flusher](w.ResponseWriter), unwraps[http.Hijacker](w.ResponseWriter)
	switch {
	case flushes && hijacks:
		return both{w, flusher{w}, hijacker{w}}
	case flushes:
		return onlyFlusher{w, flusher{w}}
	case hijacks:
		return onlyHijacker{w, hijacker{w}}
	}
	return w
}

// unwraps reports whether w, or a writer that it unwraps, is a T.
func unwraps[T any](w http.ResponseWriter) bool {
	for {
		if _, is := w.(T); is {
			return true
		}
		u, ok := w.(interface{ Unwrap() http.ResponseWriter })
		if !ok {
			return false
		}
		w = u.Unwrap()
	}
}

type (
	both struct {
		*statusRecorder
		flusher
		hijacker
	}
	onlyFlusher struct {
		*statusRecorder
		flusher
	}
	onlyHijacker struct {
		*statusRecorder
		hijacker
	}
	flusher  struct{ seen *statusRecorder }
	hijacker struct{ seen *statusRecorder }
)

func (f flusher) Flush() { _ = f.FlushError() }

// FlushError is for http.ResponseController, which prefers it to Flush.
func (f flusher) FlushError() error {
	f.seen.implied()
	return http.NewResponseController(f.seen.ResponseWriter).Flush()
}

// Hijack counts as status 101 if no status was written before.
func (h hijacker) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	c, rw, err := http.NewResponseController(h.seen.ResponseWriter).Hijack()
	if err == nil && h.seen.status == 0 {
		h.seen.status = http.StatusSwitchingProtocols
	}
	return c, rw, err
}
