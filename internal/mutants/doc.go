// Command mutants makes the mistakes that the protocol guards against, one at a time, and shows that the tests notice.
//
//	go run ./internal/mutants [-only regexp] [-with tests] [-scenarios page] [-jobs 2] [-list]
//
// A mistake is a few lines of the shipped source that read otherwise; testdata/*.txt has them, grouped by theme, and
// testdata/rules.txt the rules that they bend. Nothing of that is in the source itself: the go command compiles a changed
// copy in place of a file (go test -overlay), the scripts included, for they are embedded.
//
// With -with, all of them are tried against one run of tests, to see how much that notices by itself:
//
//	go run ./internal/mutants -with 'internal/adversary TestSchedulesOnMemory -short'
//
// With -scenarios, the library of the simulator is what has to show them, as far as a fault can: those in the themes of the
// lease protocol, up to the first scenario that does, virtual first and then, where the scripts are concerned, lua. An entry
// that none can show may say why, with a line of "unseen".
//
// A mistake counts as caught when every test that is named with it fails, with an assertion of its own; not when the
// changed source does not compile, a script does not load, no test ran, or a test fails without the mistake as well. Those
// are errors, and like a mistake that survives they make the program end with 1. The last line says "n/n caught".
package main
