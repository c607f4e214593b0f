// Package benchmarks gives this limiter and its peers the same work, in one process and each with a
// redis-server of its own. It checks that the work was done before it reports the cost.
package benchmarks
