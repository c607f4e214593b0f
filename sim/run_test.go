package sim

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tiered-limiter/tiered-limiter/sim/measure"
)

// A request that nobody decides is told of, but not while a fault holds it up.
func TestUndecided(t *testing.T) {
	for _, c := range []struct {
		fault string
		asked int64
		want  bool
	}{{"", 0, false}, {"", 1, true}, {"at 3s pause\n", 1, false}} {
		p, err := prepare(parse(t, "name \"u\"\nlimit a rate=5/s\nfleet n=1\ntraffic poisson rate=5/s\nrun 4s\n"+
			c.fault), nil)
		if err != nil {
			t.Fatal(err)
		}
		synctest.Test(t, func(*testing.T) {
			r := &run{plan: p, base: time.Now(), meter: measure.New(p.scenario)}
			r.fleet = &fleet{run: r}
			if r.engine, err = p.open(r); err == nil {
				r.undecided.Add(c.asked)
				_, err = r.run()
			}
		})
		if errors.Is(err, ErrUndecided) != c.want || err != nil && !c.want {
			t.Errorf("%q, %d more: %v", c.fault, c.asked, err)
		}
	}
}

// A real stream is late by what the machine holds it up: the last figures wait for it, or they would miss what it
// still makes.
func TestLastFigures(t *testing.T) {
	p, err := prepare(parse(t, "name \"late\"\nlimit a rate=1000/s\nfleet n=2\ntraffic poisson rate=500/s\nrun 4s\n"),
		nil)
	if err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(*testing.T) {
		r := &run{plan: p, base: time.Now(), meter: measure.New(p.scenario)}
		r.fleet = &fleet{run: r}
		if r.engine, err = p.open(r); err != nil {
			return
		}
		made, missed := 0, 0
		late := r.newStream(0)
		late.end += 50 * time.Millisecond
		late.keys = func() string {
			if made++; r.finished.Load() {
				missed++
			}
			return "key 0"
		}
		r.traffic.Go(late.open)
		if _, err = r.run(); made < 1800 || missed > 0 {
			t.Errorf("%d of %d requests were made after the last figures", missed, made)
		}
	})
	if err != nil {
		t.Error(err)
	}
}
