package failover

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"strings"

	"github.com/redis/go-redis/v9"
)

// Class is what the outcome of an attempt says about the node.
type Class uint8

// The classes, and how the breaker counts each.
const (
	// Fine: the node answered. Counts as a success.
	Fine Class = iota
	// Unreachable: no answer (dialing, DNS, a lost connection, a timeout), or an unknown error.
	// Counts as a failure. Except for a failed dial, the call may have been executed.
	Unreachable
	// Saturated: this process' own pool has no free connection. Counts as a failure. A probe that
	// was not sent for this reason is excluded.
	Saturated
	// CannotServe: the node answers but cannot execute the call (LOADING, READONLY, OOM, …). Counts
	// as a failure.
	CannotServe
	// Misconfigured: the node refuses all that this user asks (NOAUTH, WRONGPASS, NOPERM of
	// EVALSHA), one side refuses the other's certificate, or one side does not speak TLS. A single
	// failure opens the breaker, because this lasts until somebody changes a setting.
	Misconfigured
	// Refused: the node refuses this call and may serve others: the user has no right to a command
	// of this script or to this key (NOPERM), or the key belongs to another node, and the client
	// cannot follow. Counts as a success, because otherwise one policy would be an outage for all.
	// It lasts until somebody changes a setting.
	Refused
	// KeyFault: a refusal that concerns one bucket, or a reply that makes no sense. Counts as a
	// success, because otherwise one damaged key would be an outage for all keys.
	KeyFault
	// Canceled: the caller gave up. Excluded: neither success nor failure.
	Canceled
)

var classes = [...]string{
	Fine: "fine", Unreachable: "unreachable", Saturated: "saturated", CannotServe: "cannot serve",
	Misconfigured: "misconfigured", Refused: "refused", KeyFault: "key fault",
	Canceled: "canceled",
}

// String returns the class in lower case.
func (c Class) String() string {
	if int(c) < len(classes) {
		return classes[c]
	}
	return "unknown"
}

// success reports whether the breaker counts a success. If it is false and the class is not
// excluded, the breaker counts a failure.
func (c Class) success() bool { return c == Fine || c == KeyFault || c == Refused }

// excluded reports whether the breaker counts nothing.
func (c Class) excluded(probe bool) bool { return c == Canceled || c == Saturated && probe }

// Classify returns the class of an attempt that ended with err. It never panics, even if a method
// of the error does.
//
// An error with a method OneBucket() bool that returns true is a KeyFault, and one with such a
// method OneCall is Refused. A reply of Redis without a class of its own is CannotServe. Any other
// unknown error is Unreachable.
//
// context.DeadlineExceeded is Unreachable, because it does not say whose deadline it was. If a
// caller's context may end the call, end the attempt with context.Canceled once that context is
// done: a caller that gives up proves nothing about the node.
func Classify(err error) Class {
	if err == nil {
		return Fine // the common case, without the allocations of the rest
	}
	return classify(err)
}

func classify(err error) (class Class) {
	// A hook of the client may return anything, even a nil pointer in an error.
	defer func() {
		if recover() != nil {
			class = Unreachable
		}
	}()
	var one interface{ OneBucket() bool }
	var call interface{ OneCall() bool }
	var reply redis.Error
	switch {
	case errors.As(err, &one) && one.OneBucket():
		return KeyFault
	case errors.As(err, &call) && call.OneCall():
		return Refused
	case errors.Is(err, context.Canceled):
		return Canceled
	case errors.Is(err, redis.ErrPoolTimeout), errors.Is(err, redis.ErrPoolExhausted):
		return Saturated
	case errors.As(err, &reply):
		return classifyReply(reply)
	case refusesTLS(err):
		return Misconfigured
	default:
		return Unreachable
	}
}

// refusesTLS reports whether a handshake failed because the two sides do not accept each other: a
// certificate has expired, or has the wrong name or authority. That lasts until somebody acts, like
// a wrong password. A connection that is lost or silent during its handshake is not meant.
func refusesTLS(err error) bool {
	var certificate *tls.CertificateVerificationError
	var plain tls.RecordHeaderError // the server answered, but not in TLS
	var alert *net.OpError
	return errors.As(err, &certificate) || errors.As(err, &plain) ||
		errors.As(err, &alert) && alert != nil && alert.Op == "remote error" // crypto/tls: the server sent an alert
}

// classifyReply reports the class of an error that Redis sent.
func classifyReply(reply redis.Error) Class {
	switch {
	case errors.Is(reply, redis.Nil), redis.HasErrorPrefix(reply, "NOSCRIPT"): // NOSCRIPT: the text is sent next
		return Fine
	case redis.HasErrorPrefix(reply, "WRONGTYPE"), redis.HasErrorPrefix(reply, "CROSSSLOT"):
		return KeyFault
	case refusesCall(reply):
		return Refused
	case redis.IsAuthError(reply), redis.IsPermissionError(reply):
		return Misconfigured
	// LOADING, READONLY, MASTERDOWN, CLUSTERDOWN, TRYAGAIN, NOREPLICAS, MISCONF, OOM, BUSY, max
	// clients, MOVED, …
	default:
		return CannotServe
	}
}

// refusesCall reports whether an ACL forbids only what this call does: one of the script's
// commands, the key, or a script whose text the node does not have (EVAL). Redis 7 and Valkey send
// the code ERR for what is in a script.
func refusesCall(reply redis.Error) bool {
	text := reply.Error()
	switch {
	case strings.Contains(text, "he user executing the script can't"), strings.Contains(text, "ACL failure in script"):
		return true
	default:
		return redis.IsPermissionError(reply) && (strings.Contains(text, "'eval'") || strings.Contains(text, " key"))
	}
}
