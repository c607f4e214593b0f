// Package fleet runs limiters in processes of their own, for tests that need real ones: a fleet shares limits through one
// Redis, its processes are frozen, killed or cut off, and each writes down every decision with the time it took.
//
// The processes are the test's own binary, started again: TestMain of a package that uses it must be [Main].
package fleet
