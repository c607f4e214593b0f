package remote_test

import (
	"context"
	"fmt"
	"maps"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"pgregory.net/rapid"

	"github.com/tiered-limiter/tiered-limiter/lua"
	"github.com/tiered-limiter/tiered-limiter/remote"
)

// claimers returns the stores that execute the same claims; the first is Memory.
func claimers(t *testing.T) (stores []remote.Store, all []*engine) {
	all = engines(t)
	for _, e := range all {
		if e.memory != nil {
			stores = append(stores, e.memory)
		} else {
			stores = append(stores, remote.NewRedis(e.client, nil))
		}
	}
	return stores, all
}

// TestClaimsAtRandom plays random claims of some processes, also late, repeated and senseless ones,
// with a clock that steps. The script answers as Memory does and stores the same.
func TestClaimsAtRandom(t *testing.T) {
	stores, all := claimers(t)
	run, codes := 0, map[string]int{}
	rapid.Check(t, func(t *rapid.T) {
		run++
		now := scriptStart
		small := rapid.Int64Range(0, 4)
		for range rapid.IntRange(1, 40).Draw(t, "calls") {
			now += rapid.SampledFrom([]int64{0, 1, 1e6, 70e6, 300e6, -90e6}).Draw(t, "later")
			c := lua.Claims{Process: rapid.SampledFrom([]string{"a", "b", "c|1"}).Draw(t, "process"), Now: now}
			for i := range rapid.IntRange(1, 3).Draw(t, "keys") {
				want := small.Draw(t, "want")
				c.Each = append(c.Each, lua.Claim{
					Bucket: fmt.Sprintf("{x%d}%d", run, i), Places: rapid.Int64Range(1, 6).Draw(t, "places"),
					Seq: rapid.Int64Range(0, 60).Draw(t, "seq"), Hold: small.Draw(t, "hold"), Want: want,
					Need: rapid.Int64Range(min(want, 1), want).Draw(t, "need"), Life: 60e6 * rapid.Int64Range(1, 4).Draw(t, "life"),
					Since: rapid.SampledFrom([]int64{0, now - 80e6, now}).Draw(t, "since"),
					Wait:  rapid.SampledFrom([]int64{0, 2e6, 90e6}).Draw(t, "wait"),
				})
				if c.Each[i].Seq == 0 {
					c.Each[i].Want, c.Each[i].Need = 0, 0
				}
			}
			var first []remote.ClaimResult
			for i, s := range stores {
				results := make([]remote.ClaimResult, len(c.Each))
				s.Claim(context.Background(), 5*time.Second, &c, results)
				for _, r := range results {
					if r.Err != nil {
						t.Fatalf("%s: %v", all[i].name, r.Err)
					}
					codes[fmt.Sprintf("code %d flags %d granted %v", r.Reply.Code, r.Reply.Flags, r.Reply.Grant > 0)]++
				}
				if i == 0 {
					first = results
				} else if !reflect.DeepEqual(first, results) {
					t.Fatalf("%+v: %s answers %+v, and %s %+v", c, all[0].name, first, all[i].name, results)
				}
			}
			for _, one := range c.Each {
				want := all[0].memory.Fields(one.Bucket)
				for _, e := range all[1:] {
					got, err := e.client.HGetAll(context.Background(), one.Bucket).Result()
					if err != nil || !maps.Equal(got, want) && len(got)+len(want) > 0 {
						t.Fatalf("%s has %v, %v, and Memory %v", e.name, got, err, want)
					}
				}
			}
		}
	})
	for _, must := range []string{"code 0 flags 0 granted true", "code 0 flags 1 granted false", "code 0 flags 2 granted true", "code 3"} {
		seen := 0
		for c, n := range codes {
			if strings.HasPrefix(c, must) {
				seen += n
			}
		}
		if seen == 0 {
			t.Errorf("no claim came to %q: %v", must, codes)
		}
	}
}

// TestClaimsOfForeignKeys: what is not ours is refused by itself, and nothing is written to it. The
// other keys of the call are as ever.
func TestClaimsOfForeignKeys(t *testing.T) {
	e := realEngine(t)
	ctx := context.Background()
	e.client.Set(ctx, "{f}string", "x", 0)
	e.client.HSet(ctx, "{f}hash", "v", "tb2")
	e.client.HSet(ctx, "{f}damaged", "v", "ao1", "pa", "1|x|3|4|5")
	c := lua.Claims{Process: "a", Now: scriptStart}
	for _, name := range []string{"string", "hash", "damaged", "ours"} {
		c.Each = append(c.Each, lua.Claim{Bucket: "{f}" + name, Places: 2, Seq: 1, Want: 1, Need: 1, Life: 1e6})
	}
	results := make([]remote.ClaimResult, len(c.Each))
	remote.NewRedis(e.client, nil).Claim(ctx, 5*time.Second, &c, results)
	for i, want := range []lua.ClaimCode{lua.ClaimForeign, lua.ClaimForeign, lua.ClaimDamaged, lua.ClaimDone} {
		if r := results[i]; r.Err != nil || r.Reply.Code != want {
			t.Errorf("%s: %+v, %v; want code %d", c.Each[i].Bucket, r.Reply, r.Err, want)
		}
	}
	if got := e.client.HGetAll(ctx, "{f}damaged").Val(); got["pa"] != "1|x|3|4|5" {
		t.Errorf("a damaged hash was written: %v", got)
	}
}

