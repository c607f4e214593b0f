package sim

import (
	"errors"
	"testing"
	"testing/synctest"
)

// A request that nobody decides is told of, but not while a fault holds it up.
func TestUndecided(t *testing.T) {
	for _, c := range []struct {
		fault string
		asked int64
		want  bool
	}{{"", 0, false}, {"", 1, true}, {"faults: [{at: 3s, kind: pause}]\n", 1, false}} {
		p, err := prepare(parse(t, "name: u\nlimits: [{name: a, rate: 5/s}]\nfleet: {n: 1}\ntraffic: [{shape: poisson, rate: 5/s}]\nrun: 4s\n"+
			c.fault), nil)
		if err != nil {
			t.Fatal(err)
		}
		synctest.Test(t, func(*testing.T) {
			r := p.newRun()
			r.undecided.Add(c.asked)
			_, err = r.run()
		})
		if errors.Is(err, ErrUndecided) != c.want || err != nil && !c.want {
			t.Errorf("%q, %d more: %v", c.fault, c.asked, err)
		}
	}
}
