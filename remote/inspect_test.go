package remote_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/tiered-limiter/tiered-limiter/failover"
	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/redistest"
	"github.com/tiered-limiter/tiered-limiter/lua"
	"github.com/tiered-limiter/tiered-limiter/remote"
)

// Inspect finds each right of docs/redis.md that is missing, and no other: with these rights it
// finds nothing. It leaves nothing in Redis.
func TestInspectFindsMissingRights(t *testing.T) {
	server := redistest.StartOpen(t)
	admin := server.Client()
	rights := append(redistest.Rights(t, redistest.OnServer), redistest.Rights(t, redistest.OnWindows)...)
	s := asUser(t, "redis", server.Addr, "", nil)
	inspect := func(s *remote.Redis, algorithms ...lua.Algorithm) error {
		return s.Inspect(t.Context(), patience, s.Nodes()[0], algorithms)
	}
	var all []lua.Algorithm
	for a := range lua.Algorithm(lua.Algorithms) {
		all = append(all, a)
	}
	setUserAnew(t, admin, rights...)
	if err := inspect(s, all...); err != nil {
		t.Fatalf("with all rights: %v", err)
	}
	if n := admin.DBSize(t.Context()).Val(); n != 0 {
		t.Errorf("it leaves %d keys", n)
	}
	for i, right := range rights {
		command, ok := strings.CutPrefix(right, "+")
		if !ok || command == "evalsha" { // without which there is no presence either
			continue
		}
		setUserAnew(t, admin, slices.Delete(slices.Clone(rights), i, i+1)...)
		if err := inspect(s, all...); !redis.IsPermissionError(err) || !strings.HasSuffix(fmt.Sprint(err), " "+command) {
			t.Errorf("without %s: %v", right, err)
		}
		if err := inspect(s, lua.TokenBucket); (err == nil) != (command == "unlink") {
			t.Errorf("without %s, for a token bucket: %v", right, err)
		}
	}
	setUserAnew(t, admin, rights...)
	other := asUser(t, "redis", server.Addr, "", &remote.RedisOptions{Prefix: "other:"})
	if err := inspect(other); !redis.IsPermissionError(err) {
		t.Errorf("another prefix: %v", err)
	}
}

// A client for one server is told that it has a node of a Cluster, by Inspect and by each call
// whose key is elsewhere, which opens no breaker. Other clients of the same nodes, and one at a
// server alone, are told nothing.
func TestInspectFindsANodeOfACluster(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t, 2)
	alone := redistest.StartOpen(t)
	inspect := func(s *remote.Redis) error {
		node, err := s.Locate(t.Context(), s.Key("", ""))
		if err != nil {
			t.Fatal(err)
		}
		return s.Inspect(t.Context(), patience, node, nil)
	}
	ring := func(addr string) *remote.Redis {
		r := redis.NewRing(&redis.RingOptions{
			Addrs: map[string]string{"0": addr}, Username: redistest.User, Password: redistest.Password,
		})
		t.Cleanup(func() { _ = r.Close() })
		return remote.NewRedis(r, nil)
	}
	addr := c.Servers[0].Addr
	single := func(protocol int, hooks ...redis.Hook) *remote.Redis {
		client := serverClient(t, &redis.Options{
			Addr: addr, Username: redistest.User, Password: redistest.Password, Protocol: protocol, ContextTimeoutEnabled: true,
		})
		for _, h := range hooks {
			client.AddHook(h)
		}
		return remote.NewRedis(client, nil)
	}
	var rights []string
	for _, part := range []string{redistest.OnServer, redistest.OnCluster, redistest.OnRing} {
		rights = append(rights, redistest.Rights(t, part)...)
	}
	for _, admin := range []*redis.Client{c.Client(0), c.Client(1), alone.Client()} {
		setUserAnew(t, admin, rights...)
	}
	for name, s := range map[string]*remote.Redis{
		"RESP3": single(3), "RESP2": single(2), "no HELLO": single(2, withoutHello{}),
		"of Open": asUser(t, "redis", addr, "", nil), "a Ring": ring(addr),
	} {
		if err := inspect(s); !errors.Is(err, remote.ErrClusterNode) || failover.Classify(err) != failover.Refused {
			t.Errorf("%s: %v, %v", name, err, failover.Classify(err))
		}
		here, elsewhere := 0, 0
		for i := range 40 {
			switch err := run(t, s, takeOne(s, fmt.Sprint(name, i))).Err; {
			case err == nil:
				here++
			case errors.Is(err, remote.ErrClusterNode) && failover.Classify(err) == failover.Refused:
				elsewhere++
			default:
				t.Errorf("%s: %v", name, err)
			}
		}
		if here == 0 || elsewhere == 0 {
			t.Errorf("%s: %d calls here, %d elsewhere", name, here, elsewhere)
		}
	}
	routing := redis.NewClusterClient(&redis.ClusterOptions{
		Addrs: c.Addrs(), Username: redistest.User, Password: redistest.Password,
	})
	defer routing.Close()
	for name, s := range map[string]*remote.Redis{
		"a Cluster": asUser(t, "cluster", addr, "", nil), "a client of another kind": remote.NewRedis(foreign{routing}, nil),
		"alone": asUser(t, "redis", alone.Addr, "", nil), "a Ring of servers": ring(alone.Addr),
	} {
		if err := inspect(s); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// withoutHello answers HELLO as a proxy does that does not know it.
type withoutHello struct{}

func (withoutHello) DialHook(next redis.DialHook) redis.DialHook          { return next }
func (withoutHello) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }
func (withoutHello) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		err := next(ctx, cmds)
		for _, cmd := range cmds {
			if cmd.Name() == "hello" {
				cmd.(*redis.Cmd).SetVal(nil)
				cmd.SetErr(replyError("ERR unknown command 'hello'"))
			}
		}
		return err
	}
}
