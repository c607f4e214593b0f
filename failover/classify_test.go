package failover_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/tiered-limiter/tiered-limiter/failover"
)

// TestClassifyReplies: error replies, in the types that go-redis gives them.
func TestClassifyReplies(t *testing.T) {
	server := miniredis.RunT(t)
	client := newClient(t, server.Addr(), nil)
	if err := client.Ping(t.Context()).Err(); err != nil { // so that no handshake is refused
		t.Fatal(err)
	}
	for _, test := range []struct {
		text string
		want failover.Class
	}{
		{"LOADING Redis is loading the dataset in memory", failover.CannotServe},
		{"READONLY You can't write against a read only replica.", failover.CannotServe},
		{"MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.", failover.CannotServe},
		{"CLUSTERDOWN The cluster is down", failover.CannotServe},
		{"TRYAGAIN Multiple keys request during rehashing of slot", failover.CannotServe},
		{"NOREPLICAS Not enough good replicas to write.", failover.CannotServe},
		{
			"MISCONF Redis is configured to save RDB snapshots, but it's currently unable to persist to disk.",
			failover.CannotServe,
		},
		{"OOM command not allowed when used memory > 'maxmemory'.", failover.CannotServe},
		{"BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.", failover.CannotServe},
		{"ERR max number of clients reached", failover.CannotServe},
		{"MOVED 3999 127.0.0.1:6381", failover.CannotServe},
		{"ASK 3999 127.0.0.1:6381", failover.CannotServe},
		{"ERR unknown command 'evalsha'", failover.CannotServe},
		{"NEWCODE from a later Redis", failover.CannotServe},
		{"ERR", failover.CannotServe},

		{"NOAUTH Authentication required.", failover.Misconfigured},
		{"WRONGPASS invalid username-password pair or user is disabled.", failover.Misconfigured},
		{"NOPERM this user has no permissions to run the 'evalsha' command", failover.Misconfigured},
		{
			"ERR The user executing the script can't run this command or subcommand script: 60d2, on @user_script:84.",
			failover.Refused,
		},
		{"ERR Error running script (call to f_60d2): @user_script:84: The user executing the script can't run this command", failover.Refused},
		{"ERR ACL failure in script: User tl has no permissions to run the 'time' command script: 60d2, on @user_script:84.", failover.Refused},
		{"NOPERM this user has no permissions to run the 'eval' command", failover.Refused},
		{"NOPERM this user has no permissions to access one of the keys used as arguments", failover.Refused},
		{"NOPERM No permissions to access a key", failover.Refused},
		{"NOPERM User tl has no permissions to run the 'select' command", failover.Misconfigured},

		{"WRONGTYPE Operation against a key holding the wrong kind of value", failover.KeyFault},
		{"CROSSSLOT Keys in request don't hash to the same slot", failover.KeyFault},
		{"NOSCRIPT No matching script. Please use EVAL.", failover.Fine},
	} {
		server.SetError(test.text)
		err := client.Get(t.Context(), "x").Err()
		if err == nil || err.Error() != test.text {
			t.Fatalf("%q came back as %v", test.text, err)
		}
		for _, err := range []error{
			err, fmt.Errorf("a hook's: %w", err), errors.Join(errors.New("also"), err),
			replyError(test.text),
		} {
			if got := failover.Classify(err); got != test.want {
				t.Errorf("%q as %T: %v, want %v", test.text, err, got, test.want)
			}
		}
	}
}

// TestClassifyErrors: errors that need no server.
func TestClassifyErrors(t *testing.T) {
	for _, test := range []struct {
		err  error
		want failover.Class
	}{
		{nil, failover.Fine},
		{redis.Nil, failover.Fine},
		{redis.ErrPoolTimeout, failover.Saturated},
		{redis.ErrPoolExhausted, failover.Saturated},
		{redis.ErrClosed, failover.Unreachable},
		{redis.ErrCrossSlot, failover.KeyFault},
		{redis.ErrNoScript, failover.Fine},
		{context.Canceled, failover.Canceled},
		{&net.OpError{Op: "dial", Err: context.Canceled}, failover.Canceled},
		{context.DeadlineExceeded, failover.Unreachable},
		{os.ErrDeadlineExceeded, failover.Unreachable},
		{io.EOF, failover.Unreachable},
		{io.ErrUnexpectedEOF, failover.Unreachable},
		{net.ErrClosed, failover.Unreachable},
		{syscall.ECONNRESET, failover.Unreachable},
		{&os.SyscallError{Syscall: "write", Err: syscall.EPIPE}, failover.Unreachable},
		{
			&net.OpError{Op: "dial", Err: &os.SyscallError{Syscall: "connect", Err: syscall.ECONNREFUSED}},
			failover.Unreachable,
		},
		{&net.DNSError{Err: "no such host", Name: "redis.invalid", IsNotFound: true}, failover.Unreachable},
		{failover.ErrTimeout, failover.Unreachable},
		{failover.ErrAborted, failover.Unreachable},
		{errors.New("anything"), failover.Unreachable},
		{errors.New(""), failover.Unreachable},
		{errors.New("NOAUTH says somebody else than Redis"), failover.Unreachable},
		{bucketError{one: true}, failover.KeyFault},
		{bucketError{one: false}, failover.Unreachable},
		{&net.OpError{Op: "read", Err: bucketError{one: true}}, failover.KeyFault},
		{callError{}, failover.Refused},
		{(*nilError)(nil), failover.Unreachable},
		{(*net.OpError)(nil), failover.Unreachable},
		{(*net.DNSError)(nil), failover.Unreachable},
		{asPanics{}, failover.Unreachable},
		{fmt.Errorf("%w", error(nil)), failover.Unreachable},
	} {
		if got := failover.Classify(test.err); got != test.want {
			t.Errorf("%T: %v, want %v", test.err, got, test.want)
		}
		if test.err == nil {
			continue
		}
		if got := failover.Classify(errors.Join(io.ErrNoProgress, wrapped{test.err})); got != test.want {
			t.Errorf("%T, wrapped: %v, want %v", test.err, got, test.want)
		}
	}
}

