package tiered_test

import (
	"crypto/sha256"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"
	"pgregory.net/rapid"

	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// marker is in every hostile key, so that it is found wherever a piece of one turns up.
const marker = "hOsTiLe"

// hostileKeys are what clients send who hope that somebody prints, parses or formats it.
var hostileKeys = []string{
	marker, marker + "\nlevel=ERROR msg=\"all is lost\"", marker + "\r\nSet-Cookie: a=b\r\n\r\n",
	"\x1b[2J\x1b[31m" + marker + "\x1b]0;title\x07", "\x00" + marker + "\x00", marker + "\x7f\x08\x08\x08",
	"\xff\xfe" + marker + "\xc3\x28\xed\xa0\x80", marker + "\u202eevil\u2028\u2029\u0085\ufeff", "{}" + marker,
	"{" + marker + "}", "}{" + marker + "}{", marker + "}tb2", "{other/" + marker + "}tb2", "/" + marker + "/../",
	marker + "\r\n*1\r\n$8\r\nFLUSHALL\r\n", "*1\r\n$8\r\nFLUSHALL\r\n" + marker, "$" + marker + "\r\n",
	marker + "' ; FLUSHALL ; '", "<script>alert('" + marker + "')</script>", "\"><img src=x onerror=" + marker + ">",
	"&lt;" + marker, marker + "%s%n%d%!v(PANIC=%[1]*d", "${" + marker + ":-jndi}", "`" + marker + "`",
	"\"" + marker + "\"", "'" + marker + "'", "\\" + marker + "\\n", "x script: f, on @user_script" + marker,
	"WRONGTYPE " + marker, "NOSCRIPT " + marker, marker + strings.Repeat("\n\x1b[31m", 1700),
	marker + strings.Repeat("x", 190), strings.Repeat("\x00", 201-32) + marker,
}

// hostileKey draws such a key, or one made of pieces of them.
func hostileKey() *rapid.Generator[string] {
	pieces := rapid.SampledFrom([]string{
		"\n", "\r\n", "\x1b[", "\x00", "\xff", "{", "}", "/", "%s", "%n", "%!", "<b>", "\"", "'", "\\", "*1\r\n",
		"$4\r\n", "=", " ",
		"\u202e", "tb2", "tl:", "ERR", "script: ", "long enough to be hashed, if there are some more of it; ",
	})
	return rapid.Custom(func(t *rapid.T) string {
		before := strings.Join(rapid.SliceOfN(pieces, 0, 8).Draw(t, "before"), "")
		return before + marker + rapid.String().Draw(t,
			"text") + string(rapid.SliceOfN(rapid.Byte(), 0, 8).Draw(t, "bytes"))
	})
}

// bucketName is what package remote promises.
func bucketName(key string) string {
	if len(key) > 200 {
		return fmt.Sprintf("tl:{api/%x}tb2h", sha256.Sum256([]byte(key)))
	}
	return "tl:{api/" + key + "}tb2"
}

func TestHostileKeys(t *testing.T) {
	// What go-redis logs by itself goes somewhere too.
	var library logged
	redis.SetLogger(&printer{&library})
	defer logging.Disable()

	r := newHostileRig(t)
	buckets := map[string]bool{} // by the names that package remote promises
	for _, key := range hostileKeys {
		checkErrors(t, key, r.abuse(key))
		buckets[bucketName(key)] = true
	}
	t.Run("drawn", func(t *testing.T) {
		rapid.Check(t, func(t *rapid.T) {
			key := hostileKey().Draw(t, "key")
			checkErrors(t, key, r.abuse(key))
			buckets[bucketName(key)] = true
		})
	})
	// Nothing of a key was a command or another key: what is in Redis are the names that the store
	// gives, and digests.
	names := must(r.admin.Keys(ctx, "*").Result())
	digests := 0
	for _, name := range names {
		switch {
		case buckets[name]:
			delete(buckets, name)
			if strings.HasSuffix(name, "}tb2h") {
				digests++
			}
		case !strings.HasPrefix(name, "tl:{~"):
			t.Errorf("in Redis: %.300q", name)
		}
	}
	for name := range buckets {
		t.Errorf("not in Redis: %.300q", name)
	}
	if digests == 0 {
		t.Error("no key was long enough for a digest")
	}
	stats, err := r.admin.Info(ctx, "commandstats").Result()
	if err != nil || strings.Contains(stats, "cmdstat_flushall") {
		t.Errorf("a key became a command: %s, %v", stats, err)
	}

	// Redis quotes what it finds under a name, or does not: errors of one bucket, and of the whole
	// server.
	for i, key := range hostileKeys {
		key = fmt.Sprint(i, key)
		name := r.store.Key("api", key)
		var planted error
		switch i % 3 {
		case 0:
			planted = r.admin.Set(ctx, name, key, 0).Err()
		case 1:
			planted = r.admin.HSet(ctx, name, key, key).Err()
		default:
			planted = r.admin.HSet(ctx, name, "v", "tb2", "l", key, "t", key).Err()
		}
		if planted != nil {
			t.Fatal(planted)
		}
		checkErrors(t, key, r.abuse(key))
	}
	if s := r.group.Stats(); s.Policies["api"].Faults.Rejected < int64(len(hostileKeys)) {
		t.Errorf("poisoned: %+v", s.Policies)
	}
	user := "acl setuser " + r.server.User()
	for _, trouble := range [][2]string{ // and the end of it
		{user + " -pexpire", user + " +pexpire"},
		{user + " -evalsha", user + " +evalsha"},
		{user + " resetkeys ~other:*", user + " ~*"},
		{"config set maxmemory 1", "config set maxmemory 0"},
	} {
		r.do(trouble[0])
		for i, key := range hostileKeys[:6] {
			checkErrors(t, key, r.abuse(fmt.Sprint(trouble[0], i, key)))
		}
		r.do(trouble[1])
		r.healed()
	}
	r.server.Kill()
	for _, key := range hostileKeys {
		checkErrors(t, key, r.abuse(key))
	}
	r.hears("connect: ") // the first calls may only have found their old connections cut
	r.checkLogs()
	seen := fmt.Sprint(r.events)
	for _, kind := range []string{"WRONGTYPE", "RLFOREIGN", "RLCORRUPT", "NOPERM", "can't run", "OOM", "connect: "} {
		if !strings.Contains(seen, kind) {
			t.Errorf("no error was %q", kind)
		}
	}
	if text := library.String(); strings.Contains(text, marker) {
		t.Errorf("go-redis logs %.300q", text)
	}
}

// Names and prefixes come from the operator, and errors show them to the operator: quoted, and cut.
func TestHostileNames(t *testing.T) {
	g := must(tiered.NewGroup(remote.NewMemory(), nil))
	defer g.Close(ctx)
	check := func(t tester, name string) {
		_, err := g.NewLimiter(tiered.Policy{Name: name, Limit: tiered.PerSecond(1)})
		if err == nil {
			if !harmless(name) || len(name) > 64 {
				t.Errorf("%.100q is accepted", name)
			}
			if _, err = g.NewLimiter(tiered.Policy{Name: name, Limit: tiered.PerSecond(1)}); err == nil {
				t.Errorf("%q is accepted twice", name)
				return
			}
		}
		text := err.Error()
		formatted := strings.Contains(text, "%!") && !strings.Contains(name, "%!")
		if i := strings.Index(text, marker); !harmless(text) || formatted || len(text) > 700 ||
			i >= 0 && !quoted(text, i) {
			t.Errorf("%.100q: %.700q", name, text)
		}
		_, err = remote.Open("redis://127.0.0.1:1", &remote.RedisOptions{Prefix: name})
		if err != nil && (strings.Contains(err.Error(), marker) || !harmless(err.Error())) {
			t.Errorf("prefix %.100q: %.700q", name, err)
		}
		memory := remote.NewMemory()
		me := remote.Process{ID: "me", TTL: time.Second}
		_, err = memory.Presence(ctx, time.Second, remote.Node(name), me)
		if err == nil || !harmless(err.Error()) {
			t.Errorf("node %.100q: %v", name, err)
		}
	}
	for _, key := range hostileKeys {
		check(t, key)
	}
	t.Run("drawn", func(t *testing.T) {
		rapid.Check(t, func(t *rapid.T) { check(t, hostileKey().Draw(t, "name")) })
	})
}
