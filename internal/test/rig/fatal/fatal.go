// Package fatal ends a test at an error of what it needs, and is not about.
package fatal

// T is a test, also one of rapid.
type T interface {
	Helper()
	Fatal(args ...any)
}

// Get returns what a call returns, or ends the test at its error:
// l := fatal.Get(g.NewLimiter(p))(t).
func Get[V any](v V, err error) func(T) V {
	return func(t T) V {
		t.Helper()
		If(t, err)
		return v
	}
}

// If ends the test at an error.
func If(t T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
