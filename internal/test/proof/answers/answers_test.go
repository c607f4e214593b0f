package answers_test

import (
	"flag"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/tiered-limiter/tiered-limiter/internal/test/proof"
	"github.com/tiered-limiter/tiered-limiter/internal/test/proof/answers"
)

var (
	sequences = flag.Int("sequences", 5000, "random sequences")
	from      = flag.Uint64("from", 1, "the seed of the first one")
	judge     = flag.String("judge", "^(retry|early|leased|share|peek|outage|each|range|stats|shadow|late|close|charge|fallback)$", "a regular expression: the judges that judge")
	patience  = flag.Duration("patience", 20*time.Second, "how long a sequence may take")
	all       = flag.Bool("all", false, "go on after a fault, and count how many sequences each judge blames")
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// play plays a sequence in a bubble of its own.
func play(t *testing.T, s answers.Sequence, judges func(string) bool) (f *answers.Fault) {
	var code answers.Transcript
	played := make(chan struct{})
	go func() {
		for range patience.Milliseconds() { // in which this process runs: a busy machine takes longer
			select {
			case <-played:
				return
			case <-time.After(time.Millisecond):
			}
		}
		panic(fmt.Sprintf("it hangs: %s", code.Test()))
	}()
	defer close(played)
	synctest.Test(t, func(*testing.T) { f = s.Play(judges, &code) })
	return f
}

func TestAnswers(t *testing.T) {
	count := *sequences
	if testing.Short() {
		count /= 20
	}
	judges := regexp.MustCompile(*judge).MatchString
	faults := make([]*answers.Fault, count)
	begin := time.Now()
	n := proof.First(t, count, *all, func(t *testing.T, n int) bool {
		faults[n] = play(t, answers.Draw(*from+uint64(n)), judges)
		return faults[n] != nil
	})
	if *all {
		seeds := map[string][]uint64{}
		for n, f := range faults {
			if f != nil {
				seeds[f.Judge] = append(seeds[f.Judge], *from+uint64(n))
			}
		}
		for judge, list := range seeds {
			t.Errorf("%s: %d of %d sequences: %v", judge, len(list), count, list[:min(len(list), 20)])
		}
		return
	}
	if n == count {
		t.Logf("%d sequences, no fault, %v", count, time.Since(begin).Round(time.Millisecond))
		return
	}
	s, f := answers.Draw(*from+uint64(n)), faults[n]
	broken := func(s answers.Sequence) bool {
		return play(t, s, func(judge string) bool { return judge == f.Judge }) != nil
	}
	s = s.Shrink(broken)
	if g := play(t, s, func(judge string) bool { return judge == f.Judge }); g != nil {
		f = g
	}
	t.Errorf("seed %d: %s: %s\n%s", *from+uint64(n), f.Judge, f.Text, f.Code)
}

// What is printed is Go: Test formats it.
func TestCode(t *testing.T) {
	for seed := range uint64(200) {
		var code answers.Transcript
		synctest.Test(t, func(*testing.T) { answers.Draw(seed).Play(func(string) bool { return false }, &code) })
		if !strings.Contains(code.Test(), "d = p[") {
			t.Errorf("seed %d: nothing is asked", seed)
		}
	}
}
