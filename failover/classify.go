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

// The classes, and what each is to the breaker.
const (
	// Fine: the node answered. Success.
	Fine Class = iota
	// Unreachable: no answer (dialing, DNS, a lost connection, a timeout), or an unknown error. Failure. Unless it was
	// dialing, the call may have been executed.
	Unreachable
	// Saturated: no connection is free in this process' own pool. Failure; but excluded as a probe, which never left.
	Saturated
	// CannotServe: the node answers, and cannot do it (LOADING, READONLY, OOM, …). Failure.
	CannotServe
	// Misconfigured: the node refuses this user (NOAUTH, WRONGPASS, NOPERM), or one side refuses the other's certificate or
	// speaks no TLS. Failure, and one is enough to open: it does not heal before somebody changes a setting.
	Misconfigured
	// KeyFault: a refusal that concerns one bucket, or a reply that makes no sense. Success, or one poisoned key would be an
	// outage for all.
	KeyFault
	// Canceled: the caller gave up. Excluded: neither success nor failure.
	Canceled
)

// String reports the class in lower case.
func (c Class) String() string {
	switch c {
	case Fine:
		return "fine"
	case Unreachable:
		return "unreachable"
	case Saturated:
		return "saturated"
	case CannotServe:
		return "cannot serve"
	case Misconfigured:
		return "misconfigured"
	case KeyFault:
		return "key fault"
	case Canceled:
		return "canceled"
	}
	return "unknown"
}

// success reports whether the breaker counts a success. What is neither that nor excluded is a failure.
func (c Class) success() bool { return c == Fine || c == KeyFault }

// excluded reports whether the breaker counts nothing at all.
func (c Class) excluded(probe bool) bool { return c == Canceled || c == Saturated && probe }

// oneBucket is an error that knows whether only the bucket is concerned that was asked for, the node being well.
type oneBucket interface {
	error
	OneBucket() bool
}

// Classify reports the class of an attempt that ended with err. It never panics, whatever the error's own methods do.
//
// An error with a method OneBucket() bool that reports true is a KeyFault. Any reply of Redis that is not known to be
// something else is CannotServe; any other error that is not known is Unreachable.
//
// A deadline does not say whose it was, and context.DeadlineExceeded is Unreachable. Whoever lets a caller's context reach
// the node has to end the attempt with context.Canceled when that context has ended: an impatient caller proves nothing.
func Classify(err error) Class {
	if err == nil {
		return Fine // most often, and without what the rest allocates
	}
	return classify(err)
}

func classify(err error) (class Class) {
	// A hook of the client may return anything, a nil pointer in an error too.
	defer func() {
		if recover() != nil {
			class = Unreachable
		}
	}()
	var one oneBucket
	var reply redis.Error
	switch {
	case errors.As(err, &one) && one.OneBucket():
		return KeyFault
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

// refusesTLS reports whether a handshake ended because the two sides do not accept each other. Certificates expire and are
// issued for other names or by other authorities until somebody acts, so this is as bad as a wrong password. A connection
// that is lost or silent during its handshake is not meant.
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
	case errors.Is(reply, redis.Nil), redis.HasErrorPrefix(reply, "NOSCRIPT"): // the latter is answered by sending the text
		return Fine
	case redis.HasErrorPrefix(reply, "WRONGTYPE"), redis.HasErrorPrefix(reply, "CROSSSLOT"):
		return KeyFault
	case redis.IsAuthError(reply), redis.IsPermissionError(reply):
		return Misconfigured
	// An ACL without one of the script's commands or keys. Redis 7 and Valkey give it no code but ERR, so it is no PermissionError.
	case strings.Contains(reply.Error(), "The user executing the script can't"),
		strings.HasPrefix(reply.Error(), "ERR ACL failure in script"):
		return Misconfigured
	default: // LOADING, READONLY, MASTERDOWN, CLUSTERDOWN, TRYAGAIN, NOREPLICAS, MISCONF, OOM, BUSY, max clients, MOVED, …
		return CannotServe
	}
}