// wrapped is an error of a hook.
type wrapped struct{ error }

func (e wrapped) Error() string { return "wrapped" }
func (e wrapped) Unwrap() error { return e.error }

// asPanics is an error whose methods are all broken.
type asPanics struct{}

func (asPanics) Error() string { panic("Error") }
func (asPanics) Is(error) bool { panic("Is") }
func (asPanics) As(any) bool   { panic("As") }
func (asPanics) Unwrap() error { panic("Unwrap") }

// TestClassifyConnections: what a client reports when there is no answer.
func TestClassifyConnections(t *testing.T) {
	silent := answers(t, func(net.Conn) { <-t.Context().Done() })
	hangup := answers(t, func(net.Conn) {})
	closed := newClient(t, silent, nil)
	_ = closed.Close()
	full := newClient(t, silent, func(o *redis.Options) {
		o.PoolSize, o.PoolTimeout, o.ReadTimeout = 1, ms, 10*time.Second
	})
	taken, stop := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); full.Get(taken, "x") }()
	for full.PoolStats().TotalConns == 0 {
		time.Sleep(ms) // a real connection: there is nothing else to wait on
	}
	t.Cleanup(func() { stop(); _ = full.Close(); <-done })
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	late, cancel := context.WithTimeout(t.Context(), 20*ms)
	defer cancel()

	for _, test := range []struct {
		name   string
		ctx    context.Context
		client *redis.Client
		want   failover.Class
	}{
		{"refused", t.Context(), newClient(t, unused(t), nil), failover.Unreachable},
		{"no unix socket", t.Context(), newClient(t, "/nowhere/redis.sock",
			func(o *redis.Options) { o.Network = "unix" }), failover.Unreachable},
		{"hangs up", t.Context(), newClient(t, hangup, nil), failover.Unreachable},
		{"silent", t.Context(), newClient(t, silent, hurried), failover.Unreachable},
		{
			"deadline", late, newClient(t, silent, func(o *redis.Options) { o.ReadTimeout = time.Hour }),
			failover.Unreachable,
		},
		{"client closed", t.Context(), closed, failover.Unreachable},
		{"pool taken", t.Context(), full, failover.Saturated},
		{"canceled", gone, newClient(t, silent, nil), failover.Canceled},
	} {
		err := test.client.Get(test.ctx, "x").Err()
		if err == nil {
			t.Errorf("%s: it worked", test.name)
		}
		if got := failover.Classify(err); got != test.want {
			t.Errorf("%s: %v, want %v: %T %v", test.name, got, test.want, err, err)
		}
	}
}

// hurried makes a client give up soon, where nothing answers. Others are patient: a busy machine is
// no failure of Redis.
func hurried(o *redis.Options) { o.ReadTimeout = 20 * ms }

// newClient returns a client that tries once.
func newClient(t *testing.T, addr string, change func(*redis.Options)) *redis.Client {
	o := &redis.Options{
		Addr: addr, MaxRetries: -1, DialerRetries: 1, DialTimeout: 20 * time.Second, ReadTimeout: 20 * time.Second,
		ContextTimeoutEnabled: true,
	}
	if change != nil {
		change(o)
	}
	c := redis.NewClient(o)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// unused returns an address on which nobody listens.
func unused(t *testing.T) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// FuzzClassify: no text makes it panic, in no type of error, and wrapping changes nothing.
func FuzzClassify(f *testing.F) {
	for _, err := range outcomes {
		if err != nil {
			f.Add(err.Error())
		}
	}
	f.Add("ERR The user executing the script can't run this")
	f.Add("MOVED ")
	f.Add("-READONLY You can't write against a read only replica")
	f.Add("ERR ERR \x00\xff")
	f.Fuzz(func(t *testing.T, text string) {
		plain, reply := failover.Classify(errors.New(text)), failover.Classify(replyError(text))
		if plain != failover.Unreachable {
			t.Errorf("%q, no reply of Redis: %v", text, plain)
		}
		if reply == failover.Unreachable || reply == failover.Saturated || reply == failover.Canceled {
			t.Errorf("%q, a reply of Redis: %v", text, reply)
		}
		if got := failover.Classify(wrapped{replyError(text)}); got != reply {
			t.Errorf("%q: %v, wrapped %v", text, reply, got)
		}
	})
}

// An error that concerns one call or one key opens no breaker, however often it comes.
func TestOneCallOpensNoBreaker(t *testing.T) {
	g := failover.New(failover.Options{})
	run(t, g, "rrrrrrkkkkkkffrffkff")
	if g.State() != failover.Closed {
		t.Errorf("%v", g.State())
	}
	if run(t, g, "m"); g.State() != failover.Open {
		t.Errorf("a refused password: %v", g.State())
	}
}
