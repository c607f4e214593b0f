// Package faultnet puts faults into network connections: delay and jitter, a black hole either way,
// a connection cut before a request or after it, refused and unanswered dialing.
//
// A [Net] goes between a client and its server through the client's Dialer, and everything else
// stays as it is:
//
//	network := faultnet.New(1)
//	client := redis.NewClient(&redis.Options{Addr: addr, Dialer: network.Dialer(nil)})
//	…
//	err := network.Set(faultnet.Faults{HoldIn: true}) // from now on Redis hears us, and we do not hear Redis
//	…
//	err = network.Set(faultnet.Faults{}) // healed
//
// It works over TCP, unix sockets and net.Pipe, and in a bubble of testing/synctest, as long as the
// Net is made in the bubble: whatever waits here is durably blocked, and a delay takes exactly its
// time.
//
// # What a connection does
//
// Deadlines and Close are kept while a fault holds a call up, and a call that is blocked when
// [Net.Set] changes the faults goes on under the new ones. A goroutine reads what comes in until
// the connection is closed or cut, or the far end hangs up.
//
// What was written before Close arrives when it is due, and only then does the far end see the end:
// a request whose client gave up is executed late, as on a real network. Until then a timer holds
// the connection, and no goroutine. [Net.Cut] ends that too; a test in a bubble whose far end waits
// for the end calls it, or waits.
//
// As with a socket, a Write returns before the far end has read, and blocks once 256 KiB are under
// way; what the far end breaks is an error of a later call. A connection shows no SyscallConn, so
// go-redis cannot look at it before it takes it from its pool, and notices a connection that was
// cut while idle when it uses it.
//
// # What is left to chance
//
// All of it comes from the seed. Each connection has a source of its own for each direction, by the
// order of dialing, and each Write draws the same number of times whatever the faults are: which
// Write of which connection is cut depends on nothing but the seed and the probability. For jitter
// the same holds as far as the far end's bytes come in the same pieces, which a pipe promises and
// TCP does not.
package faultnet
