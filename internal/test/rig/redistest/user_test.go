package redistest_test

import (
	"context"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/redistest"
)

// In a guarded run a store's connections are what it says, and the default user's cannot take their
// place.
func TestGuardedServer(t *testing.T) {
	for _, guarded := range []string{"", "1"} {
		t.Setenv(redistest.GuardedEnv, guarded)
		s := redistest.Start(t)
		ctx := context.Background()
		fromURL, err := redis.ParseURL(s.URL())
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range []*redis.Options{s.Options(redis.Options{}), fromURL} {
			o.ClientName = "" // CLIENT SETNAME is no right of the store's
			store := redis.NewClient(o)
			defer store.Close()
			if err := store.Eval(ctx, "return 1", nil).Err(); err != nil {
				t.Errorf("guarded %q, as a store: %v", guarded, err)
			}
		}
		if err := s.StoreClient().Ping(ctx).Err(); (err != nil) != (guarded != "") {
			t.Errorf("guarded %q: PING as a store: %v", guarded, err)
		}
		if err := s.Client().Eval(ctx, "return 1", nil).Err(); (err != nil) != (guarded != "") {
			t.Errorf("guarded %q, as the test itself: %v", guarded, err)
		}
		list, err := s.Client().ClientList(ctx).Result()
		if err != nil {
			t.Fatal(err)
		}
		stores := 0
		for line := range strings.SplitSeq(list, "\n") {
			if !strings.Contains(line, " user="+redistest.User+" ") {
				continue
			}
			if stores++; !strings.Contains(line, s.Socket) || !strings.Contains(line, " resp=2") {
				t.Errorf("a store's connection: %s", line)
			}
		}
		if want := map[string]int{"": 0, "1": 3}[guarded]; stores != want {
			t.Errorf("guarded %q: %d connections of the user:\n%s", guarded, stores, list)
		}
		s.Restart()
		if err := s.StoreClient().Eval(ctx, "return 1", nil).Err(); err != nil {
			t.Errorf("guarded %q, after a restart: %v", guarded, err)
		}
	}
}
