// Package remote is the shared tier: a [Store] runs the scripts of package lua, on Redis or, as [Memory], in this process.
//
// [Open] connects to a URL, [NewRedis] borrows a go-redis client that there is already, and [NewMemory] needs neither: it has the
// same semantics for one process, for tests and for the simulator. All of them may be used by any number of goroutines.
//
// Users of a limiter need these three constructors and [RedisOptions]. The rest is for package tiered, and for stores that
// observe or disturb another one.
package remote
