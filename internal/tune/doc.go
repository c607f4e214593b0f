// Package tune chooses a policy by simulation. From what a user knows of a service, and what they accept, it
// searches lease sizes and periods, fail modes and Options.Processes. It runs the shipped limiter with each choice
// in a set of faults. The answer is what to take, what that costs, and which wish no choice satisfies.
//
// The search is successive halving: all candidates in short outages, the better half in more and longer ones, the
// rest in all. The best choice of each fail mode stays in to the end, so that the answer shows what another choice
// would cost. The same seed gives the same answer.
//
// What standing shares change is found by two more runs of the advised choice. They are not a candidate of the search:
// no fault makes them worse, and their price is one that a user accepts or does not.
package tune
