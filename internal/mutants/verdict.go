package main

import (
	"regexp"
	"strings"
)

// way is how a run of tests ended.
type way string

const (
	passes way = "pass"
	fails  way = "fail"  // an assertion
	panics way = "panic" // the mistake broke something that no test looked at
	hangs  way = "hang"
	races  way = "race" // the race detector found something, and no assertion failed
	absent way = "not run"
	breaks way = "broken" // what went wrong says nothing about the mistake
)

// verdict is what the output of a test binary says.
type verdict struct {
	way   way
	test  string // the first one that failed, as deep as its name goes
	after string // how much of a random test it took: "12 histories"
	why   string // of a run that says nothing: a line of the output
}

var (
	failed = regexp.MustCompile(`(?m)^ *--- FAIL: (\S+)`)
	passed = regexp.MustCompile(`(?m)^ *--- PASS: (\S+)`)
	skip   = regexp.MustCompile(`(?m)^ *--- SKIP: (\S+)`)

	// Random tests say how long they took to find something; tests is how rapid calls its own.
	after = regexp.MustCompile(`after ([0-9]+ (?:schedules?|histor(?:y|ies)|fleets?|states?|calls?|tests?))\b`)

	panicked = regexp.MustCompile(`(?m)^(?:panic: |fatal error: |.*\[rapid\] panic after ).*$`)
	timedOut = regexp.MustCompile(`(?m)^panic: test timed out after `)
	raced    = regexp.MustCompile(`WARNING: DATA RACE`)

	// unrelated are failures that say nothing about a mistake: a script that Redis cannot compile or that stumbles over
	// itself, a redis-server that is not there.
	unrelated = regexp.MustCompile(`(?m)^.*(?:does not load the script|Error compiling script|user_script:|redis-server (?:is not in PATH|does not|ended)|no free loopback port).*$`)

	raceOnly = "race detected during execution of test"
)

// judge reads the output of a test binary that was run without -test.v. killed says that it had to be ended.
func judge(out string, exit int, killed bool) verdict {
	v := verdict{way: passes}
	if m := after.FindStringSubmatch(out); m != nil {
		v.after = m[1]
	}
	v.test = deepest(out)
	switch {
	case unrelated.MatchString(out):
		v.way, v.why = breaks, strings.TrimSpace(unrelated.FindString(out))
	case killed || timedOut.MatchString(out):
		v.way = hangs
	case panicked.MatchString(out):
		v.way, v.why = panics, strings.TrimSpace(panicked.FindString(out))
	case exit == 0 && strings.Contains(out, "testing: warning: no tests to run"):
		v.way, v.why = absent, "no tests to run"
	case exit == 0:
	case v.test == "":
		v.way, v.why = breaks, "it ended with a failure, and no test failed: "+lastLine(out)
	case raced.MatchString(out) && !asserted(out):
		v.way = races
	default:
		v.way = fails
	}
	return v
}

// sound reads the output of a run with -test.v and without a mistake: every test must have run and passed.
func sound(out string, exit int, killed bool) verdict {
	v := judge(out, exit, killed)
	if v.way != passes {
		return v
	}
	if m := skip.FindStringSubmatch(out); m != nil {
		return verdict{way: absent, test: m[1], why: m[1] + " was skipped"}
	}
	if !passed.MatchString(out) {
		return verdict{way: absent, why: "no test passed"}
	}
	return v
}

// deepest is the first test that failed: a test is printed before its parts.
func deepest(out string) string {
	name := ""
	for _, m := range failed.FindAllStringSubmatch(out, -1) {
		if name != "" && !strings.HasPrefix(m[1], name+"/") {
			break
		}
		name = m[1]
	}
	return name
}

// logged is a line that a test wrote.
var logged = regexp.MustCompile(`(?m)^\s+\S+\.go:[0-9]+: (.*)$`)

// asserted reports whether a test said something besides that there was a race.
func asserted(out string) bool {
	for _, m := range logged.FindAllStringSubmatch(out, -1) {
		if m[1] != raceOnly {
			return true
		}
	}
	return false
}

func lastLine(out string) string {
	lines := strings.Split(strings.TrimSpace(out), "\n")
	return lines[len(lines)-1]
}
