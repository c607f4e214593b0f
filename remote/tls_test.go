package remote_test

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/redistest"
	"github.com/tiered-limiter/tiered-limiter/remote"
)

// A client with TLS and a server without wait for each other. Who dials is asked whether the server
// speaks TLS; a server that is only silent is not accused.
func TestDialWithoutTLS(t *testing.T) {
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = silent.Close() }()
	rude, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = rude.Close() }()
	go func() { // what some servers do: an error at once, and the end
		for {
			c, err := rude.Accept()
			if err != nil {
				return
			}
			_, _ = io.WriteString(c, "-ERR Protocol error\r\n")
			_ = c.Close()
		}
	}()
	plain, locked := redistest.Start(t), redistest.Start(t, "--requirepass", "secret")
	for _, c := range []struct {
		name, addr string
		asks       bool
	}{
		{"plain", plain.Addr, true},
		{"plain, with a password", locked.Addr, true},
		{"an error instead of a handshake", rude.Addr().String(), true},
		{"silent", silent.Addr().String(), false},
		{"nobody", "127.0.0.1:1", false},
	} {
		client := redis.NewClient(&redis.Options{Addr: c.addr, TLSConfig: &tls.Config{MinVersion: tls.VersionTLS12}, DialerRetries: 1})
		defer func() { _ = client.Close() }()
		s := remote.NewRedis(client, nil)
		patience := 10 * time.Second // a busy machine must not hide it
		if c.name == "silent" {
			patience = 50 * time.Millisecond
		}
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		if err := s.Dial(ctx, s.Node("b")); errors.Is(err, remote.ErrNoTLS) != c.asks || err == nil {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}
