package faultnet

import "time"

// Open is how many connections the network keeps: one that it forgot to forget shows nowhere else.
func (n *Net) Open() int { return len(n.conns()) }

// Linger lets the far ends of connections that are dialed from now on take so long to accept what
// is due.
func (n *Net) Linger(d time.Duration) { n.linger = d }
