package main

// The program, its handler without a listener, and what a request reserves: of the longest body the
// answers show nothing.
var (
	Run    = run
	Proxy  = proxy
	AtMost = atMost
)

const LongestBody = longestBody
