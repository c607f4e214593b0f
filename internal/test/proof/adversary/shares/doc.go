// Package shares is the adversary of the standing shares. It tries random orders of polls, losses,
// crashes and clock jumps on a fleet of processes, the table that lends fractions to them, and the
// buckets in Redis.
//
// The processes are the shipped ones (package standing), the table and the buckets are Memory or
// the scripts in a real redis-server (package remote). After every step the adversary checks:
//
//   - the fractions that processes use sum to at most 1
//   - the table has on record what each process uses
//   - for each key: if everybody now took all that shares and bucket have, it would fit into one
//     ideal bucket of the whole limit
//
// At the end the network is healthy, and all processes must get their equal part again.
//
// A [Schedule] is a seed and the numbers of its steps. What a step does follows from the seed and
// its number, so a failure is shown as the fewest steps that still fail ([Schedule.Without]). The
// protocol of the buckets' leases has an adversary of its own (package adversary).
package shares
