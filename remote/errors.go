package remote

import (
	"errors"
	"strings"

	"github.com/redis/go-redis/v9"
)

// serverError is an error of Redis: the reply to a call, or a text that had to be changed. It is a
// redis.Error, so redis.IsOOMError, redis.IsMovedError, redis.HasErrorPrefix and similar functions
// recognize it.
type serverError string

func (e serverError) Error() string { return string(e) }

// RedisError marks it as a reply of Redis.
func (serverError) RedisError() {}

var _ redis.Error = serverError("")

// reportable turns an error that a script raised into a *[ScriptError], and removes caller data
// from the few errors of Redis that repeat it. Other errors are returned unchanged, so that
// errors.Is, errors.As and go-redis' own checks work.
func reportable(err error) error {
	var reply redis.Error
	if !errors.As(err, &reply) {
		return err
	}
	text := reply.Error()
	// "unknown command" repeats the arguments: keys, or the password if the server does not know
	// the handshake.
	if i := strings.Index(text, ", with args beginning with"); i >= 0 {
		return serverError(text[:i])
	}
	inner, raised := raisedText(text)
	switch code, _, _ := strings.Cut(inner, " "); {
	case code == "RLARG", code == "RLFOREIGN", code == "RLCORRUPT", code == "WRONGTYPE":
		return &ScriptError{Text: inner}
	case !raised:
		return err
	case strings.Contains(inner, "The user executing the script can't"):
		// Redis. An ACL concerns the node, not this bucket.
		return serverError("NOPERM " + strings.TrimPrefix(inner, "ERR "))
	case strings.HasPrefix(inner, "ERR ACL failure in script"):
		// Valkey. The text names the user, and may name the key.
		return serverError("NOPERM the user executing the script can't run " + deniedCommand(inner))
	case code == "ERR", code != strings.ToUpper(code):
		return &ScriptError{Text: inner} // a fault of the script itself
	case strings.HasPrefix(text, inner):
		return err
	default:
		return serverError(inner)
	}
	// The last two cases are errors that any write would have met: OOM, READONLY, MISCONF, …
}

// deniedCommand returns what Valkey says that the user may not run, or a general phrase if the text
// says something else.
func deniedCommand(text string) string {
	_, rest, _ := strings.Cut(text, " to run the '")
	if command, _, ok := strings.Cut(rest, "' command"); ok {
		return "the '" + command + "' command"
	}
	return "one of its commands, or access its key"
}

// isNodeError reports whether an error concerns more than one bucket.
func isNodeError(err error) bool {
	var e *ScriptError
	return !errors.As(reportable(err), &e)
}

// raisedText returns an error's text without what Redis adds when a script raises the error, and
// whether a script raised it. Redis 7 appends the place:
//
//	WRONGTYPE Operation … value script: 60d…, on @user_script:84.
//
// Redis 6.2 wraps the error into another:
//
//	ERR Error running script (call to f_60d…): @user_script:84: WRONGTYPE Operation … value
func raisedText(text string) (inner string, raised bool) {
	const place = "@user_script:"
	if strings.HasPrefix(text, "ERR Error running script") {
		if i := strings.LastIndex(text, place); i >= 0 {
			text = strings.TrimLeft(text[i+len(place):], "0123456789: ")
			return strings.TrimPrefix(text, "-"), true
		}
		return text, true
	}
	if i := strings.LastIndex(text, " script: "); i >= 0 && strings.Contains(text[i:], place) {
		return text[:i], true
	}
	return text, strings.Contains(text, "user_script")
}

// isMoved reports whether a cluster node did not execute a command because another has its slot.
func isMoved(err error) bool {
	addr, _ := movedTo(err)
	return addr != ""
}

// movedTo returns the node that a Cluster node named instead of executing a command, or "". asking
// reports whether the named node must get ASKING first, because the slot is still being migrated to
// it.
func movedTo(err error) (addr string, asking bool) {
	if addr, ok := redis.IsMovedError(err); ok {
		return addr, false
	}
	addr, asking = redis.IsAskError(err)
	return addr, asking
}

// ErrNoTLS says that a client with TLS has the address of a server that answers without it.
var ErrNoTLS = errors.New("remote: the server answers without TLS, and the client speaks it: does the server speak TLS at this port? " +
	"Otherwise the URL must begin with redis://, or the client must have no TLSConfig")

// ErrClusterNode says that a client for one server has the address of a node of a Cluster. It
// cannot follow a key to the node that has its slot.
var ErrClusterNode = errors.New("remote: the server is a node of a Cluster, and the client is for one server: " +
	"use redis.NewClusterClient, or a URL that begins with redis+cluster:// or rediss+cluster://")

// elsewhere is the error of a call that a node of a Cluster did not execute, to a client for one
// server.
type elsewhere struct{ error }

// OneCall reports true: the keys of the node's own slots work.
func (elsewhere) OneCall() bool { return true }

func (e elsewhere) Unwrap() error { return e.error }
