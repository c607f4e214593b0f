// Package dispatch is the sending side of package tiered. It decides when a call leaves for which Redis node and
// how many calls go into one pipeline, and it learns from the replies how the node is.
//
// It may import lua, remote and failover, but neither local nor tiered: it knows no bucket and no policy.
package dispatch
