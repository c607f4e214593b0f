package remote_test

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/redistest"
	"github.com/tiered-limiter/tiered-limiter/lua"
	"github.com/tiered-limiter/tiered-limiter/remote"
)

// polling is a process that polls the table.
func polling(seq int64) remote.Process {
	return remote.Process{ID: "me", TTL: time.Minute, Poll: lua.Poll{
		Member: "m", Seq: seq, Ack: seq - 1, Want: true, TTL: time.Minute.Microseconds(),
	}}
}

// Presence and poll go in one pipeline, and again when Redis forgot the scripts. Each is executed
// once.
func TestPollInThePipeline(t *testing.T) {
	server := redistest.Start(t)
	client := serverClient(t, server.Options(redis.Options{ContextTimeoutEnabled: true}))
	count := new(pipelines)
	client.AddHook(count)
	s := remote.NewRedis(client, nil)
	for seq := int64(1); seq <= 3; seq++ {
		if seq == 3 {
			if err := server.Client().ScriptFlush(t.Context()).Err(); err != nil {
				t.Fatal(err)
			}
		}
		count.sent.Store(0)
		count.commands.Store(0)
		c, err := s.Presence(t.Context(), patience, s.TableNode(), polling(seq))
		want := remote.PollResult{Sent: true, Reply: lua.PollReply{
			Epoch: c.Poll.Reply.Epoch, Members: 1,
			Flags: lua.Quarantine,
		}}
		if seq == 1 {
			want.Reply.Flags |= lua.TableCreated
		}
		if want.Reply.Now = c.Poll.Reply.Now; err != nil || c.Processes != 1 || c.Silent != 1 || c.Poll != want ||
			want.Reply.Now < c.Now || want.Reply.Now > c.Now+patience.Microseconds() {
			t.Errorf("%+v, %v", c, err)
		}
		times := int64(2) // without the scripts, and with them
		if seq == 2 {
			times = 1
		}
		if sent, commands := count.sent.Load(), count.commands.Load(); sent != times || commands != 2*times {
			t.Errorf("poll %d: %d pipelines with %d commands, want %d with %d", seq, sent, commands, times, 2*times)
		}
	}
	if c, err := s.Presence(t.Context(), patience, s.TableNode(), polling(3)); err != nil ||
		c.Poll.Reply.Code != lua.PollStale {
		t.Errorf("a poll twice: %+v, %v", c, err)
	}
	if c, err := s.Presence(t.Context(), patience, s.TableNode(), remote.Process{ID: "me"}); err != nil ||
		c.Poll != (remote.PollResult{}) {
		t.Errorf("no poll: %+v, %v", c, err)
	}
}

// A table that cannot be read does not hide who is present, and the other way round.
func TestPollOrPresenceFails(t *testing.T) {
	server := redistest.Start(t)
	admin := server.Client()
	s := openStore(t, server.URL())
	for _, text := range []string{"RLFOREIGN key", "WRONGTYPE Operation against a key holding the wrong kind of value"} {
		admin.Del(t.Context(), s.Names().Table())
		if text == "RLFOREIGN key" {
			admin.HSet(t.Context(), s.Names().Table(), "a", "b")
		} else {
			admin.Set(t.Context(), s.Names().Table(), "x", 0)
		}
		c, err := s.Presence(t.Context(), patience, s.TableNode(), polling(1))
		var e *remote.ScriptError
		ok := errors.As(c.Poll.Err, &e)
		if err != nil || c.Processes != 1 || !c.Poll.Sent || !ok || e.Text != text {
			t.Errorf("%+v, %v, want the poll's error %s", c, err, text)
		}
	}
	admin.Del(t.Context(), s.Names().Table(), s.Names().Presence(0))
	admin.Set(t.Context(), s.Names().Presence(0), "x", 0)
	c, err := s.Presence(t.Context(), patience, s.TableNode(), polling(1))
	if err == nil || c.Poll.Err != nil || c.Poll.Reply.Members != 1 {
		t.Errorf("%+v, %v", c, err)
	}
}

// A user who may not run a command of the script still gets the presence.
func TestPollIsRefused(t *testing.T) {
	server := redistest.StartOpen(t)
	err := server.Client().Do(t.Context(), "acl", "setuser", "u", "on", ">p", "~*", "+@all", "-hgetall").Err()
	if err != nil {
		t.Fatal(err)
	}
	s := remote.NewRedis(serverClient(t, &redis.Options{Addr: server.Addr, Username: "u", Password: "p"}), nil)
	c, err := s.Presence(t.Context(), patience, s.TableNode(), polling(1))
	if err != nil || c.Processes != 1 || !c.Poll.Sent || !redis.IsPermissionError(c.Poll.Err) {
		t.Errorf("%+v, %v", c, err)
	}
}

// On a Cluster one node has the table, also after its slot has moved; the others get no poll.
func TestPollOnACluster(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t, 3)
	s := openStore(t, cluster.URL(0))
	if n := s.TableNode(); n != "" {
		t.Errorf("before any call the table is on %q", n)
	}
	warm(t, s)
	slot := remote.SlotOf(s.Names().Table())
	home := cluster.Owner(slot)
	addr := func(i int) remote.Node { return remote.Node(cluster.Addrs()[i]) }
	if n := s.TableNode(); n != addr(home) || !slices.Contains(s.Nodes(), n) {
		t.Fatalf("the table is on %q, want %s", n, addr(home))
	}
	for i := range cluster.Servers {
		c, err := s.Presence(t.Context(), patience, addr(i), polling(1))
		if err != nil || c.Processes != 1 || c.Poll.Sent != (i == home) || c.Poll.Err != nil {
			t.Errorf("node %d: %+v, %v", i, c, err)
		}
		if n := cluster.Client(i).Keys(t.Context(), "*}st1").Val(); len(n) > 1 || (len(n) == 1) != (i == home) {
			t.Errorf("node %d has %q", i, n)
		}
	}
	// The slot moves: the old node answers for neither. The presence goes to another set of it, and
	// the poll is over.
	if err := cluster.Client(home).FlushAll(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	cluster.Assign(slot, (home+1)%3)
	c, err := s.Presence(t.Context(), patience, addr(home), polling(2))
	if err != nil || c.Processes != 1 || c.Poll.Sent && c.Poll.Err == nil {
		t.Errorf("a slot that moved: %+v, %v", c, err)
	}
}
