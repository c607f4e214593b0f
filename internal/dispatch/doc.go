// Package dispatch is the sending side of internal/engine. It decides when a call leaves for which
// Redis node and how many calls go into one pipeline, and it learns from the replies how the node
// is.
//
// It may import lua, remote and failover, but neither local nor engine: it knows no bucket and no
// policy.
package dispatch
