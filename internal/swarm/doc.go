// Package swarm looks for failures that nobody thought of: it draws scenarios at random, runs each and holds it against what
// the limiter promises whatever happens. One seed is one scenario and one run of it.
//
// A scenario of the swarm has two parts. In the first, faults of a few kinds come on top of each other, and the promises are
// those of [Expect] for an outage: no decision takes longer than Budget, nothing is spent that was not granted, all that is
// admitted is counted, and over-admission keeps the [Bound] of the fail mode and of the faults that were drawn. Then all is
// healed, and soon it must be as if nothing had been: breakers closed, the limit used and not exceeded, no debt left that
// refuses anybody.
//
// Each seed draws its own few kinds of faults, out of all of them: runs in which everything happens look alike (Groce and
// others, Swarm Testing, 2012).
//
// What a scenario has to keep is in the scenario, as expectations. So a failing one is a file that everybody can run:
// [Shrink] makes it as small as it can, and [Failure.Text] is the file.
package swarm
