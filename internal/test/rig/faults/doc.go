// Package faults is the live fault suite: what Redis, the network, the machines and the callers can
// do to a fleet of six real processes, one row per fault, and what the limiter promises all the
// same. `make faults` runs all rows; the tests of this package run the quick ones.
package faults
