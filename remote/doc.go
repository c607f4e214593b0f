// Package remote is the shared tier: a [Store] runs the scripts of package lua, on Redis or, as
// [Memory], in this process.
//
// [Open] connects to a URL. [NewRedis] borrows an existing go-redis client. [NewMemory] needs no
// server: it has the same semantics within one process, for tests and for the simulator. All stores
// may be used by several goroutines at once.
//
// Users of a limiter need these three constructors and [RedisOptions]. The rest is for package
// tiered, and for stores that observe or disturb another one.
package remote
