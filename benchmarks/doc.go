// Package benchmarks sets this limiter and its peers the same work, in one process and each on a redis-server of its own,
// and checks that it was done before it says what it cost.
package benchmarks
