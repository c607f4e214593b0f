package adapters

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
)

// What frameworks that are built on net/http have in common.

// ServeHTTP serves a handler on ln. It returns the server's graceful shutdown.
func ServeHTTP(h http.Handler, ln net.Listener) (stop func() error) {
	s, done := &http.Server{Handler: h}, make(chan error, 1)
	go func() { done <- s.Serve(ln) }()
	return func() error {
		err := s.Shutdown(context.Background())
		if served := <-done; !errors.Is(served, http.ErrServerClosed) {
			err = errors.Join(err, served)
		}
		return err
	}
}

// Stream writes a body of parts, each of which is flushed.
func Stream(w http.ResponseWriter, write func(send func(part string))) {
	write(func(part string) {
		_, _ = io.WriteString(w, part)
		_ = http.NewResponseController(w).Flush()
	})
}

// Hijack takes the connection over.
func Hijack(w http.ResponseWriter, use func(net.Conn)) {
	c, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		panic(err)
	}
	use(c)
}
