package httplimit

import (
	"bufio"
	"io"
	"net"
	"net/http"
)

// witness sees the status of an answer. All else goes through, also for [http.ResponseController].
type witness struct {
	http.ResponseWriter
	status int
}

// Unwrap serves http.ResponseController.
func (w *witness) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// WriteHeader sees the first status that is final: 1xx but 101 are only announcements.
func (w *witness) WriteHeader(status int) {
	if w.status == 0 && (status >= 200 || status == http.StatusSwitchingProtocols) {
		w.status = status
	}
	w.ResponseWriter.WriteHeader(status)
}

func (w *witness) Write(b []byte) (int, error) {
	w.implied()
	return w.ResponseWriter.Write(b)
}

// WriteString spares a copy, where there is such a method below.
func (w *witness) WriteString(s string) (int, error) {
	w.implied()
	return io.WriteString(w.ResponseWriter, s)
}

// ReadFrom lets io.Copy use what is below: sendfile, for one.
func (w *witness) ReadFrom(r io.Reader) (int64, error) {
	w.implied()
	return io.Copy(w.ResponseWriter, r)
}

// implied notes the status that an answer without one has.
func (w *witness) implied() {
	if w.status == 0 {
		w.status = http.StatusOK
	}
}

// final is the status of an answer whose handler has returned.
func (w *witness) final() int {
	w.implied()
	return w.status
}

// disguise returns w with the methods that handlers look for in a ResponseWriter: exactly those that the one below has.
// HTTP/1 has both, HTTP/2 cannot be hijacked.
func (w *witness) disguise() http.ResponseWriter {
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
		*witness
		flusher
		hijacker
	}
	onlyFlusher struct {
		*witness
		flusher
	}
	onlyHijacker struct {
		*witness
		hijacker
	}
	flusher  struct{ seen *witness }
	hijacker struct{ seen *witness }
)

func (f flusher) Flush() { _ = f.FlushError() }

// FlushError is what http.ResponseController prefers.
func (f flusher) FlushError() error {
	f.seen.implied()
	return http.NewResponseController(f.seen.ResponseWriter).Flush()
}

// Hijack counts as 101, unless there was an answer before.
func (h hijacker) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	c, rw, err := http.NewResponseController(h.seen.ResponseWriter).Hijack()
	if err == nil && h.seen.status == 0 {
		h.seen.status = http.StatusSwitchingProtocols
	}
	return c, rw, err
}
