package picture

import (
	"encoding/json"
	"math"
	"strconv"

	"github.com/tiered-limiter/tiered-limiter/sim/measure"
)

// run draws the charts of one report, and collects the values for the pointer.
type run struct {
	timeline
	*measure.Report
	hover hover
}

// hover is what the page's script reads: the values under the pointer, per chart.
type hover struct {
	Step   float64      `json:"step"` // seconds
	Steps  int          `json:"steps"`
	Charts []hoverChart `json:"charts"`
}

type hoverChart struct {
	ID   string     `json:"id"`
	Rows []string   `json:"rows,omitempty"` // names of the rows of a strip, from the top
	Data []hoverRow `json:"data"`
}

type hoverRow struct {
	Name   string  `json:"name"`
	Class  string  `json:"class"`
	Unit   string  `json:"unit"` // as the script's formats: rate, calls, time, tokens, count, plain
	Values numbers `json:"values"`
}

// numbers are values as JSON: what is not known is null, the rest has four digits.
type numbers []float64

// MarshalJSON implements [json.Marshaler].
func (n numbers) MarshalJSON() ([]byte, error) {
	b := []byte{'['}
	for i, v := range n {
		if i > 0 {
			b = append(b, ',')
		}
		switch {
		case !known(v):
			b = append(b, "null"...)
		case v >= 1000:
			b = strconv.AppendFloat(b, math.Round(v), 'f', -1, 64)
		default:
			v, _ = strconv.ParseFloat(strconv.FormatFloat(v, 'g', 4, 64), 64)
			b = strconv.AppendFloat(b, v, 'g', -1, 64)
		}
	}
	return append(b, ']'), nil
}

var _ json.Marshaler = numbers(nil)

// padded returns values for all steps. Those that the report lacks are unknown.
func (r *run) padded(values []float64) []float64 {
	all := make([]float64, r.steps)
	for i := range all {
		if all[i] = math.NaN(); i < len(values) && known(values[i]) {
			all[i] = values[i]
		}
	}
	return all
}

// counted is padded for whole numbers.
func (r *run) counted(values []int64) []float64 {
	list := make([]float64, len(values))
	for i, v := range values {
		list[i] = float64(v)
	}
	return r.padded(list)
}

// charts returns all charts over time that are not empty.
func (r *run) charts() (list []chart) {
	for _, draw := range []func() chart{r.rates, r.breakers, r.calls, r.decisions, r.ledger, r.unspent, r.fairness} {
		if c := draw(); len(c.Shapes) > 0 {
			c.spread()
			list = append(list, c)
		}
	}
	return list
}

// addHover adds values for the pointer.
func (r *run) addHover(id string, rows ...hoverRow) {
	r.hover.Charts = append(r.hover.Charts, hoverChart{ID: id, Data: rows})
}

// rates is the first chart: what was asked for, what was admitted, what should have been.
func (r *run) rates() chart {
	c := r.chart("rates", "Offered and admitted", "tokens per second", 260)
	c.Lanes = r.lanes
	offered, admitted, ideal := r.padded(r.Series.Offered), r.padded(r.Series.Admitted), r.padded(r.Series.Ideal)
	limit, alone := r.padded(r.Series.Limit), r.padded(r.Series.Alone)
	s := scaleOf(false, offered, admitted, ideal, limit)
	c.axis(s, short)
	if top(alone) > 0 {
		c.area("alone", "of it without Redis", alone, nil, s)
	}
	c.line("offered", "offered", offered, s)
	c.line("limit", "limit", limit, s)
	c.line("ideal", "ideal", ideal, s)
	c.line("admitted", "admitted", admitted, s)
	c.Say = "On average " + perSecond(mean(offered)) + " were offered and " + perSecond(mean(admitted)) +
		" admitted; one ideal limiter would have admitted " +
		perSecond(mean(ideal)) + "."
	if t := top(alone); t > 0 {
		c.Say += " At most " + perSecond(t) + " were admitted without Redis."
	}
	r.addHover(c.ID,
		hoverRow{"offered", "offered", "rate", offered}, hoverRow{"admitted", "admitted", "rate", admitted},
		hoverRow{"ideal", "ideal", "rate", ideal}, hoverRow{"limit", "limit", "rate", limit},
		hoverRow{"without Redis", "alone", "rate", alone})
	return c
}

// breakers is the strip of breakers.
func (r *run) breakers() chart {
	c, counts := r.strip(r.Breakers)
	most := top(counts[open])
	switch {
	case len(r.Breakers) == 0:
		return c
	case most == 0:
		c.Say = "No breaker opened."
	default:
		c.Say = "At most " + amount(most) + " of " +
			plural(min(len(r.Breakers), maxStrips), "breaker was open", "breakers were open") + " at one time."
	}
	if n := min(len(r.Breakers), maxStrips); r.Scenario != nil && n == maxStrips && r.Scenario.Fleet.N > n {
		c.Say += " " + amount(float64(n)) + " of all processes are shown."
	}
	r.addHover(c.ID, hoverRow{"open", "open", "count", counts[open]},
		hoverRow{"probing", "probing", "count", counts[probing]},
		hoverRow{"closed", "closed", "count", counts[closed]}, hoverRow{"no process", "gone", "count", counts[gone]})
	for _, b := range r.Breakers[:min(len(r.Breakers), maxStrips)] {
		r.hover.Charts[len(r.hover.Charts)-1].Rows = append(r.hover.Charts[len(r.hover.Charts)-1].Rows,
			clip(b.Process, 40))
	}
	return c
}

