//go:build unix

package sim

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/tiered-limiter/tiered-limiter/internal/redisserver"
	"github.com/tiered-limiter/tiered-limiter/remote"
)

// refuse brings the server into the state in which it says a word by itself; accept takes it back. A word without an entry
// in refusable is no word of a server that is alone.
func (l *live) refuse(word string) {
	begin, _ := redisserver.Refusal(word, "default", l.run.password())
	for _, command := range begin {
		l.do(command...)
	}
	switch word {
	case "MISCONF":
		l.do("CONFIG", "SET", "save", "3600 1000000") // it is to save now and then, and the last time it could not
	case "BUSY":
		c := l.client(l.server)
		go func() {
			_ = c.Eval(context.Background(), "while true do end", nil).Err() // until accept kills it, or the server dies
			_ = c.Close()
		}()
		l.until("busy with a script", func(ctx context.Context) bool {
			err := l.admin.Get(ctx, "a key").Err()
			return err != nil && !errors.Is(err, redis.Nil)
		})
	case "LOADING":
		l.each(ballast(), func(p redis.Pipeliner, key string) { p.Set(context.Background(), key, strings.Repeat("x", 1024), 0) })
		l.do("SAVE")
		l.server.Kill()
		l.restart()
	case "WRONGTYPE":
		l.poisoned = l.keys(remote.NewRedis(l.admin, nil).Key)
		l.each(l.poisoned, func(p redis.Pipeliner, key string) {
			p.Do(context.Background(), "RENAME", key, aside(key))
			p.Do(context.Background(), "SET", key, "another program's")
		})
	}
}

// accept takes back what refuse did.
func (l *live) accept(word string) {
	_, end := redisserver.Refusal(word, "default", l.run.password())
	for _, command := range end {
		l.do(command...)
	}
	switch word {
	case "MISCONF":
		l.do("CONFIG", "SET", "save", "")
	case "BUSY":
		l.do("SCRIPT", "KILL")
	case "LOADING":
		l.do("CONFIG", "SET", "key-load-delay", 0) // it is soon done now
		l.until("done with loading", func(ctx context.Context) bool { return l.info(ctx, "persistence", "\r\nloading:0") })
		l.do("CONFIG", "SET", "key-load-delay", loadDelay)
		l.each(ballast(), func(p redis.Pipeliner, key string) { p.Unlink(context.Background(), key) })
		if err := os.Remove(filepath.Join(l.saved, "dump.rdb")); err != nil {
			l.run.fail(err)
		}
	case "WRONGTYPE":
		l.each(l.poisoned, func(p redis.Pipeliner, key string) {
			p.Do(context.Background(), "DEL", key)
			p.Do(context.Background(), "RENAME", aside(key), key)
		})
		l.poisoned = nil
	}
}

// aside is where a bucket is while its key is poisoned.
func aside(key string) string { return "aside " + key }

// each has something done for each key, in one go. Errors are no matter: not all of the keys are there.
func (l *live) each(keys []string, do func(p redis.Pipeliner, key string)) {
	ctx, cancel := context.WithTimeout(context.Background(), adminTime)
	defer cancel()
	_, _ = l.admin.TxPipelined(ctx, func(p redis.Pipeliner) error {
		for _, key := range keys {
			do(p, key)
		}
		return nil
	})
}

// prepare makes a server that has just started ready for what it will have to refuse.
func (l *live) prepare() {
	if l.unsaved == "" {
		return
	}
	_ = os.RemoveAll(l.unsaved)
	l.do("BGSAVE")
	l.until("unable to save", func(ctx context.Context) bool {
		return l.info(ctx, "persistence", "rdb_last_bgsave_status:err")
	})
}

// info reports whether the server says so in a section of INFO.
func (l *live) info(ctx context.Context, section, line string) bool {
	text, err := l.admin.Info(ctx, section).Result()
	return err == nil && strings.Contains(text, line)
}

// loadDelay is what a server takes to load a key that it was saved with, in microseconds. It is more often told to hurry.
const loadDelay = 20_000

// ballast are the keys that a server has to load besides the buckets: a minute of them.
func ballast() (keys []string) {
	for i := range int(time.Minute/time.Microsecond) / loadDelay {
		keys = append(keys, "ballast "+strconv.Itoa(i))
	}
	return keys
}

// until polls a real process: there is nothing else to wait on.
func (l *live) until(what string, ready func(context.Context) bool) {
	ctx, cancel := context.WithTimeout(context.Background(), adminTime)
	defer cancel()
	for ctx.Err() == nil {
		if ready(ctx) {
			return
		}
		time.Sleep(5 * time.Millisecond)
	}
	l.run.fail(fmt.Errorf("sim: engine live: redis-server is not %s after %v", what, adminTime))
}
