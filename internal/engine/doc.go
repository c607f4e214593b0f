// Package engine decides. A request is a list of parts, one for each key. The parts ask the sources of their keys' tokens in
// one order, which take.go lists, and each ends as an [Outcome] of four words. Package tiered makes the settings that the
// engine goes by, and makes a Decision of each outcome. The engine knows neither a Policy nor a Decision.
package engine
