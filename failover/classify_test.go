package failover

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
		want Class
	}{
		{"LOADING Redis is loading the dataset in memory", CannotServe},
		{"READONLY You can't write against a read only replica.", CannotServe},
		{"MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.", CannotServe},
		{"CLUSTERDOWN The cluster is down", CannotServe},
		{"TRYAGAIN Multiple keys request during rehashing of slot", CannotServe},
		{"NOREPLICAS Not enough good replicas to write.", CannotServe},
		{
			"MISCONF Redis is configured to save RDB snapshots, but it's currently unable to persist to disk.",
			CannotServe,
		},
		{"OOM command not allowed when used memory > 'maxmemory'.", CannotServe},
		{"BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.", CannotServe},
		{"ERR max number of clients reached", CannotServe},
		{"MOVED 3999 127.0.0.1:6381", CannotServe},
		{"ASK 3999 127.0.0.1:6381", CannotServe},
		{"ERR unknown command 'evalsha'", CannotServe},
		{"NEWCODE from a later Redis", CannotServe},
		{"ERR", CannotServe},

		{"NOAUTH Authentication required.", Misconfigured},
		{"WRONGPASS invalid username-password pair or user is disabled.", Misconfigured},
		{"NOPERM this user has no permissions to run the 'evalsha' command", Misconfigured},
		{
			"ERR The user executing the script can't run this command or subcommand script: 60d2, on @user_script:84.",
			Misconfigured,
		},
		{"ERR Error running script (call to f_60d2): @user_script:84: The user executing the script can't run this command", Misconfigured},
		{"ERR ACL failure in script: User tl has no permissions to run the 'time' command script: 60d2, on @user_script:84.", Misconfigured},

		{"WRONGTYPE Operation against a key holding the wrong kind of value", KeyFault},
		{"CROSSSLOT Keys in request don't hash to the same slot", KeyFault},
		{"NOSCRIPT No matching script. Please use EVAL.", Fine},
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
			if got := Classify(err); got != test.want {
				t.Errorf("%q as %T: %v, want %v", test.text, err, got, test.want)
			}
		}
	}
}

// TestClassifyErrors: errors that need no server.
func TestClassifyErrors(t *testing.T) {
	for _, test := range []struct {
		err  error
		want Class
	}{
		{nil, Fine},
		{redis.Nil, Fine},
		{redis.ErrPoolTimeout, Saturated},
		{redis.ErrPoolExhausted, Saturated},
		{redis.ErrClosed, Unreachable},
		{redis.ErrCrossSlot, KeyFault},
		{redis.ErrNoScript, Fine},
		{context.Canceled, Canceled},
		{&net.OpError{Op: "dial", Err: context.Canceled}, Canceled},
		{context.DeadlineExceeded, Unreachable},
		{os.ErrDeadlineExceeded, Unreachable},
		{io.EOF, Unreachable},
		{io.ErrUnexpectedEOF, Unreachable},
		{net.ErrClosed, Unreachable},
		{syscall.ECONNRESET, Unreachable},
		{&os.SyscallError{Syscall: "write", Err: syscall.EPIPE}, Unreachable},
		{&net.OpError{Op: "dial", Err: &os.SyscallError{Syscall: "connect", Err: syscall.ECONNREFUSED}}, Unreachable},
		{&net.DNSError{Err: "no such host", Name: "redis.invalid", IsNotFound: true}, Unreachable},
		{ErrTimeout, Unreachable},
		{ErrAborted, Unreachable},
		{errors.New("anything"), Unreachable},
		{errors.New(""), Unreachable},
		{errors.New("NOAUTH says somebody else than Redis"), Unreachable},
		{bucketError{one: true}, KeyFault},
		{bucketError{one: false}, Unreachable},
		{&net.OpError{Op: "read", Err: bucketError{one: true}}, KeyFault},
		{(*nilError)(nil), Unreachable},
		{(*net.OpError)(nil), Unreachable},
		{(*net.DNSError)(nil), Unreachable},
		{asPanics{}, Unreachable},
		{fmt.Errorf("%w", error(nil)), Unreachable},
	} {
		if got := Classify(test.err); got != test.want {
			t.Errorf("%T: %v, want %v", test.err, got, test.want)
		}
		if test.err == nil {
			continue
		}
		if got := Classify(errors.Join(io.ErrNoProgress, wrapped{test.err})); got != test.want {
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
		want   Class
	}{
		{"refused", t.Context(), newClient(t, unused(t), nil), Unreachable},
		{"no unix socket", t.Context(), newClient(t, "/nowhere/redis.sock",
			func(o *redis.Options) { o.Network = "unix" }), Unreachable},
		{"hangs up", t.Context(), newClient(t, hangup, nil), Unreachable},
		{"silent", t.Context(), newClient(t, silent, nil), Unreachable},
		{"deadline", late, newClient(t, silent, func(o *redis.Options) { o.ReadTimeout = time.Hour }), Unreachable},
		{"client closed", t.Context(), closed, Unreachable},
		{"pool taken", t.Context(), full, Saturated},
		{"canceled", gone, newClient(t, silent, nil), Canceled},
	} {
		err := test.client.Get(test.ctx, "x").Err()
		if err == nil {
			t.Errorf("%s: it worked", test.name)
		}
		if got := Classify(err); got != test.want {
			t.Errorf("%s: %v, want %v: %T %v", test.name, got, test.want, err, err)
		}
	}
}

// newClient returns a client that tries once and gives up soon.
func newClient(t *testing.T, addr string, change func(*redis.Options)) *redis.Client {
	o := &redis.Options{
		Addr: addr, MaxRetries: -1, DialerRetries: 1, DialTimeout: time.Second, ReadTimeout: 20 * ms,
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
		plain, reply := Classify(errors.New(text)), Classify(replyError(text))
		if plain != Unreachable {
			t.Errorf("%q, no reply of Redis: %v", text, plain)
		}
		if reply == Unreachable || reply == Saturated || reply == Canceled {
			t.Errorf("%q, a reply of Redis: %v", text, reply)
		}
		if got := Classify(wrapped{replyError(text)}); got != reply {
			t.Errorf("%q: %v, wrapped %v", text, reply, got)
		}
	})
}
