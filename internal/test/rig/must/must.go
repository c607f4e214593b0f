// Package must ends a test at an error of what it needs, and is not about.
package must

// T is a test, also one of rapid.
type T interface {
	Helper()
	Fatal(args ...any)
}

// Get returns what a call returns, or ends the test at its error: l := must.Get(g.NewLimiter(p))(t).
func Get[V any](v V, err error) func(T) V {
	return func(t T) V {
		t.Helper()
		Do(t, err)
		return v
	}
}

// Do ends the test at an error.
func Do(t T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
