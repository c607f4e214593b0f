package main

import (
	"bufio"
	"context"
	"io"
	"net/http"
	"strings"
	"testing"
)

func TestServerLimitsEachUser(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	out, in := io.Pipe()
	ended := make(chan error, 1)
	go func() { ended <- run(ctx, []string{"-addr", "127.0.0.1:0", "-rate", "1", "-burst", "2"}, in) }()
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	url := strings.TrimSpace(strings.TrimPrefix(line, "listening on "))
	get := func(user string) *http.Response {
		t.Helper()
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("X-User", user)
		resp, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		return resp
	}
	for i, want := range []int{200, 200, 429} {
		if r := get("ann"); r.StatusCode != want || r.Header.Get("X-Ratelimit-Limit") != "2" {
			t.Errorf("request %d: %s, headers %v", i, r.Status, r.Header)
		} else if want == 429 && r.Header.Get("Retry-After") != "1" {
			t.Errorf("Retry-After is %q", r.Header.Get("Retry-After"))
		}
	}
	if r := get("bob"); r.StatusCode != 200 {
		t.Errorf("another user: %s", r.Status)
	}
	http.DefaultClient.CloseIdleConnections()
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

func TestBadRedisURLIsNotShown(t *testing.T) {
	err := run(t.Context(), []string{"-redis", "redis://user:s3cr3t@%zz"}, io.Discard)
	if err == nil || strings.Contains(err.Error(), "s3cr3t") {
		t.Errorf("error %v", err)
	}
}
