package benchmarks

import (
	"fmt"
	"testing"
)

// BenchmarkDecision is one decision of each contestant under each load. Its names are key=value, so
// that benchstat can put any of them in rows and columns: benchstat -row .name,/limiter -col
// /goroutines.
func BenchmarkDecision(b *testing.B) {
	for _, l := range Loads {
		b.Run("load="+l.Name, func(b *testing.B) {
			for _, c := range Contestants {
				if c.Plays(l, l.Goroutines[0]) {
					b.Run("limiter="+c.Name, func(b *testing.B) { decisions(b, start(b, c, l)) })
				}
			}
		})
	}
}

// decisions measures a subject with each number of goroutines.
func decisions(b *testing.B, s *Subject) {
	for _, goroutines := range s.Load.Goroutines {
		if !s.Contestant.Plays(s.Load, goroutines) {
			continue
		}
		b.Run(fmt.Sprintf("goroutines=%d", goroutines), func(b *testing.B) {
			b.ReportAllocs()
			done := begin(b, s.Server)
			b.ResetTimer()
			tally := s.Drive(goroutines, b.N)
			b.StopTimer()
			u := done(Usage{N: b.N, Goroutines: goroutines, Tally: tally, Wall: b.Elapsed()})
			s.Check(b, u)
			s.CheckKeys(b)
			b.ReportMetric(Per(u, u.Client), "client-ns/op")
			if s.Contestant.Refuses > 0 && !s.Load.Expect.Refused {
				b.ReportMetric(1-Per(u, u.Tally.With(Admitted)), "refused/op")
			}
			if s.Server != nil {
				b.ReportMetric(Per(u, u.Server), "server-ns/op")
				b.ReportMetric(Per(u, u.Commands), "commands/op")
			}
		})
	}
}
