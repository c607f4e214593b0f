// Package adapters plays one table of behaviors on each web framework that has an adapter, and on net/http. The rows, and
// the reasons why a framework cannot do one, are here only. A framework's test says how to build its server.
package adapters

import (
	"context"
	"net"
	"net/http"
	"testing"

	"github.com/tiered-limiter/tiered-limiter/tiered"
	"github.com/tiered-limiter/tiered-limiter/tiered/httplimit"
)

// Frameworks are the columns of the table.
var Frameworks = []string{"net/http", "gin", "echo", "fiber", "fasthttp"}

// App is what a framework serves at "/", and nowhere else: a middleware of the user for all requests, the limit inside it,
// and a handler.
type App struct {
	// Rules and Options are for httplimit.New. Without Rules the limit is nil.
	Rules   []httplimit.Rule
	Options *httplimit.Options
	// Key, if it is set, is the function that the framework makes the first rule's key of.
	Key func(Request) (string, error)

	// Before is what the user's middleware does before it calls the next one.
	Before func(Request)
	// After is told what that middleware sees afterwards. If a panic comes, the middleware ends it, and answers 500.
	After func(Seen)

	Handler func(Request) error
}

// Limit returns the limit of the App. key makes a Key of a function of a request as the framework has it.
func (a App) Limit(t *testing.T, key func(func(Request) (string, error)) httplimit.Key) func(http.Handler) http.Handler {
	t.Helper()
	if len(a.Rules) == 0 {
		return nil
	}
	if a.Key != nil {
		a.Rules[0].Key = key(a.Key)
	}
	limit, err := httplimit.New(a.Rules, a.Options)
	if err != nil {
		t.Fatal(err)
	}
	return limit
}

// CheckNilKey checks that the Key of a framework without a function is refused.
func CheckNilKey(t *testing.T, key httplimit.Key) {
	t.Helper()
	l := (&player{T: t}).limiter("api", tiered.PerHour(1))
	if _, err := httplimit.New([]httplimit.Rule{{Limiter: l, Key: key, Missing: httplimit.Refuse}}, nil); err == nil {
		t.Error("a Key without a function is accepted")
	}
}

// Request is a request in the words of a framework. Each method does what the framework's handlers usually do.
type Request interface {
	// Context is that of the request.
	Context() context.Context
	// With stores a value in what goes with the request, and Value finds it.
	With(key, value string)
	Value(key string) any
	// Answer writes an answer. If the body is empty, it sets the status only.
	Answer(status int, body string)
	// Stream writes a body of parts, each of which is flushed. write may run after the handler has returned.
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

// Serve starts a server of an App on ln. It returns the server's graceful shutdown, which waits for requests.
type Serve func(t *testing.T, app App, ln net.Listener) (stop func() error)

// Play plays the table on a framework.
func Play(t *testing.T, framework string, serve Serve) {
	for _, r := range Rows {
		t.Run(r.Name, func(t *testing.T) {
			if why := r.Cannot[framework]; why != "" {
				t.Skipf("%s cannot: %s", framework, why)
			}
			r.play(&player{T: t, serve: serve})
		})
	}
}
