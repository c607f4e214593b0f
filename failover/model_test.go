package failover_test

import (
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/tiered-limiter/tiered-limiter/failover"
)

// model is the breaker as one would describe it, without gobreaker.
type model struct {
	state    failover.State
	row      int           // failures in a row that say something new
	failed   time.Duration // when the last one ended; -1 for never
	until    time.Duration // open so long
	opened   int           // times since it was closed
	round    int           // changes of the state so far; a result of an earlier round counts for nothing
	attempts []modelAttempt
}

type modelAttempt struct {
	real    *failover.Attempt
	round   int
	began   time.Duration
	expires time.Duration
	ended   bool
}

func (m *model) begin(now time.Duration) bool {
	switch {
	case m.state == failover.Closed:
	case m.state == failover.Open && now >= m.until:
		m.state = failover.Probing
		m.round++
	default:
		return false
	}
	return true
}

// openTime is how long it is open, if it opens now and u is drawn.
func (m *model) openTime(u float64) time.Duration {
	if m.opened >= 4 {
		return 500*ms + time.Duration(u*float64(500*ms))
	}
	about := []time.Duration{50 * ms, 100 * ms, 200 * ms, 400 * ms}[m.opened]
	return about*3/4 + time.Duration(u*float64(about/2))
}

func (m *model) end(now time.Duration, u float64, a *modelAttempt, letter byte) (drew bool) {
	if a.round != m.round {
		return false
	}
	good := letter == 's' || letter == 'k'
	switch {
	case letter == 'c':
		if m.state == failover.Probing {
			m.state = failover.Open
			m.round++
		}
	case letter == 'p' && m.state == failover.Probing:
		m.state = failover.Open
		m.round++
	case m.state == failover.Probing && good:
		m.state, m.row, m.opened = failover.Closed, 0, 0
		m.round++
	case good:
		m.row = 0
	case m.state == failover.Closed && letter != 'm' && m.failed >= 0 && a.began < m.failed && now < m.failed+50*ms:
	default:
		if m.state == failover.Closed && letter != 'm' {
			m.failed = now
		}
		m.row++
		if m.state == failover.Probing || letter == 'm' || m.row >= 3 {
			m.state, m.until, m.row = failover.Open, now+m.openTime(u), 0
			m.opened++
			m.round++
			return true
		}
	}
	return false
}

// TestModel walks at random beside the model: whatever ends however, at once, late or twice, and
// however long between.
func TestModel(t *testing.T) {
	changes := map[string]int{}
	rapid.Check(t, func(rt *rapid.T) {
		timeout := rapid.SampledFrom([]time.Duration{20 * ms, 50 * ms, 700 * ms, 3 * time.Second}).Draw(rt, "timeout")
		steps := rapid.SliceOfN(rapid.Uint16(), 400, 1000).Draw(rt, "steps")
		var problem string
		synctest.Test(t, func(t *testing.T) { problem = walk(timeout, steps, changes) })
		if problem != "" {
			rt.Fatal(problem)
		}
	})
	for _, change := range []string{"closed open", "open probing", "probing open", "probing closed"} {
		if changes[change] < 10 { // else the walks say nothing
			t.Errorf("%q happened %d times", change, changes[change])
		}
	}
}

// walk reports what differs, and counts the changes of the state.
func walk(timeout time.Duration, steps []uint16, changes map[string]int) string {
	m := model{failed: -1}
	open := func(draw int) float64 { return float64(draw*7%10) / 10 }
	drawn := 0
	g := failover.New(failover.Options{Timeout: timeout, Uniform: func() float64 { drawn++; return open(drawn) }})
	start := time.Now()
	draw := 0 // as the model counts
	end := func(a *modelAttempt, letter byte, now time.Duration) {
		if m.end(now, open(draw+1), a, letter) {
			draw++
		}
	}
	for _, step := range steps {
		kind, rest, before := step%8, int(step/8), g.State()
		switch {
		case kind < 3: // begin
			now := time.Since(start)
			a, ok := g.Begin(nil)
			if want := m.begin(now); ok != want {
				return "begin differs"
			}
			if ok {
				m.attempts = append(m.attempts, modelAttempt{real: a, round: m.round, began: now, expires: now + timeout})
			}
		case kind < 7: // end any of the last ones, also twice
			if len(m.attempts) == 0 {
				continue
			}
			a := &m.attempts[max(0, len(m.attempts)-1-rest%4)]
			letter := "skflpcmfff"[rest/4%10]
			if ok := a.real.End(outcomes[letter]); ok == a.ended {
				return "end differs"
			}
			if !a.ended {
				a.ended = true
				end(a, letter, time.Since(start))
			}
		default: // time passes
			wake := time.Since(start) + []time.Duration{ms, 19 * ms, 100 * ms, 499 * ms, time.Second, 24 * time.Hour}[rest%6]
			for i := range m.attempts { // they expire in the order in which they began
				if a := &m.attempts[i]; !a.ended && a.expires <= wake {
					a.ended = true
					end(a, 'f', a.expires)
				}
			}
			time.Sleep(wake - time.Since(start))
			synctest.Wait()
		}
		now := time.Since(start)
		if g.State() != before {
			changes[before.String()+" "+g.State().String()]++
		}
		if g.State() != m.state {
			return "state " + g.State().String() + ", want " + m.state.String()
		}
		if g.Ready() != (m.state == failover.Closed || m.state == failover.Open && now >= m.until) {
			return "ready differs"
		}
	}
	if drawn != draw {
		return "drew too often or too rarely"
	}
	return ""
}
