package tiered_test

import (
	"context"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"io/fs"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/watch"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// The fleet of the table "what your users see" in docs/runbook.md, and what is done to it.
const (
	opsProcesses = 4
	opsFrom      = 5 * time.Second
	opsTo        = 25 * time.Second
	opsLength    = 40 * time.Second
)

// Two users of one policy: one is calm, at half of the limit, the other one busy, at half more than
// the limit.
const (
	calm = iota
	busy
)

var (
	opsLimit  = tiered.PerSecond(100)
	opsDemand = [...]float64{calm: 0.5, busy: 1.5}
)

// opsFaults are the rows of the table, each with all that look the same to users. A fault is done
// to each process, again and again, with the time since it began; done is true when it is over.
var opsFaults = map[string][]func(s *afflicted, process int, since time.Duration, done bool){
	"Redis gone, refusing, full, silent or slower than a second; no free connection": {
		breaking(io.EOF), breaking(replied("WRONGPASS invalid")), breaking(replied("OOM command not allowed")),
		breaking(redis.ErrPoolTimeout),
		func(s *afflicted, _ int, _ time.Duration, done bool) { s.loseRequests.Store(!done) }, // frozen, or a black hole
		slowing(2 * second),
	},
	"slower than `Timeout`": {slowing(80 * ms)},
	"slower than `Budget`":  {slowing(30 * ms)},
	"up and down, a second each": {func(s *afflicted, process int, since time.Duration, done bool) {
		breaking(io.EOF)(s, process, since, done || since/time.Second%2 == 1)
	}},
	"half of the processes cut off": {func(s *afflicted, process int, since time.Duration, done bool) {
		breaking(io.EOF)(s, process, since, done || process%2 == 1)
	}},
	"its data lost, once": {func(s *afflicted, process int, since time.Duration, done bool) {
		if since == 0 && process == 0 && !done {
			for key := range opsDemand {
				s.Del(s.Key("api", strconv.Itoa(key)))
			}
		}
	}},
}

func breaking(err error) func(*afflicted, int, time.Duration, bool) {
	return func(s *afflicted, _ int, _ time.Duration, done bool) {
		if done {
			s.heal()
			return
		}
		s.cut(err)
	}
}

func slowing(d time.Duration) func(*afflicted, int, time.Duration, bool) {
	return func(s *afflicted, _ int, _ time.Duration, done bool) {
		s.delay.Store(int64(d))
		if done {
			s.delay.Store(0)
		}
	}
}

// opsSeen is a cell of the table: what users see.
type opsSeen struct {
	refused  float64 // of the calm user's requests during the fault, in %
	admitted float64 // of the busy user's, in times the limit
	over     float64 // of both, beyond the bound, in bursts, from first to last
}

// opsRun has a fault happen to a fleet.
func opsRun(t *testing.T, mode tiered.FailMode, fault func(*afflicted, int, time.Duration, bool)) (seen opsSeen,
	longest time.Duration,
) {
	t.Helper()
	var mu sync.Mutex
	var offers [len(opsDemand)][]offer
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		shared := newDistant(ms)
		var all sync.WaitGroup
		for i := range opsProcesses {
			store := &afflicted{distant: &distant{Memory: shared.Memory, trip: ms}}
			l := limiter(t, watch.Damaged{Store: store}, tiered.Policy{Limit: opsLimit, FailMode: mode},
				&tiered.Options{Random: dice(1, uint64(i))})
			all.Go(func() {
				time.Sleep(opsFrom)
				for at := time.Duration(0); at < opsTo-opsFrom; at += time.Second {
					fault(store, i, at, false)
					time.Sleep(time.Second)
				}
				fault(store, i, 0, true)
			})
			for key, demand := range opsDemand {
				random := rand.New(rand.NewPCG(uint64(key), uint64(100+i)))
				mean := nanosPerTokenOf(opsLimit) * opsProcesses / demand
				all.Go(func() {
					for {
						time.Sleep(time.Duration(random.ExpFloat64() * mean))
						at := time.Since(start)
						if at > opsLength {
							return
						}
						all.Go(func() {
							d := l.Allow(context.Background(), strconv.Itoa(key))
							o := offer{at: at, done: time.Since(start), cost: 1, allowed: d.Allowed}
							mu.Lock()
							defer mu.Unlock()
							offers[key] = append(offers[key], o)
						})
					}
				})
			}
		}
		all.Wait()
	})
	for key := range offers {
		slices.SortFunc(offers[key], func(a, b offer) int { return int(a.at - b.at) })
		seen.over = max(seen.over, worst(offers[key], opsLimit, 0, opsLength).Over/float64(burstOf(opsLimit)))
		for _, o := range offers[key] {
			longest = max(longest, o.done-o.at)
		}
	}
	n, of := denied(offers[calm], opsFrom, opsTo)
	seen.refused = 100 * float64(n) / float64(of)
	n, of = denied(offers[busy], opsFrom, opsTo)
	seen.admitted = float64(of-n) * nanosPerTokenOf(opsLimit) / float64(opsTo-opsFrom)
	return seen, longest
}

