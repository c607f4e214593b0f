// Package tune chooses a policy by rehearsal: from what a user knows of a service, and what they accept, it searches lease
// sizes and periods, fail modes and Options.Processes over a set of faults, each in a run of the shipped limiter, and says what
// to take, what it costs, and what nothing could satisfy.
//
// The search is successive halving: all candidates in short outages, the better half in more and longer ones, the rest in
// all. Of each fail mode the best stays in to the end, so that the answer shows what another choice would cost. The same seed
// gives the same answer.
package tune
