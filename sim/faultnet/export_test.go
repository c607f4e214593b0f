package faultnet

// Open is how many connections the network keeps: one that it forgot to forget shows nowhere else.
func (n *Net) Open() int { return len(n.conns()) }
