package main

// Run is the program without its signals, in the test's process.
var Run = run
