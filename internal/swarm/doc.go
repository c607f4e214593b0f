// Package swarm looks for failures that nobody thought of. It draws scenarios at random, runs each, and compares
// the result with what the limiter promises in any fault. One seed is one scenario and one run of it.
//
// A scenario of the swarm has two parts. In the first, faults of a few kinds come on top of each other, and the
// promises are those of [Expect] for an outage: no decision takes longer than Budget, nothing is spent that was not
// granted, all that is admitted is counted, and over-admission keeps the [Bound] of the fail mode and of the faults
// that were drawn. In the second all faults have ended, and soon everything must be as before: breakers closed, the
// limit used and not exceeded, no debt left that refuses a request.
//
// Each seed draws its own few kinds of faults, out of all of them: runs in which everything happens look alike
// (Groce and others, Swarm Testing, 2012).
//
// The promises are expectations in the scenario. So a failing scenario is a file that everybody can run:
// [Shrink] makes it as small as it can, and [Failure.Text] is the file.
package swarm
