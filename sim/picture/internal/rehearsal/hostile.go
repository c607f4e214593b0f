package rehearsal

import (
	"fmt"
	"strings"

	"github.com/tiered-limiter/tiered-limiter/sim/measure"
	"github.com/tiered-limiter/tiered-limiter/sim/scenario"
)

// Attacks are texts that would do something if a page took them for more than text. Each of them, when it can, puts an
// element with the attribute data-owned into the page, or sets a global of that name.
var Attacks = []string{
	`<script data-owned>owned = 1</script>`, `"><img data-owned src=x onerror="owned=1">`, `'"--></style></script><b data-owned>`,
	`</title><svg data-owned onload=owned=1>`, `javascript:owned=1`, `{{.Replay}} ${owned=1} <!--`, "\u2028\u2029\x00\x1b[31m\ufeff\u202egnihton",
	"\xff\xfe not UTF-8 <i data-owned>", `]]><x xmlns="http://www.w3.org/1999/xhtml" data-owned>`, strings.Repeat("very long ", 400), "",
	strings.Repeat("<&\"'+", 20_000), strings.Repeat("W", 5000),
}

// Hostile puts an attack into every text of a report, another one into each. It returns the same report.
func Hostile(r *measure.Report) *measure.Report {
	next := attacker()
	r.Engine, r.Unseed, r.Version = next(), next(), next()
	hostileScenario(r.Scenario, next)
	for _, list := range [][]measure.Phase{r.Phases} {
		for i := range list {
			list[i].Name = next()
		}
	}
	for i := range r.Expectations {
		r.Expectations[i].Text = next()
	}
	for i := range r.Sometimes {
		r.Sometimes[i].Name = next()
	}
	for i := range r.Faults {
		r.Faults[i].Text = next()
	}
	for i := range r.Breakers {
		r.Breakers[i].Process = next()
	}
	limits := map[string]measure.Metrics{}
	for range Attacks {
		limits[next()] = r.Metrics
	}
	r.Limits = limits
	return r
}

// HostileSweep does the same for a sweep.
func HostileSweep(s *measure.Sweep) *measure.Sweep {
	next := attacker()
	s.Engine, s.Version, s.Advice = next(), next(), next()
	for i := range s.Axes {
		a := &s.Axes[i]
		path := next() + fmt.Sprint(i)
		for j, v := range a.Values {
			attack := next() + fmt.Sprint(j)
			for k := range s.Cells {
				if values := s.Cells[k].Values; values[a.Path] == v {
					delete(values, a.Path)
					values[path] = attack
				}
			}
			if s.Advised[a.Path] == v {
				delete(s.Advised, a.Path)
				s.Advised[path] = attack
			}
			a.Values[j] = attack
		}
		a.Path = path
	}
	hostileScenario(s.Scenario, next)
	return s
}

func hostileScenario(s *scenario.Scenario, next func() string) {
	s.Name, s.Learn, s.Fleet.Mode, s.Limits[0].Name, s.Traffic[0].Limit, s.Faults[0].Error = next(), next(), next(), next(), next(), next()
}

func attacker() func() string {
	i := -1
	return func() string {
		i++
		return Attacks[i%len(Attacks)]
	}
}