// TestClaimArguments: the script and the model refuse the same arguments, each by its number, and
// write nothing.
func TestClaimArguments(t *testing.T) {
	stores, all := claimers(t)
	good := lua.Claim{Bucket: "{a}k", Places: 2, Seq: 1, Want: 1, Need: 1, Life: 1e6}
	for want, broken := range map[string]func(c *lua.Claims){
		"argument 1":  func(c *lua.Claims) { c.Process = "" },
		"argument 2":  func(c *lua.Claims) { c.Now = -1 },
		"argument 3":  func(c *lua.Claims) { c.Each[0].Places = 0 },
		"argument 4":  func(c *lua.Claims) { c.Each[0].Seq = -1 },
		"argument 5":  func(c *lua.Claims) { c.Each[0].Hold = 1 << 51 },
		"argument 6":  func(c *lua.Claims) { c.Each[0].Seq = 0 },
		"argument 7":  func(c *lua.Claims) { c.Each[0].Need = 2 },
		"argument 8":  func(c *lua.Claims) { c.Each[0].Life = 0 },
		"argument 9":  func(c *lua.Claims) { c.Each[0].Since = 1 << 53 },
		"argument 10": func(c *lua.Claims) { c.Each[0].Wait = 1 << 51 },
		"argument 11": func(c *lua.Claims) { c.Each[1].Places = lua.MostPlaces + 1 },
	} {
		for i, s := range stores {
			c := lua.Claims{Process: "a", Now: scriptStart, Each: []lua.Claim{good, good}}
			broken(&c)
			results := make([]remote.ClaimResult, 2)
			s.Claim(context.Background(), 5*time.Second, &c, results)
			for _, r := range results {
				if r.Err == nil || !strings.HasSuffix(r.Err.Error(), want) {
					t.Errorf("%s: %v, want RLARG %s", all[i].name, r.Err, want)
				}
			}
		}
	}
	for _, e := range all[1:] {
		if n := e.client.DBSize(context.Background()).Val(); n > 0 {
			t.Errorf("%s has %d keys", e.name, n)
		}
	}
}

// TestClaimsShareCommands: the claims of one server share commands, which is what the price of
// renewing relies on, but no command holds up the server for long.
func TestClaimsShareCommands(t *testing.T) {
	e := realEngine(t)
	ctx := context.Background()
	s := remote.NewRedis(e.client, nil)
	c := lua.Claims{Process: "a"}
	for i := range 150 {
		c.Each = append(c.Each, lua.Claim{Bucket: s.PlacesName("p", fmt.Sprint(i)), Places: 2, Seq: 1, Want: 1, Need: 1, Life: 1e6})
	}
	results := make([]remote.ClaimResult, len(c.Each))
	s.Claim(ctx, 5*time.Second, &c, results) // loads the script
	before := evals(t, e.client)
	for i := range c.Each {
		c.Each[i].Seq++
	}
	s.Claim(ctx, 5*time.Second, &c, results)
	if n := evals(t, e.client) - before; n != 3 {
		t.Errorf("150 claims took %d commands, want 64 in one", n)
	}
	for i, r := range results {
		if r.Err != nil || r.Reply.Code != lua.ClaimDone {
			t.Errorf("claim %d: %+v", i, r)
		}
	}
}

// evals returns how many scripts the server has run.
func evals(t *testing.T, c *redis.Client) (n int) {
	t.Helper()
	text, err := c.Info(context.Background(), "commandstats").Result()
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(text) {
		for _, name := range []string{"cmdstat_evalsha:calls=", "cmdstat_eval:calls="} {
			if rest, ok := strings.CutPrefix(line, name); ok {
				one := 0
				_, _ = fmt.Sscanf(rest, "%d", &one)
				n += one
			}
		}
	}
	return n
}

// TestPlacesNames: as those of buckets, in the same slot, with a mark of their own.
func TestPlacesNames(t *testing.T) {
	client := redis.NewClient(&redis.Options{})
	t.Cleanup(func() { _ = client.Close() })
	s := remote.NewRedis(client, nil)
	long := strings.Repeat("x", 300)
	for key, want := range map[string]string{"k": "tl:{p/k}ao1", "a}b": "tl:{p/a}b}ao1"} {
		if got := s.PlacesName("p", key); got != want {
			t.Errorf("%q is %q, want %q", key, got, want)
		}
	}
	name := s.PlacesName("p", long)
	if name != s.PlacesName("p", remote.Digest(long)) || !strings.HasSuffix(name, "}ao1h") || len(name) > 80 {
		t.Errorf("a long key is %q", name)
	}
	if bucket := s.Key("p", long); strings.TrimSuffix(bucket, "tb2h") != strings.TrimSuffix(name, "ao1h") {
		t.Errorf("%q and %q begin in different ways", bucket, name)
	}
}
