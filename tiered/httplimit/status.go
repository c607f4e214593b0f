package httplimit

import (
	"bufio"
	"io"
	"net"
	"net/http"
)

// statusRecorder records the status of an answer. It passes everything else on, also for [http.ResponseController].
type statusRecorder struct {
	http.ResponseWriter
	status int
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

// implied records 200, the status of an answer that sets none.
func (w *statusRecorder) implied() {
	if w.status == 0 {
		w.status = http.StatusOK
	}
}

// final returns the status of an answer whose handler has returned.
func (w *statusRecorder) final() int {
	w.implied()
	return w.status
}

// writer returns a writer with those optional interfaces of ResponseWriter that the one below has. HTTP/1 has both;
// HTTP/2 cannot be hijacked.
func (w *statusRecorder) writer() http.ResponseWriter {
	_, flushes := w.ResponseWriter.(http.Flusher)
	_, hijacks := w.ResponseWriter.(http.Hijacker)
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
