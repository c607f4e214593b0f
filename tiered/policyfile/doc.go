// Package policyfile reads policies from a file, YAML or JSON, and keeps a Group up to date with
// it.
//
//	version: 1
//	policies:
//	  - name: per-user
//	    limit: 100/s burst 200
//	    keys:
//	      ann: 1000/s
//	      mallory: blocked
//	    prefixes:
//	      internal-: unlimited
//	  - name: per-address
//	    limit: 1000/min
//	    fail_mode: open
//	http:
//	  - match: /api/
//	    limits:
//	      - {policy: per-user, key: header X-User, missing: exempt} # your gateway sets it
//	      - {policy: per-address, key: ip}
//
// [Parse] is strict: it reports all mistakes at once, each with its line and column. [Watch] loads
// a file, gives its policies to a Group, and does so again whenever the file changes. A file with a
// mistake changes nothing: the policies of before stay in force.
package policyfile
