package rls_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/tiered-limiter/tiered-limiter/contrib/rls"
	"github.com/tiered-limiter/tiered-limiter/contrib/rls/internal/behavior"
	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/fatal"
	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/redistest"
	"github.com/tiered-limiter/tiered-limiter/remote"
)

// With a secret, neither Redis nor the figures of the limiter have a value of a descriptor, and all
// count as before: two values are two keys, and services with one secret share them.
func TestHashKey(t *testing.T) {
	const value = "Bearer s3cr3t"
	for _, secret := range []string{"", "sixteen bytes 16", "another secret 17"} {
		redis := redistest.Start(t)
		store := func() remote.Store { return remote.NewRedis(redis.StoreClient(), nil) }
		o := &rls.Options{HashKey: []byte(secret)}
		a, g := serviceOfGroup(t, store(), behavior.Config, o)
		b := newService(t, store(), behavior.Config, o)
		ask := func(s *rls.Service, value string) string {
			r := behavior.Request("shop | user=x")
			r.Descriptors[0].Entries[0].Value = value
			answer := fatal.Get(s.ShouldRateLimit(t.Context(), r))(t)
			return behavior.Show(answer)
		}
		for i, s := range []*rls.Service{a, b, a, b} {
			if got, want := ask(s, value), []string{"OK | OK 2/3", "OK | OK 1/3", "OK | OK 0/3", "OVER | OVER 0/3"}[i]; got != want {
				t.Errorf("%q: %s, want %s", secret, got, want)
			}
		}
		if got := ask(a, value+"x"); got != "OK | OK 2/3" {
			t.Errorf("%q: another value: %s", secret, got)
		}
		client := redis.Client()
		names, err := client.Keys(t.Context(), "*").Result()
		_ = client.Close()
		if err != nil {
			t.Fatal(err)
		}
		all := fmt.Sprint(names, g.Stats())
		if strings.Contains(all, value) != (secret == "") || strings.Contains(all, "hmac:") != (secret != "") {
			t.Errorf("%q: %.2000s", secret, all)
		}
	}
	_, g := serviceOfGroup(t, remote.NewMemory(), behavior.Config, nil)
	if _, err := rls.New(g, &rls.Options{HashKey: []byte("short")}); err == nil || strings.Contains(err.Error(), "short") ||
		!strings.Contains(err.Error(), "HashKey has 5 bytes: must have 16 or more") {
		t.Error(err)
	}
}
