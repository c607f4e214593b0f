package remote_test

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/redistest"
	"github.com/tiered-limiter/tiered-limiter/lua"
	"github.com/tiered-limiter/tiered-limiter/remote"
)

// feed writes lines to c as go-redis does, up to the first error.
func feed(c *remote.CallCmd, lines string) error {
	for line := range strings.FieldsSeq(lines) {
		if err := c.Feed(line); err != nil {
			return err
		}
	}
	return nil
}

func TestReply(t *testing.T) {
	ten := strings.Repeat(":7 ", lua.ReplyNumbers)
	for _, test := range []struct {
		lines    string
		want     []int64 // nil: the wrong shape, or no reply
		answered bool
	}{
		{"*2 :1 :-2", []int64{1, -2}, true},
		{"*1 :9223372036854775807", []int64{1<<63 - 1}, true},
		{"*0", []int64{}, true},
		{"*14 " + ten, []int64{7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7}, true},
		{"*15 " + ten + ":7", nil, true},
		{"", nil, false},
		{"*2 :1", nil, false},
		{"*2 :1 :2 :3", nil, true},
		{"*2 :1 +2", nil, true},
		{"*2 :1 $1 2", nil, true},
		{"*2 :1 $2 :2", nil, true},
		{"*2 :1 _", nil, true},
		{"*2 :1 $-1", nil, true},
		{"*2 :1 -ERR", nil, true},
		{"*2 *1 :1 :1", nil, true},
		{"*2 :1 :", nil, true},
		{"*2 :1 :9223372036854775808", nil, true},
		{"*-2", nil, true},
		{"* :1", nil, true},
		{"*9223372036854775808 :1", nil, true},
		{"+OK", nil, true},
		{":1", nil, true},
		{"~1 :1", nil, true},
		{"%1 :1 :2", nil, true},
		{"|1 +a :1 *1 :1", nil, true},
		{"!3 ERR", nil, true},
		{"*1 :1 *2 :3 :4", []int64{3, 4}, true}, // executed again
		{"*2 :1 *2 :3 :4", nil, true},           // after half a reply
	} {
		var c remote.CallCmd
		if err := feed(&c, test.lines); err != nil {
			t.Errorf("%s: %v", test.lines, err)
		}
		got, ok := c.List()
		if ok != (test.want != nil) || ok && !reflect.DeepEqual(got, test.want) || c.Answered() != test.answered {
			t.Errorf("%s: %v, %t, answered %t", test.lines, got, ok, c.Answered())
		}
	}
	for lines, want := range map[string]string{
		"-NOSCRIPT": "NOSCRIPT", "-": "", "_": redis.Nil.Error(), "*-1": redis.Nil.Error(), "$-1": redis.Nil.Error(),
	} {
		var c remote.CallCmd
		err := feed(&c, lines)
		var reply redis.Error
		if !errors.As(err, &reply) || err.Error() != want || c.Answered() || c.Val() != nil {
			t.Errorf("%s: %v, answered %t", lines, err, c.Answered())
		}
	}
}

// A hook may answer instead of Redis, as it does to a redis.Cmd.
func TestSetVal(t *testing.T) {
	for _, test := range []struct {
		val, want any
	}{
		{numbersOf(1, 2), numbersOf(1, 2)},
		{numbersOf(), numbersOf()},
		{nil, nil},
		{"OK", nil},
		{[]any{int64(1), "2"}, nil},
		{make([]any, lua.ReplyNumbers+1), nil},
	} {
		var c remote.CallCmd
		c.SetVal(test.val)
		if got := c.Val(); !reflect.DeepEqual(got, test.want) || !c.Answered() {
			t.Errorf("%v became %v, answered %t", test.val, got, c.Answered())
		}
	}
}

// keeper is a hook that keeps the commands that it sees, and reads them on a goroutine of its own.
type keeper struct {
	mu      sync.Mutex
	kept    []redis.Cmder
	readers sync.WaitGroup
}

func (*keeper) DialHook(next redis.DialHook) redis.DialHook { return next }

func (*keeper) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }

func (k *keeper) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		err := next(ctx, cmds)
		if strings.HasPrefix(cmds[0].Name(), "eval") {
			k.mu.Lock()
			k.kept = append(k.kept, cmds...)
			k.mu.Unlock()
			k.readers.Go(func() {
				for _, c := range cmds {
					_, _ = fmt.Sprint(c.Args()), fmt.Sprint(c.(interface{ Val() any }).Val())
				}
			})
		}
		return err
	}
}

// TestHooksMayKeepCommands: what a hook has seen stays as it was, whatever is sent afterwards.
func TestHooksMayKeepCommands(t *testing.T) {
	server := redistest.Start(t)
	client := serverClient(t, server.Options(redis.Options{
		ContextTimeoutEnabled: true, ReadTimeout: patience, WriteTimeout: patience,
	}))
	hook := new(keeper)
	client.AddHook(hook)
	s := remote.NewRedis(client, nil)
	const runs, each = 50, 3
	var want []string
	for i := range runs {
		if i == runs/2 { // then each call is sent twice
			server.Client().ScriptFlush(t.Context())
		}
		calls, results := make([]lua.Call, each), make([]remote.Result, each)
		for j := range calls {
			calls[j] = takeOne(s, fmt.Sprint("key ", i, " ", j))
			calls[j].Cap = full + int64(i)
			want = append(want, fmt.Sprint(calls[j].Bucket, " ", calls[j].Cap, " ", calls[j].Cap-1))
		}
		s.Run(context.Background(), patience, calls, results)
		for _, r := range results {
			if r.Err != nil || r.Reply.Grant != 1 {
				t.Fatalf("%+v", r)
			}
		}
	}
	hook.readers.Wait()
	var got []string
	for _, c := range hook.kept {
		if list, ok := c.(interface{ Val() any }).Val().([]any); ok {
			got = append(got, fmt.Sprint(c.Args()[3], " ", c.Args()[4+lua.DirectArguments-3], " ", list[2]))
		}
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("the hook kept\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if len(hook.kept) < (runs+2)*each {
		t.Errorf("%d commands: nothing was sent twice", len(hook.kept))
	}
}

// A shared context ends when that of its first call does, and no later call gets more or much less
// than its timeout.
func TestDeadlines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const timeout = 320 * time.Millisecond
		var all remote.Deadlines
		made := make(map[context.Context]bool)
		for range 100 {
			ctx, cancel := all.Of(context.Background(), timeout)
			made[ctx] = true
			end, _ := ctx.Deadline()
			if left := time.Until(end); left > timeout || left < timeout-timeout/32 || ctx.Err() != nil {
				t.Fatalf("%v left of %v, %v", left, timeout, ctx.Err())
			}
			cancel() // ends nobody else's
			time.Sleep(time.Millisecond)
		}
		if len(made) != 10 {
			t.Errorf("%d contexts for 100 calls in 100 ms", len(made))
		}
		time.Sleep(timeout)
		for ctx := range made {
			if ctx.Err() == nil {
				t.Error("a context does not end")
			}
		}
		first, _ := all.Of(context.Background(), timeout)
		if other, _ := all.Of(context.Background(), 2*timeout); other == first {
			t.Error("two timeouts share a context")
		}
		parent, end := context.WithCancel(context.Background())
		child, cancel := all.Of(parent, 2*timeout)
		defer cancel()
		if end(); child.Err() == nil {
			t.Error("the context outlives its parent")
		}
	})
}