// calls is how busy Redis was.
func (r *run) calls() chart {
	c := r.chart("calls", "Redis calls", "per second", 120)
	calls := r.padded(r.Series.Calls)
	s := scaleOf(false, calls)
	c.axis(s, short)
	c.area("calls", "", calls, nil, s)
	c.line("calls", "calls", calls, s)
	c.Ends = nil
	c.Keys = nil // its title names the only line
	c.Say = "On average " + perSecond(mean(calls)) + ", at most " + perSecond(top(calls)) + "."
	r.addHover(c.ID, hoverRow{"calls", "calls", "calls", calls})
	return c
}

// decisions is the longest decision of each step.
func (r *run) decisions() chart {
	c := r.chart("decisions", "Longest decision", "time, logarithmic", 120)
	took := r.padded(r.Series.MaxUs)
	drawn := make([]float64, len(took))
	for i, v := range took {
		if drawn[i] = v; v < 1 {
			drawn[i] = 1 // and anything less: nobody waited
		}
	}
	s := scaleOf(true, drawn)
	c.axis(s, func(v float64) string { return length(v / 1e6) })
	c.area("decide", "", drawn, nil, s)
	c.line("decide", "longest", drawn, s)
	c.Ends, c.Keys = nil, nil
	c.Say = "At most " + length(top(took)/1e6) + ". A decision from a lease, which waits for nothing, is drawn as 1\u202fµs."
	r.addHover(c.ID, hoverRow{"longest", "decide", "time", took})
	return c
}

// ledgerLayer is a part of the ledger.
type ledgerLayer struct {
	class, name string
	values      []float64
}

// layers returns where the granted tokens are at the end of each step.
func (r *run) layers() []ledgerLayer {
	spent, returned, burnt, held := r.counted(r.Series.Spent), r.counted(r.Series.Returned),
		r.counted(r.Series.Burnt), r.counted(r.Series.Held)
	lost := r.counted(r.Series.Granted)
	for i := range lost {
		lost[i] = max(lost[i]-spent[i]-returned[i]-burnt[i]-held[i], 0) // NaN stays NaN
	}
	return []ledgerLayer{
		{"spent", "spent", spent},
		{"held", "held", held},
		{"returned", "returned", returned},
		{"burnt", "burnt", burnt},
		{"lost", "lost or under way", lost},
	}
}

// ledger is where all granted tokens went, as stacked areas.
func (r *run) ledger() chart {
	c := r.stack(r.chart("ledger", "Token ledger", "tokens granted so far", 180), r.layers())
	l := r.Ledger
	c.Say = "Of " + amount(float64(l.Granted)) + " tokens granted, at the end " + amount(float64(l.Spent)) +
		" were spent, " + amount(float64(l.Held)) + " held, " +
		amount(float64(l.Returned)) + " returned, " + amount(float64(l.Burnt)) + " burnt"
	if l.Lost >= 0 {
		c.Say += " and " + amount(float64(l.Lost)) + " lost"
	}
	c.Say += "."
	if len(c.Shapes) == 0 {
		return c
	}
	row := []hoverRow{{"granted", "granted", "tokens", r.counted(r.Series.Granted)}}
	for _, l := range r.layers() {
		row = append(row, hoverRow{l.name, l.class, "tokens", l.values})
	}
	r.addHover(c.ID, row...)
	return c
}

// unspent is the ledger without what was spent, which hides the rest.
func (r *run) unspent() chart {
	c := r.stack(r.chart("unspent", "Not spent", "tokens so far, enlarged", 120), r.layers()[1:])
	c.Say = "The same without what was spent."
	return c
}

// stack draws layers on each other. A step with an unknown layer is not drawn.
func (r *run) stack(c chart, layers []ledgerLayer) chart {
	sums := make([][]float64, len(layers)+1)
	sums[0] = make([]float64, r.steps)
	for i, l := range layers {
		sums[i+1] = make([]float64, r.steps)
		for j, v := range l.values {
			sums[i+1][j] = sums[i][j] + v
		}
	}
	all := sums[len(layers)]
	if !(top(all) > 0) {
		return c
	}
	s := scaleOf(false, all)
	c.axis(s, short)
	for i, l := range layers {
		if !(top(l.values) > 0) {
			continue
		}
		upper := make([]float64, r.steps)
		for j := range upper {
			upper[j] = sums[i+1][j]
			if math.IsNaN(all[j]) {
				upper[j] = math.NaN()
			}
		}
		c.area(l.class, l.name, upper, sums[i], s)
		c.Keys[len(c.Keys)-1].Beside = true
		c.Ends = append(c.Ends, mark{
			Y:    (1 - (s.at(last(sums[i]))+s.at(last(sums[i+1])))/2) * float64(c.Height),
			Text: l.name, Class: l.class,
		})
	}
	return c
}

// last is the last known value, or 0.
func last(values []float64) float64 {
	for i := len(values) - 1; i >= 0; i-- {
		if known(values[i]) {
			return values[i]
		}
	}
	return 0
}

// fairness is Jain's index over time.
func (r *run) fairness() chart {
	c := r.chart("fairness", "Fairness over the processes", "Jain’s index, 1 is even", 70)
	jain := r.padded(r.Series.Jain)
	s := scale{from: 0, to: 1}
	for _, v := range []float64{0, .5, 1} {
		c.Rows = append(c.Rows, mark{Y: (1 - v) * float64(c.Height), Text: short(v)})
	}
	c.area("fair", "", jain, nil, s)
	c.line("fair", "fairness", jain, s)
	c.Ends, c.Keys = nil, nil
	c.Say = "Each process got what its demand deserves, at worst to " + amount(bottom(jain)) + "."
	r.addHover(c.ID, hoverRow{"Jain’s index", "fair", "plain", jain})
	return c
}
