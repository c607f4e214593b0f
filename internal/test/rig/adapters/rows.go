package adapters

import (
	"fmt"
	"slices"
	"strings"
)

// Row is a behavior.
type Row struct {
	// Name says what holds.
	Name string
	// Cannot has the reason for each framework that cannot do this.
	Cannot map[string]string

	play func(*player)
}

// Reasons why a framework cannot do something.
var (
	noErrors = map[string]string{"net/http": returnNone, "fasthttp": returnNone}
	noNil    = map[string]string{"net/http": "a limit is a function there, and none is nil"}
	notTold  = map[string]string{"fiber": untold, "fasthttp": untold}
)

const (
	returnNone = "its handlers return no error"
	untold     = "it does not tell a handler that the client has gone"
)

// Rows are the table. docs/http.md shows it.
var Rows = []Row{
	{"An admitted request has the handler's answer, and the fields", nil, admitted},
	{"A refused request gets 429 and Retry-After, and runs no handler", nil, refused},
	{"A middleware outside sees the status of each answer, and that there is one", nil, statusOutside},
	{"A middleware outside gets the error that the handler returned", noErrors, errorOutside},
	{"What a middleware outside has stored reaches the handler", nil, stored},
	{"A handler that writes nothing is answered as without the limit", nil, writesNothing},
	{"Parts of a stream arrive one by one, the fields before them", nil, streamed},
	{"A handler can take the connection over", nil, hijacked},
	{"A panic passes through, and gives no tokens back", nil, panicked},
	{"A request that is under way when a shutdown begins is served", nil, shutDown},
	{"A client that has gone takes nothing", notTold, clientGone},
	{"A key may be what a middleware outside has stored, or an error that is the answer", nil, keyed},
	{"Without a limit nothing passes", noNil, unlimited},
	{"`Counts` sees the status that the client gets", nil, countsStatus},
	{"`Counts` sees the 404 of a path without a handler", nil, countsNotFound},
	{"If only failures count, guessing is limited", nil, guessing},
	{"`Counts` sees 101 for a connection that was taken over", nil, countsHijacked},
	{"`Denied` writes the refusal, or at least its status", nil, denied},
	{"`Refused` is told, with the context of the request", nil, refusedTold},
	{"`Skip` lets requests pass", nil, skipped},
	{"A request has the cost of `Cost`, or the one that `Settle` says later", nil, settled},
	{"Several rules take from all or from none", nil, severalRules},
}

// Markdown is the table as docs/http.md shows it. Each reason has a number.
func Markdown() string {
	var b strings.Builder
	fmt.Fprintf(&b, "| | %s |\n|%s\n", strings.Join(Frameworks, " | "), strings.Repeat("---|", 1+len(Frameworks)))
	var reasons []string
	for _, r := range Rows {
		fmt.Fprintf(&b, "| %s |", r.Name)
		for _, f := range Frameworks {
			why := r.Cannot[f]
			if why == "" {
				b.WriteString(" yes |")
				continue
			}
			if !slices.Contains(reasons, why) {
				reasons = append(reasons, why)
			}
			fmt.Fprintf(&b, " no (%d) |", 1+slices.Index(reasons, why))
		}
		b.WriteString("\n")
	}
	for i, why := range reasons {
		fmt.Fprintf(&b, "\n%d. No: %s.", i+1, why)
	}
	return b.String() + "\n"
}
