// Package mutants breaks the rules of the lease protocol, one at a time, and shows that a test of
// the rule fails.
//
//	make mutants
//	go test ./internal/test/proof/mutants -run 'TestMutants/.*window' -v -args -mutants
//
// Each entry of mutants.txt is one mistake: a few lines of a script or of the Go code that read
// otherwise, and the fast test that must fail. The source itself has no switches. Go files are
// compiled with a changed copy in their place (go test -overlay). Scripts are text, so one test
// binary takes all their changes.
//
// A mistake is caught if an assertion fails. It is not caught if the changed source does not
// compile, if the script stumbles, if the test panics, or if it fails without the mistake too.
//
// The table stands for the distinct rules of docs/concepts.md, so it is short enough to run in
// under eight minutes. Most entries quote the scripts, which change least. A tool that
// mutates all Go code is in CONTRIBUTING.md.
package mutants
