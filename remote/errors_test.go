package remote_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/tiered-limiter/tiered-limiter/remote"
)

// replyError is an error reply as go-redis makes it of most texts.
type replyError string

func (e replyError) Error() string { return string(e) }
func (replyError) RedisError()     {}

// The texts of Redis 7 were recorded from 7.0.15, those of Valkey ("ACL failure") from 8.0.1; those
// of 6.2 follow its source, scripting.c.
func TestReportable(t *testing.T) {
	const at7 = " script: 60d2e8f2cf5f7e3a1b7c0e8d9f6a5b4c3d2e1f00, on @user_script:84."
	const at6 = "ERR Error running script (call to f_60d2e8f2cf5f7e3a1b7c0e8d9f6a5b4c3d2e1f00): @user_script:84: "
	for _, test := range []struct {
		text   string
		script bool
		want   string
	}{
		{"RLARG argument 3", true, "RLARG argument 3"},
		{"RLFOREIGN key", true, "RLFOREIGN key"},
		{"RLCORRUPT lease", true, "RLCORRUPT lease"},
		{"WRONGTYPE Operation against a key" + at7, true, "WRONGTYPE Operation against a key"},
		{at6 + "WRONGTYPE Operation against a key", true, "WRONGTYPE Operation against a key"},
		{at6 + "-WRONGTYPE Operation against a key", true, "WRONGTYPE Operation against a key"},
		{
			"ERR user_script:12: attempt to compare nil with number" + at7, true,
			"ERR user_script:12: attempt to compare nil with number",
		},
		{
			at6 + "user_script:84: attempt to compare nil with number", true,
			"user_script:84: attempt to compare nil with number",
		},
		{
			"ERR Error compiling script (new function): user_script:1: syntax error", true,
			"ERR Error compiling script (new function): user_script:1: syntax error",
		},

		{
			"OOM command not allowed when used memory > 'maxmemory'." + at7, false,
			"OOM command not allowed when used memory > 'maxmemory'." + at7,
		},
		{at6 + "@user_script: 84: -OOM command not allowed", false, "OOM command not allowed"},
		{
			at6 + "-READONLY You can't write against a read only replica.", false,
			"READONLY You can't write against a read only replica.",
		},
		{
			"ERR The user executing the script can't run this command or subcommand" + at7, false,
			"NOPERM The user executing the script can't run this command or subcommand",
		},
		{
			at6 + "The user executing the script can't run this command or subcommand", false,
			"NOPERM The user executing the script can't run this command or subcommand",
		},
		{"ERR The user executing the script can't access at least one of the keys mentioned in the command arguments" + at7, false, "NOPERM The user executing the script can't access at least one of the keys mentioned in the command arguments"},
		{
			"ERR ACL failure in script: User tl has no permissions to run the 'time' command" + at7, false,
			"NOPERM the user executing the script can't run the 'time' command",
		},
		{
			"ERR ACL failure in script: No permissions to access the 's3cr3t' key" + at7, false,
			"NOPERM the user executing the script can't run one of its commands, or access its key",
		},
		{
			"ERR unknown command 'evalsha', with args beginning with: 'abc' '1' 's3cr3t' ", false,
			"ERR unknown command 'evalsha'",
		},
		{"LOADING Redis is loading the dataset in memory", false, "LOADING Redis is loading the dataset in memory"},
		{"ERR max number of clients reached", false, "ERR max number of clients reached"},
		{"MOVED 3999 127.0.0.1:6381", false, "MOVED 3999 127.0.0.1:6381"},
		{"NOSCRIPT No matching script. Please use EVAL.", false, "NOSCRIPT No matching script. Please use EVAL."},
		{"", false, ""},
	} {
		got := remote.Reportable(replyError(test.text))
		var script *remote.ScriptError
		var reply redis.Error
		switch {
		case errors.As(got, &script) != test.script:
			t.Errorf("%q: became %T", test.text, got)
		case test.script && script.Text != test.want, !test.script && got.Error() != test.want:
			t.Errorf("%q: became %q", test.text, got)
		case !test.script && !errors.As(got, &reply):
			t.Errorf("%q: no more an error of Redis", test.text)
		}
	}
	if err := remote.Reportable(replyError(at6 + "-OOM command not allowed")); !redis.IsOOMError(err) {
		t.Errorf("go-redis does not know %q", err)
	}
	for _, err := range []error{
		io.EOF, context.Canceled, redis.ErrPoolTimeout, &net.OpError{Op: "dial", Err: io.EOF}, nil,
		fmt.Errorf("a hook's: %w", replyError("LOADING x")),
	} {
		if got := remote.Reportable(err); got != err { //nolint:errorlint // the very same
			t.Errorf("%v became %v", err, got)
		}
	}
	if err := remote.Reportable(fmt.Errorf("a hook's: %w",
		replyError("RLARG argument 3"))); err.Error() != "remote: RLARG argument 3" {
		t.Errorf("wrapped: %v", err)
	}
}

// FuzzReportable: no text makes it panic; what comes out is an error of Redis or of the script, the
// same however a hook wrapped it, and no argument of a command comes through.
func FuzzReportable(f *testing.F) {
	f.Add("ERR Error running script (call to f_1): @user_script:84: -OOM no", "")
	f.Add("ERR Error running script (call to f_1): @user_script:84: RLARG argument 3", "")
	f.Add("WRONGTYPE x script: 1, on @user_script:84.", "")
	f.Add("ERR Error running script", "")
	f.Add("ERR unknown command 'evalsha'", "'abc' '1' 'key'")
	f.Add("ERR Error running script: ERR unknown command", "'abc'")
	f.Add("", "")
	f.Fuzz(func(t *testing.T, text, arguments string) {
		const marker = ", with args beginning with: "
		if arguments != "" {
			text += marker + "S3CR3T" + arguments
		}
		err := remote.Reportable(replyError(text))
		if err == nil || strings.Contains(err.Error(), marker) ||
			arguments != "" && strings.Contains(err.Error(), "S3CR3T") {
			t.Fatalf("%q became %v", text, err)
		}
		var script *remote.ScriptError
		var reply redis.Error
		if errors.As(err, &script) == errors.As(err, &reply) {
			t.Fatalf("%q became a %T", text, err)
		}
		if remote.IsNodeError(replyError(text)) == (script != nil) {
			t.Fatalf("%q became %v, of a node: %v", text, err, script == nil)
		}
		wrapped := remote.Reportable(fmt.Errorf("a hook's: %w", replyError(text)))
		if again := (*remote.ScriptError)(nil); errors.As(wrapped, &again) != (script != nil) ||
			script != nil && again.Text != script.Text {
			t.Fatalf("%q became %v, wrapped %v", text, err, wrapped)
		}
	})
}
