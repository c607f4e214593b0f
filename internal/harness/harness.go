// Package harness runs limiters in processes of their own, on a real Redis: for tests, and for the live engine of the
// simulator. The processes share limits; the driver freezes them, kills them and cuts them off.
//
// A process is this program, started again: its first call must be [Child], or [Main] in a TestMain. It makes the requests of
// its [Job] and writes down every decision with the time that it took ([Record]), or it decides what the driver asks it.
package harness