var opsCell = regexp.MustCompile(`^(\d+) %, ([0-9.]+) ×, (?:([0-9.]+)|any)$`)

// TestOperationsTableIsTrue reads the table "what your users see" out of docs/runbook.md, and has
// each of its faults happen in each fail mode.
func TestOperationsTableIsTrue(t *testing.T) {
	notUnderRace(t)
	page := must(os.ReadFile("../docs/runbook.md"))
	rows := 0
	for line := range strings.Lines(string(page)) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		faults := opsFaults[strings.TrimSpace(cells[0])]
		if len(faults) == 0 || len(cells) != 1+len(tiered.FailModes) {
			continue
		}
		rows++
		for m, cell := range cells[1:] {
			mode := tiered.FailMode(m)
			for i, fault := range faults {
				seen, longest := opsRun(t, mode, fault)
				text := fmt.Sprintf("%s %d, %v: %.1f %% of the calm user's requests refused, %.2f × the limit admitted to the busy one, %.2f bursts over, longest decision %v",
					strings.TrimSpace(cells[0]), i, mode, seen.refused, seen.admitted, seen.over, longest)
				t.Log(text)
				if longest > tiered.DefaultBudget {
					t.Errorf("%s: longer than Budget", text)
				}
				parts := opsCell.FindStringSubmatch(strings.TrimSpace(cell))
				if parts == nil {
					t.Errorf("%s: the page has %q, which is no cell of this table", text, cell)
					continue
				}
				says := opsSeen{number(t, parts[1]), number(t, parts[2]), math.Inf(1)}
				if parts[3] != "" {
					says.over = number(t, parts[3])
				}
				// What it says is rounded: up where it is a promise.
				if d := says.refused - seen.refused; d < -0.5 || d > 3 {
					t.Errorf("%s: the page says %v %%", text, says.refused)
				}
				if d := says.admitted - seen.admitted; math.Abs(d) > 0.1 {
					t.Errorf("%s: the page says %v ×", text, says.admitted)
				}
				if d := says.over - seen.over; d < -tolerance(opsLimit) || d > 0.75 && !math.IsInf(d, 1) {
					t.Errorf("%s: the page says %v", text, says.over)
				}
			}
		}
	}
	if rows != len(opsFaults) {
		t.Errorf("the page has %d of %d faults", rows, len(opsFaults))
	}
}

func number(t *testing.T, text string) float64 {
	t.Helper()
	x := must(strconv.ParseFloat(text, 64))
	return x
}

// opsFar is a row of the table of far regions: a Redis that is so many ms away, there and back.
var opsFar = regexp.MustCompile(`^\| (\d+) ms \| (\d+) ms \| ([0-9.]+) % \|$`)

