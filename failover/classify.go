package failover

import (
	"context"
	"errors"
	"strings"

	"github.com/redis/go-redis/v9"
)

// Class is what the outcome of an attempt says about the node.
type Class uint8

// The classes, and what each is to the breaker.
const (
	// Fine: the node answered. Success.
	Fine Class = iota
	// Unreachable: no answer (dialing, a lost connection, a timeout), or an unknown error. Failure. Unless it was
	// dialing, the call may have been executed.
	Unreachable
	// Saturated: no connection is free in this process' own pool. Failure; but excluded as a probe, which never left.
	Saturated
	// CannotServe: the node answers, and cannot do it (LOADING, READONLY, OOM, …). Failure.
	CannotServe
	// Misconfigured: the node refuses this user (NOAUTH, WRONGPASS, NOPERM). Failure, and one is enough to open: it does
	// not heal by itself.
	Misconfigured
	// KeyFault: a refusal that concerns one bucket. Success, or one poisoned key would be an outage for all.
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
	default:
		return Unreachable
	}
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
	// An ACL without one of the script's commands: Redis 7 gives it no code but ERR, so it is no PermissionError.
	case strings.Contains(reply.Error(), "The user executing the script can't run"):
		return Misconfigured
	default: // LOADING, READONLY, MASTERDOWN, CLUSTERDOWN, TRYAGAIN, NOREPLICAS, MISCONF, OOM, BUSY, max clients, MOVED, …
		return CannotServe
	}
}
