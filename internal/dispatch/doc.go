// Package dispatch is the sending side of package tiered: it decides when a call leaves for which Redis node, how many go
// in one pipeline, and what the node's replies show about the node.
//
// It may import lua, remote and failover, but neither local nor tiered: it knows no bucket and no policy.
package dispatch
