package faults_test

import (
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/tiered-limiter/tiered-limiter/internal/defaults"
	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/fleet"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// figures are what a row came to for one load.
type figures struct {
	longest, lag  time.Duration // of a decision; by which the machine overslept
	p99           time.Duration // of a decision while the breakers are open, or the fault lasts
	admitted      int
	most          float64    // that may be admitted in all
	over          [3]float64 // before, during and after the fault, tokens beyond the limit in the worst interval
	whole, within float64    // the same over all of the run, and what this fault may cost
	detect, heal  time.Duration
	complaints    []string
}

// complain says what is wrong.
func (f *figures) complain(format string, args ...any) {
	f.complaints = append(f.complaints, fmt.Sprintf(format, args...))
}

// late says what is wrong with a time, or with what depends on times. On a machine that stands
// still for longer than Timeout nothing does not.
func (s *faultRun) late(f *figures, format string, args ...any) {
	if s.lag <= defaults.Timeout {
		f.complain(format, args...)
	}
}

// The columns of the table.
var columns = []string{
	"fault", "load", "longest", "lag", "p99 broken", "admitted", "bound", "over before", "during", "after", "allowed", "detect", "heal", "",
}

// line is a row of the table.
func (f *figures) line(fault, load string) []string {
	ms := func(d time.Duration) string {
		if d < 0 {
			return "-"
		}
		return fmt.Sprintf("%.2f ms", float64(d)/1e6)
	}
	tokens := func(x float64) string {
		if math.IsInf(x, 1) {
			return "-"
		}
		return fmt.Sprintf("%.0f", max(0, math.Ceil(x)))
	}
	verdict := "ok"
	if len(f.complaints) > 0 {
		verdict = "MISS"
	}
	return []string{
		fault, load, ms(f.longest), ms(f.lag), ms(f.p99), fmt.Sprint(f.admitted), tokens(f.most),
		tokens(f.over[0]), tokens(f.over[1]), tokens(f.over[2]), tokens(f.within), ms(f.detect), ms(f.heal), verdict,
	}
}

// fallback are the reasons of a fail mode, byRedis those of a process that Redis answers.
var (
	fallback = map[tiered.FailMode][]tiered.Reason{
		tiered.FailLocal:  {tiered.Fallback, tiered.FallbackSpent},
		tiered.FailOpen:   {tiered.Open},
		tiered.FailClosed: {tiered.Unavailable},
	}
	byRedis  = []tiered.Reason{tiered.Granted, tiered.Limited}
	allowing = []tiered.Reason{tiered.Granted, tiered.Fallback, tiered.Open}
)

// judge holds the records of a load against what its mode promises under the fault.
func (s *faultRun) judge(j subject) *figures {
	all := s.fleet.Records(j.Name)
	f := &figures{detect: -1, heal: -1}
	s.judgeDecisions(f, j, len(all))
	s.judgeBreakers(f, j)
	s.judgeFault(f, j, all)
	s.judgeBound(f, j, all)
	s.judgeReturn(f, j, all)
	return f
}

// judgeDecisions: no decision is long, whatever happens, and each says what it did. What the
// machine itself adds is measured in each process: by how much it overslept.
func (s *faultRun) judgeDecisions(f *figures, j subject, requests int) {
	wrong, worst := 0, time.Duration(math.MinInt64)
	for _, p := range s.fleet {
		var longest time.Duration
		for _, r := range p.Records(j.Name) {
			longest = max(longest, time.Duration(r.After-r.Before))
			if r.Allowed != slices.Contains(allowing, r.Reason) {
				wrong++
			}
		}
		lag := s.reports[p].Lag
		if longest-lag > worst {
			worst, f.longest, f.lag = longest-lag, longest, lag
		}
	}
	if wrong > 0 {
		f.complain("%d decisions do not agree with their reasons", wrong)
	}
	if f.longest <= 0 {
		f.complain("no decision took any time: this shows nothing")
	}
	if most := defaults.Budget + 50*time.Millisecond + max(f.lag, s.lag); f.longest > most {
		s.late(f, "a decision took %v, want %v at most", f.longest, most)
	}
	if least := 0.8 * j.Offer * processes * float64(s.ended-s.started) / 1e9; float64(requests) < least-burst {
		s.late(f, "only %d requests: this shows little", requests)
	}
}

// judgeBreakers reads off when the breakers of the node opened and closed.
func (s *faultRun) judgeBreakers(f *figures, j subject) {
	opened := 0
	for _, r := range s.reports {
		first, healed := int64(0), int64(0) // it opened, and closed after the fault what was not closed at its end
		for _, e := range r.States {
			switch {
			case !j.concerns(e) || e.At < s.down:
			case e.To == "open" && first == 0 && e.At < s.back:
				first = e.At
			case e.To == "closed" && first > 0 && (healed == 0 || e.At < s.back):
				healed = e.At
			}
		}
		if first > 0 {
			opened++
			f.detect = max(f.detect, time.Duration(first-s.down))
			f.heal = max(f.heal, time.Duration(max(0, healed-s.back)))
			if healed == 0 && !s.gone {
				s.late(f, "a breaker never closed again")
			}
		}
	}
	switch {
	case j.breakers == stays && opened > 0:
		s.late(f, "%d breakers opened", opened)
	case j.breakers == opens && opened < len(s.reports)-j.unaffected:
		s.late(f, "only %d breakers of %d opened", opened, len(s.reports)-j.unaffected)
	case j.breakers == opens && f.detect > tripTime+s.lag:
		s.late(f, "the fault was noticed after %v", f.detect)
	}
	if f.heal > backTime+s.lag {
		s.late(f, "a breaker closed only %v after the end of the fault", f.heal)
	}
}

// judgeFault: while the fault lasts each decision is the mode's, and takes no time.
func (s *faultRun) judgeFault(f *figures, j subject, all []fleet.Record) {
	byMode := 0
	from := s.down
	if j.breakers == opens {
		from += int64(tripTime)
	}
	var took []int64
	refused, strange := 0, 0
	var first fleet.Record
	during := fleet.Within(all, from, s.up)
	for _, r := range during {
		took = append(took, r.After-r.Before)
		switch {
		case slices.Contains(fallback[j.FailMode], r.Reason):
			byMode++
		case r.Reason == tiered.Granted:
		case r.Reason == tiered.Limited && (j.breakers != opens || j.unaffected > 0):
		default:
			if strange == 0 {
				first = r
			}
			strange++
		}
		if !r.Allowed {
			refused++
		}
	}
	f.p99 = fleet.Quantile(took, 0.99)
	if strange > 0 {
		s.late(f, "%d of %d decisions are not the mode's, as %v %v after the fault", strange, len(during), first.Reason,
			time.Duration(first.Before-s.down).Round(time.Millisecond))
	}
	switch {
	case j.breakers == stays && float64(byMode) > s.strays(from, s.up)*float64(len(during)):
		s.late(f, "%d of %d decisions were made by the fail mode", byMode, len(during))
	case j.breakers == opens && byMode == 0:
		s.late(f, "no decision was made by the fail mode: this shows nothing")
	case j.breakers == opens && j.FailMode == tiered.FailOpen && refused > 0 && j.unaffected == 0:
		s.late(f, "%d were refused by fail-open", refused)
	}
	lag := s.usualLag()
	if s.prompt { // Redis is asked: a decision waits for two calls at most, and each is held up as busy says
		lag *= 6
	}
	if (j.breakers == opens || s.prompt) && f.p99 >= time.Millisecond+lag {
		s.late(f, "1 %% of decisions take %v or longer during the fault", f.p99)
	}
}

// judgeBound: how much was admitted, in which phase, and what the design says that this fault may
// cost.
func (s *faultRun) judgeBound(f *figures, j subject, all []fleet.Record) {
	for i, phase := range [][2]int64{{0, s.down}, {s.down, s.back}, {s.back, math.MaxInt64}} {
		f.over[i] = fleet.Judge(fleet.Within(all, phase[0], phase[1]), j.Limit).Over()
	}
	v := fleet.Judge(all, j.Limit)
	f.admitted, f.whole = v.Admitted, v.Over()
	f.within = float64(j.lost) * burst
	if s.more != nil {
		f.within += s.more(s, j.FailMode)
	}
	if j.breakers == stays {
		f.within += s.strayed(j, all)
	} else {
		switch {
		case j.FailMode == tiered.FailLocal && j.unaffected > 0:
			// The processes that are cut off spend their shares while Redis grants the others the
			// full rate.
			cut := processes - j.unaffected
			f.within += float64(cut) * (burst + j.perSecond()*time.Duration(s.back-s.down+int64(f.heal)).Seconds()) / processes
		case j.FailMode == tiered.FailLocal:
			// The shares add up to one more burst. Until the last process has noticed the fault or
			// its end, some fall back and some do not: up to the rate of those that do.
			f.within += burst + j.perSecond()*s.mixedTime(j).Seconds()
		case j.FailMode == tiered.FailOpen:
			f.within = math.Inf(1)
		}
	}
	f.most = burst + j.perSecond()*v.Length.Seconds() + max(f.within, 0)
	if f.whole > f.within {
		f.complain("over-admission %.1f, want %.0f at most: %v", f.whole, f.within, v.Worst)
	}

	var stats tiered.PolicyStats
	for _, r := range s.reports {
		p := r.Stats.Policies[j.Name]
		stats.Tokens.Open += p.Tokens.Open
		stats.Tokens.Fallback += p.Tokens.Fallback
	}
	var open, shared int64
	for _, r := range all {
		switch r.Reason {
		case tiered.Open:
			open++
		case tiered.Fallback:
			shared++
		}
	}
	if len(s.reports) == processes && (open != stats.Tokens.Open || shared != stats.Tokens.Fallback) {
		f.complain("%d admitted openly and %d by the shares, but Stats count %d and %d", open, shared, stats.Tokens.Open, stats.Tokens.Fallback)
	}
}

// perSecond is the rate of the subject's limit.
func (j subject) perSecond() float64 { return float64(j.Limit.Tokens) / j.Limit.Per.Seconds() }

// usualLag is the 99th percentile of what the machine adds while the fault lasts, where that is
// noteworthy.
func (s *faultRun) usualLag() time.Duration {
	var all []int64
	for p, r := range s.reports {
		for _, l := range r.Lags {
			if !slices.Contains(s.paused, p) && l.At >= s.down && l.At < s.back {
				all = append(all, l.Over)
			}
		}
	}
	if p99 := fleet.Quantile(all, 0.99); p99 > time.Millisecond {
		return p99
	}
	return 0
}

// strays is the part of the decisions between two times that may be made by the fail mode although
// Redis is well.
func (s *faultRun) strays(from, to int64) float64 {
	return max(0.001, min(s.held(time.Millisecond, from, to), 0.02), s.allow)
}

// held is the part of the decisions between two times that may have waited for longer than Budget
// because a process was held up for longer than least at once. Each of them may be one that began a
// Budget before.
func (s *faultRun) held(least time.Duration, from, to int64) float64 {
	var held time.Duration
	for p, r := range s.reports {
		for _, l := range r.Lags {
			if over := time.Duration(l.Over); over > least && !slices.Contains(s.paused, p) && l.At >= from && l.At < to {
				held += over + defaults.Budget
			}
		}
	}
	return float64(held) / float64(max(1, to-from)) / float64(max(1, len(s.reports)))
}

// strayed returns how many tokens a fail mode admitted while Redis answered, at most as many as
// strays allows.
func (s *faultRun) strayed(j subject, all []fleet.Record) float64 {
	admitted := 0
	for _, r := range all {
		if r.Allowed && slices.Contains(fallback[j.FailMode], r.Reason) {
			admitted++
		}
	}
	return min(float64(admitted), s.strays(s.started, s.ended)*float64(len(all)))
}

// concerns reports whether a breaker's change is of the subject's node.
func (j subject) concerns(e fleet.State) bool { return j.node == "" || e.Node == j.node }

// mixedTime is for how long some processes fell back while others did not: the time that each was
// open before the last one was, and after the first one closed for good, on average over the fleet.
func (s *faultRun) mixedTime(j subject) time.Duration {
	var opened, closed []int64
	for _, r := range s.reports {
		first, last := s.back, s.down
		for _, e := range r.States {
			if !j.concerns(e) || e.At < s.down {
				continue
			}
			if e.To == "open" {
				first = min(first, e.At)
			}
			if e.To == "closed" {
				last = max(last, e.At)
			}
		}
		opened, closed = append(opened, first), append(closed, last)
	}
	if len(opened) == 0 {
		return 0
	}
	var sum int64
	for i := range opened {
		sum += slices.Max(opened) - opened[i] + closed[i] - slices.Min(closed)
	}
	return time.Duration(sum / int64(len(opened)))
}

// judgeReturn: after the fault nobody falls back any more, and the limit is used.
func (s *faultRun) judgeReturn(f *figures, j subject, all []fleet.Record) {
	from := s.back + int64(backTime)
	if s.gone { // no breaker tells: the last decision that was made by the fail mode does
		for _, r := range fleet.Within(all, s.back, from) {
			if slices.Contains(fallback[j.FailMode], r.Reason) {
				f.heal = max(f.heal, time.Duration(r.Before-s.back))
			}
		}
	}
	again := fleet.Within(all, from, s.ended)
	strays, used := 0, 0
	for _, r := range again {
		if !slices.Contains(byRedis, r.Reason) {
			strays++
		}
		if r.Allowed {
			used++
		}
	}
	most, least := s.strays(from, s.ended), 0.95
	if s.lag > busy { // open breakers, each for half a second
		most, least = 0.25, 0.75
	}
	if float64(strays) > most*float64(len(again)) {
		s.late(f, "%d of %d decisions are made by the fail mode after the fault", strays, len(again))
	}
	part := float64(used) / (j.perSecond() * float64(s.ended-from) / 1e9)
	if part < least && j.Offer*float64(len(s.reports)) > j.perSecond() {
		s.late(f, "%.1f %% of the limit used after the fault", 100*part)
	}
}

// judgeTheJudge: where a fail mode decides, no load passes for one of another mode.
func (s *faultRun) judgeTheJudge(j subject) {
	if j.breakers != opens || s.lag > defaults.Timeout {
		return
	}
	for mode := tiered.FailLocal; mode <= tiered.FailClosed; mode++ {
		other := j
		if other.FailMode = mode; mode != j.FailMode && len(s.judge(other).complaints) == 0 {
			s.complain("%s passes for %v: this shows nothing", j.Name, mode)
		}
	}
}

// TestPromptDecisions: how long a decision may take while a fault holds none up. On a busy machine
// one that asks Redis waits for more hold-ups than one of an open breaker.
func TestPromptDecisions(t *testing.T) {
	for _, c := range []struct {
		prompt          bool
		lag, most, over time.Duration
	}{
		{true, 0, 999 * time.Microsecond, time.Millisecond},
		{true, 3 * time.Millisecond, 18 * time.Millisecond, 19 * time.Millisecond},
		{false, 3 * time.Millisecond, 3 * time.Millisecond, 4 * time.Millisecond},
	} {
		for _, took := range []time.Duration{c.most, c.over} {
			j := subject{breakers: opens, Load: fleet.Load{Policy: tiered.Policy{FailMode: tiered.FailClosed}}}
			s := &faultRun{row: row{prompt: c.prompt}, up: int64(time.Minute), back: int64(time.Minute)}
			s.reports = map[*fleet.Process]fleet.Report{{}: {Lags: []fleet.Lag{{At: 1, Over: int64(c.lag)}}}}
			at, f := int64(2*time.Second), &figures{}
			s.judgeFault(f, j, []fleet.Record{{Before: at, After: at + int64(took), Reason: tiered.Unavailable}})
			if (len(f.complaints) > 0) != (took == c.over) {
				t.Errorf("prompt %t, lag %v, a decision takes %v: %q", c.prompt, c.lag, took, f.complaints)
			}
		}
	}
}

// TestStrays: what a fail mode admitted although Redis answered is over the bound. It is excused up
// to a part of the decisions, if a process was held up for as long or the row says so.
func TestStrays(t *testing.T) {
	for _, c := range []struct {
		open  int
		lag   time.Duration
		allow float64
		wrong bool
	}{
		{open: 2, wrong: true},
		{open: 2, lag: time.Millisecond, wrong: true},
		{open: 2, lag: 2 * time.Millisecond},
		{open: 2, allow: 0.05},
		{open: 12, allow: 0.05, wrong: true},
		{open: 12, lag: time.Second, wrong: true},
	} {
		s := &faultRun{row: row{allow: c.allow}, ended: int64(time.Second)}
		s.reports = map[*fleet.Process]fleet.Report{{}: {Lags: []fleet.Lag{{At: 1, Over: int64(c.lag)}}}}
		all := slices.Repeat([]fleet.Record{{Allowed: true, Reason: tiered.Granted}}, burst)
		all = append(all, slices.Repeat([]fleet.Record{{Allowed: true, Reason: tiered.Open}}, c.open)...)
		f := &figures{}
		s.judgeBound(f, subject{Load: fleet.Load{Policy: tiered.Policy{FailMode: tiered.FailOpen, Limit: limit}}}, all)
		if (len(f.complaints) > 0) != c.wrong {
			t.Errorf("%+v: %q", c, f.complaints)
		}
	}
}
