package remote_test

import (
	"errors"
	"testing"
	"time"

	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/redistest"
	"github.com/tiered-limiter/tiered-limiter/remote"
)

func TestRedisPresence(t *testing.T) {
	server := redistest.Start(t)
	s, other := openStore(t, server.URL()), remote.NewRedis(server.StoreClient(), nil)
	elsewhere := remote.NewRedis(server.StoreClient(), &remote.RedisOptions{Prefix: "tl:elsewhere:"})
	node := s.Node("")
	here := func(s *remote.Redis, id string, ttl time.Duration, want int64) remote.Census {
		t.Helper()
		c, err := s.Presence(t.Context(), patience, node, remote.Process{ID: id, TTL: ttl})
		if err != nil || c.Processes != want {
			t.Errorf("%s: %+v, %v, want %d", id, c, err, want)
		}
		return c
	}
	before := time.Now()
	c := here(s, "a", time.Minute, 1)
	if now := time.UnixMicro(c.Now); now.Before(before.Add(-time.Second)) || now.After(time.Now().Add(time.Second)) {
		t.Errorf("the server's clock is at %v, asked at %v", now, before)
	}
	here(other, "b", time.Minute, 2)
	here(s, "a", time.Minute, 2)
	here(elsewhere, "a", time.Minute, 1)
	here(other, "b", 0, 1)
	here(s, "c", time.Minute, 2)
	brief := remote.Process{ID: "a", TTL: time.Millisecond} // the others are silent for that long
	for deadline := time.Now().Add(patience); ; {
		c, err := s.Presence(t.Context(), patience, node, brief)
		if err == nil && c.Processes == 1 {
			break
		}
		if err != nil || time.Now().After(deadline) {
			t.Fatalf("%+v, %v", c, err)
		}
	}
	var e *remote.ScriptError
	if _, err := s.Presence(t.Context(), patience, node, remote.Process{TTL: time.Second}); !errors.As(err, &e) {
		t.Errorf("no id: %v", err)
	}
	if _, err := s.Presence(t.Context(), patience, "nowhere:1", brief); !errors.Is(err, remote.ErrNoPresence) {
		t.Errorf("an unknown node: %v", err)
	}
}