// TestFleetIsAsFarAsTheTableSays makes the rows of that table in docs/deploying.md: ten processes
// share a limit of 1000 per second on one key.
func TestFleetIsAsFarAsTheTableSays(t *testing.T) {
	notUnderRace(t)
	page := must(os.ReadFile("../docs/deploying.md"))
	rows := 0
	for line := range strings.Lines(string(page)) {
		m := opsFar.FindStringSubmatch(strings.TrimSpace(line))
		if m == nil {
			continue
		}
		rows++
		far := time.Duration(number(t, m[1])) * ms
		f := fleetRun{
			processes: 10, known: 10, limit: tiered.PerSecond(1000), trip: far,
			patience: time.Duration(number(t, m[2])) * ms, length: 12 * time.Second, demand: 0.8, mode: tiered.FailClosed,
		}
		easy := f.measure(t, 1)
		f.demand = 1.5
		hard := f.measure(t, 1)
		refused := 100 * (1 - float64(easy.admitted)/float64(easy.offered))
		t.Logf("%v: at 0.8 %.3f %% waited and %.3f %% were refused; at 1.5 utilisation %.2f %%", far, easy.waited/1e4,
			refused, 100*hard.utilisation)
		for _, c := range []struct {
			what         string
			says, is, by float64
		}{
			{"waited", 0, easy.waited / 1e4, 0.15},
			{"refused", 0, refused, 0.3},
			{"utilisation", number(t, m[3]), 100 * hard.utilisation, 1},
		} {
			if math.Abs(c.says-c.is) > c.by {
				t.Errorf("%v away, %s: the page says %v %%, it is %.3f", far, c.what, c.says, c.is)
			}
		}
		if easy.over+hard.over > 0 {
			t.Errorf("%v away: over the bound by %v, %v", far, easy.worst, hard.worst)
		}
	}
	if rows < 3 {
		t.Errorf("the page has %d rows of far regions", rows)
	}
}

// Every line of the log, but for DEBUG, is in docs/runbook.md up to its colon, and every line that
// the page has is one of the log. What follows the colon says what to do: who reads the line has it.
func TestOperationsPageHasTheLines(t *testing.T) {
	page := must(os.ReadFile("../docs/runbook.md"))
	begins := map[string]bool{}
	for line := range linesOfTheLog(t) {
		begin, _, _ := strings.Cut(line, ": ")
		if begins[begin] {
			t.Errorf("two lines begin with %s", begin)
		}
		begins[begin] = true
	}
	var has []string
	for _, m := range regexp.MustCompile(`(?m)^(DEBUG|INFO|WARN|ERROR) (.+?)(?: \[.*\])?$`).FindAllStringSubmatch(string(page), -1) {
		has = append(has, m[1]+" "+m[2])
		if !begins[m[1]+" "+m[2]] {
			t.Errorf("nothing writes %s %s", m[1], m[2])
		}
	}
	for line := range begins {
		if !strings.HasPrefix(line, "DEBUG ") && !slices.Contains(has, line) {
			t.Errorf("the page does not have %s", line)
		}
	}
}

// linesOfTheLog returns each line, with its level: those that the sources have as text, and those
// of the table of faults, because a few texts are chosen at run time.
func linesOfTheLog(t *testing.T) map[string]bool {
	t.Helper()
	lines := map[string]bool{}
	for _, dir := range []string{"../tiered", "../internal", "../local", "../remote", "../failover"} {
		err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
			if err != nil {
				return err
			}
			for n := range ast.Preorder(file) {
				if call, ok := n.(*ast.CallExpr); ok {
					if level, text := writtenLine(call); text != "" {
						lines[level+" "+text] = true
					}
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if len(lines) < 25 {
		t.Errorf("the sources have only %d lines: the pattern is wrong", len(lines))
	}
	for _, c := range faultsTold {
		for _, line := range c.lines {
			lines[line] = true
		}
	}
	return lines
}

// writtenLine returns the line that a call writes to the log, if it says its text itself: a method of a
// [slog.Logger], a function that is given a level and a text, or one that knows the level.
func writtenLine(call *ast.CallExpr) (level, text string) {
	f, ok := call.Fun.(*ast.SelectorExpr)
	if !ok {
		return "", ""
	}
	of, _ := f.X.(*ast.SelectorExpr)
	switch name := f.Sel.Name; {
	case of != nil && of.Sel.Name == "Logger" && slices.Contains([]string{"Debug", "Info", "Warn", "Error"}, name):
		return strings.ToUpper(name), textOf(call.Args[0])
	case name == "stoodStill":
		return "WARN", textOf(call.Args[1])
	}
	for i, arg := range call.Args[:max(len(call.Args)-1, 0)] {
		if s, ok := arg.(*ast.SelectorExpr); ok && strings.HasPrefix(s.Sel.Name, "Level") {
			return strings.ToUpper(strings.TrimPrefix(s.Sel.Name, "Level")), textOf(call.Args[i+1])
		}
	}
	return "", ""
}

// textOf returns the value of a literal, or of some that are joined, and otherwise "".
func textOf(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.BasicLit:
		text, _ := strconv.Unquote(e.Value)
		return text
	case *ast.BinaryExpr:
		if x, y := textOf(e.X), textOf(e.Y); x != "" && y != "" {
			return x + y
		}
	}
	return ""
}
