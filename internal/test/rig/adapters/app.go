// Package adapters plays one table of behaviors on each web framework that has an adapter, and on
// net/http. The rows, and the reasons why a framework cannot do one, are here only. A framework's
// test says how to build its server.
package adapters

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/fatal"
	"github.com/tiered-limiter/tiered-limiter/tiered"
	"github.com/tiered-limiter/tiered-limiter/tiered/httplimit"
)

// Frameworks are the columns of the table.
var Frameworks = []string{"net/http", "gin", "echo", "fiber", "fasthttp"}

// App is what a framework serves at "/", and nowhere else: a middleware of the user for all
// requests, the limit inside it, and a handler.
type App struct {
	// Rules and Options are for httplimit.New. Without Rules the limit is nil.
	Rules   []httplimit.Rule
	Options *httplimit.Options
	// Key, if it is set, is the function that the framework makes the first rule's key of.
	Key func(Request) (string, error)

	// Before is what the user's middleware does before it calls the next one.
	Before func(Request)
	// After is told what that middleware sees afterwards. If a panic comes, the middleware ends it,
	// and answers 500.
	After func(Seen)

	Handler func(Request) error
}

// Limit returns the limit of the App. key makes a Key of a function of a request as the framework
// has it.
func (a App) Limit(t *testing.T, key func(func(Request) (string, error)) httplimit.Key) func(http.Handler) http.Handler {
	t.Helper()
	if len(a.Rules) == 0 {
		return nil
	}
	if a.Key != nil {
		a.Rules[0].Key = key(a.Key)
	}
	return fatal.Get(httplimit.New(a.Rules, a.Options))(t)
}

// CheckNilKey checks that the Key of a framework without a function is refused.
func CheckNilKey(t *testing.T, key httplimit.Key) {
	t.Helper()
	l := (&player{T: t}).limiter("api", tiered.PerHour(1))
	if _, err := httplimit.New([]httplimit.Rule{{Limiter: l, Key: key, Missing: httplimit.Refuse}}, nil); err == nil {
		t.Error("a Key without a function is accepted")
	}
}

// Request is a request in the words of a framework. Each method does what the framework's handlers
// usually do.
type Request interface {
	// Context is that of the request.
	Context() context.Context
	// With stores a value in what goes with the request, and Value finds it.
	With(key, value string)
	Value(key string) any
	// Answer writes an answer. If the body is empty, it sets the status only.
	Answer(status int, body string)
	// Stream writes a body of parts, each of which is flushed. write may run after the handler has
	// returned.
	Stream(write func(send func(part string)))
	// Hijack takes the connection over. use may run after the handler has returned.
	Hijack(use func(net.Conn))
}

// Key is the key of a value in a context, where a framework has no values of its own.
type Key string

// Seen is what a middleware outside of the limit sees when the next one has returned.
type Seen struct {
	Status  int
	Written bool // the framework knows that there is an answer
	Err     error
	Panic   any
}

// Serve starts a server of an App on ln. It returns the server's graceful shutdown, which waits for
// requests.
type Serve func(t *testing.T, app App, ln net.Listener) (stop func() error)

// Play plays the table on a framework.
func Play(t *testing.T, framework string, serve Serve) {
	for _, r := range Rows {
		t.Run(r.Name, func(t *testing.T) {
			if why := r.Cannot[framework]; why != "" {
				t.Skipf("not with %s, %s", framework, why)
			}
			r.play(&player{T: t, serve: serve})
		})
	}
}

// ServeHTTP serves a handler on ln. It returns the server's graceful shutdown.
func ServeHTTP(h http.Handler, ln net.Listener) (stop func() error) {
	s, done := &http.Server{Handler: h}, make(chan error, 1)
	go func() { done <- s.Serve(ln) }()
	return func() error {
		err := s.Shutdown(context.Background())
		if served := <-done; !errors.Is(served, http.ErrServerClosed) {
			err = errors.Join(err, served)
		}
		return err
	}
}

// Stream writes a body of parts, each of which is flushed.
func Stream(w http.ResponseWriter, write func(send func(part string))) {
	write(func(part string) {
		_, _ = io.WriteString(w, part)
		_ = http.NewResponseController(w).Flush()
	})
}

// Hijack takes the connection over.
func Hijack(w http.ResponseWriter, use func(net.Conn)) {
	c, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		panic(err)
	}
	use(c)
}

// Row is a behavior.
type Row struct {
	// Name says what holds.
	Name string
	// Cannot has the reason for each framework that cannot do this, as in "whose handlers return no
	// error".
	Cannot map[string]string

	play func(*player)
}

// Reasons why a framework cannot do something.
var (
	noErrors = map[string]string{"net/http": returnNone, "fasthttp": returnNone}
	noNil    = map[string]string{"net/http": "where a limit is a function, and none is nil"}
	notTold  = map[string]string{"fiber": untold, "fasthttp": untold}
)

const (
	returnNone = "whose handlers return no error"
	untold     = "which do not tell a handler that the client has gone"
)

// Rows are the table. docs/http.md says that all of it works, and lists what does not.
var Rows = []Row{
	{"An admitted request has the handler's answer, and the fields", nil, admitted},
	{"A refused request gets 429 and Retry-After, and runs no handler", nil, refused},
	{"A hidden rule refuses too, and the fields tell of the others", nil, hidden},
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
	{"A request has a place of `AtOnce` while its handler runs, also if that panics", nil, heldPlace},
}

// Markdown is the list of exceptions that docs/http.md shows: the rows that a framework cannot do,
// and why.
func Markdown() string {
	var b strings.Builder
	for _, r := range Rows {
		not := map[string][]string{} // frameworks by the reason
		for _, f := range Frameworks {
			if why := r.Cannot[f]; why != "" {
				not[why] = append(not[why], f)
			}
		}
		for _, why := range slices.Sorted(maps.Keys(not)) {
			fmt.Fprintf(&b, "- **%s**: not with %s, %s\n", r.Name, strings.Join(not[why], " and "), why)
		}
	}
	return b.String()
}
