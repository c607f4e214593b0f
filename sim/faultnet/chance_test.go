package faultnet

import (
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"
)

// story writes and reads over a number of connections in turn, and tells what happened to each call. The far ends answer
// each Write of 8 bytes with as many.
func story(t *testing.T, seed uint64, f Faults, quiet int) (lines []string) {
	synctest.Test(t, func(t *testing.T) {
		n := New(seed)
		var conns []net.Conn
		for range 4 {
			near, far := net.Pipe()
			go func() { // until its connection is cut
				defer far.Close()
				buf := make([]byte, 8)
				for {
					if _, err := io.ReadFull(far, buf); err != nil {
						return
					}
					if _, err := far.Write(buf); err != nil {
						return
					}
				}
			}()
			conns = append(conns, n.Conn(near))
		}
		for round := range 40 {
			if round >= quiet {
				if err := n.Set(f); err != nil {
					t.Fatal(err)
				}
			}
			for i, c := range conns {
				start, buf := time.Now(), make([]byte, 8)
				_, err := c.Write([]byte("question"))
				if err == nil {
					_, err = io.ReadFull(c, buf)
				}
				if round >= 20 {
					lines = append(lines, fmt.Sprint(i, round, time.Since(start), string(buf), err))
				}
			}
		}
		n.Cut()
	})
	return lines
}

// The same seed and the same calls: the same faults, call by call. Another seed: others.
func TestSeed(t *testing.T) {
	for name, f := range map[string]Faults{
		"cut before": {CutBefore: 0.05}, "cut after": {CutAfter: 0.05}, "jitter": {Jitter: time.Second}, "corrupt": {Corrupt: 0.3},
		"all": {CutBefore: 0.01, CutAfter: 0.01, Jitter: time.Second, Corrupt: 0.3, Rate: 1000, Delay: ms},
	} {
		t.Run(name, func(t *testing.T) {
			first := story(t, 1, f, 0)
			if again := story(t, 1, f, 0); !slices.Equal(first, again) {
				t.Errorf("the same seed:\n%s\n\n%s", strings.Join(first, "\n"), strings.Join(again, "\n"))
			}
			if other := story(t, 2, f, 0); slices.Equal(first, other) {
				t.Error("another seed, and no difference")
			}
			// Chance is drawn for each call, so it does not matter since when there is a fault. But a connection that was
			// cut before is none, and what jitter has drawn is known to what came in only.
			if f.CutBefore+f.CutAfter == 0 && f.Jitter == 0 {
				if late := story(t, 1, f, 20); !slices.Equal(first, late) {
					t.Errorf("the same seed, with faults from the middle on:\n%s\n\n%s", strings.Join(first, "\n"), strings.Join(late, "\n"))
				}
			}
		})
	}
}

// Each probability is what it says, within what chance allows: four standard deviations.
func TestProbabilities(t *testing.T) {
	const p, calls = 0.1, 2000
	within := func(what string, n int64) {
		if d := math.Abs(float64(n) - p*calls); d > 4*math.Sqrt(calls*p*(1-p)) {
			t.Errorf("%s: %d of %d with probability %v", what, n, calls, p)
		}
	}
	synctest.Test(t, func(t *testing.T) {
		for what, f := range map[string]Faults{"cut before": {CutBefore: p}, "cut after": {CutAfter: p}, "corrupt": {Corrupt: p}} {
			n := New(7)
			if err := n.Set(f); err != nil {
				t.Fatal(err)
			}
			for range calls {
				near, far := net.Pipe()
				c := n.Conn(near)
				go func() {
					defer far.Close()
					_, _ = far.Read(make([]byte, 1))
					_, _ = far.Write([]byte("x"))
				}()
				if _, err := c.Write([]byte("x")); err == nil {
					_, _ = c.Read(make([]byte, 1))
				}
				_ = c.Close()
			}
			within(what, n.Counts().Cut()+n.Counts().Corrupted)
		}
	})
}

// trickle is a run of writes, reads and changes of the faults, all that only take time.
type trickle struct {
	faults   []Faults        // each for a while
	after    []time.Duration // the length of each while
	sizes    [2][]int        // of the writes each way
	pauses   [2][]time.Duration
	reads    [2]int        // size of a read each way
	patience time.Duration // of a call; it goes on after a timeout
	close    bool          // the writer closes behind its last write
}

var drawTrickle = rapid.Custom(func(t *rapid.T) trickle {
	some := func(of *rapid.Generator[time.Duration]) []time.Duration {
		return rapid.SliceOfN(of, 6, 6).Draw(t, "times")
	}
	upTo := func(d time.Duration) *rapid.Generator[time.Duration] {
		return rapid.Map(rapid.Int64Range(0, int64(d)), func(n int64) time.Duration { return time.Duration(n) })
	}
	faults := rapid.Custom(func(t *rapid.T) Faults {
		return Faults{
			Delay:  rapid.SampledFrom([]time.Duration{0, 0, ms, time.Second}).Draw(t, "delay"),
			Jitter: rapid.SampledFrom([]time.Duration{0, 0, ms, time.Minute}).Draw(t, "jitter"),
			Rate:   rapid.SampledFrom([]int{0, 0, 1, 1000, 1e6, math.MaxInt}).Draw(t, "rate"),
			HoldIn: rapid.IntRange(0, 3).Draw(t, "hold") == 0,
		}
	})
	sizes := rapid.SliceOfN(rapid.OneOf(rapid.IntRange(0, 40), rapid.IntRange(1000, 20_000)), 0, 6)
	return trickle{
		faults:   rapid.SliceOfN(faults, 6, 6).Draw(t, "faults"),
		after:    some(upTo(2 * time.Second)),
		sizes:    [2][]int{sizes.Draw(t, "out"), sizes.Draw(t, "in")},
		pauses:   [2][]time.Duration{some(upTo(time.Second)), some(upTo(time.Second))},
		reads:    [2]int{rapid.IntRange(1, 5000).Draw(t, "read"), rapid.IntRange(1, 5000).Draw(t, "read")},
		patience: rapid.SampledFrom([]time.Duration{0, ms, 300 * ms}).Draw(t, "patience"),
		close:    rapid.Bool().Draw(t, "close"),
	}
})

// What only takes time changes nothing: bytes arrive unchanged and in order, both ways, whatever the faults, their changes
// and the deadlines of the calls.
func TestBytesArrive(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		tr := drawTrickle.Draw(rt, "trickle")
		var problems []string
		synctest.Test(t, func(*testing.T) { problems = tr.run() })
		if len(problems) > 0 {
			rt.Fatal(strings.Join(problems, "\n"))
		}
	})
}

// run returns what went wrong.
func (tr *trickle) run() []string {
	n := New(1)
	near, far := net.Pipe()
	ends := [2]net.Conn{n.Conn(near), far}
	problems := make(chan string, 100)
	done := make(chan bool)
	var text [2][]byte
	for way := range ends {
		for i, size := range tr.sizes[way] {
			for j := range size {
				text[way] = append(text[way], byte(way+i*31+j*7+j>>8))
			}
		}
	}
	for way := range ends {
		go func() {
			defer func() { done <- true }()
			rest := text[way]
			for i, size := range tr.sizes[way] {
				time.Sleep(tr.pauses[way][i])
				for end := len(rest) - size; len(rest) > end; {
					tr.bound(ends[way].SetWriteDeadline)
					m, err := ends[way].Write(rest[:len(rest)-end])
					rest = rest[m:]
					if err != nil && !isTimeout(err) {
						problems <- fmt.Sprintf("write %d: %v", way, err)
						return
					}
				}
			}
			if tr.close && way == 0 && len(text[1]) == 0 {
				if err := ends[0].Close(); err != nil {
					problems <- err.Error()
				}
			}
		}()
		go func() {
			defer func() { done <- true }()
			var got []byte
			buf, from := make([]byte, tr.reads[way]), ends[1-way]
			for len(got) < len(text[way]) {
				tr.bound(from.SetReadDeadline)
				m, err := from.Read(buf)
				got = append(got, buf[:m]...)
				if err != nil && !isTimeout(err) {
					problems <- fmt.Sprintf("read %d: %v", way, err)
					return
				}
			}
			if string(got) != string(text[way]) {
				problems <- fmt.Sprintf("way %d: other bytes arrived", way)
			}
		}()
	}
	for i, f := range tr.faults {
		if err := n.Set(f); err != nil {
			problems <- err.Error()
		}
		time.Sleep(tr.after[i])
	}
	if err := n.Set(Faults{}); err != nil {
		problems <- err.Error()
	}
	for range 4 {
		<-done
	}
	n.Cut()
	_, _ = ends[0].Close(), far.Close()
	close(problems)
	var all []string
	for p := range problems {
		all = append(all, p)
	}
	return all
}

// bound sets a call's deadline.
func (tr *trickle) bound(set func(time.Time) error) {
	if tr.patience > 0 {
		_ = set(time.Now().Add(tr.patience)) // the call says what is wrong
	}
}

func isTimeout(err error) bool {
	e, ok := errors.AsType[net.Error](err)
	return ok && e.Timeout()
}

// FuzzSet: a Net takes what keeps the rules, and nothing else; what it refuses changes nothing, and is named.
func FuzzSet(f *testing.F) {
	f.Add(int64(0), int64(0), 0, 0.0, 0.0, 0.0)
	f.Add(int64(-1), int64(1), 1, 0.5, 1.0, 1.0)
	f.Add(int64(math.MinInt64), int64(math.MinInt64), math.MinInt, math.NaN(), math.Inf(1), math.Inf(-1))
	f.Add(int64(math.MaxInt64), int64(math.MaxInt64), math.MaxInt, -0.1, 1.0000001, math.Copysign(0, -1))
	f.Fuzz(func(t *testing.T, delay, jitter int64, rate int, before, after, corrupt float64) {
		faults := Faults{
			Delay: time.Duration(delay), Jitter: time.Duration(jitter), Rate: rate,
			CutBefore: before, CutAfter: after, Corrupt: corrupt,
		}
		var wrong []string
		probability := func(name string, p float64) {
			if math.IsNaN(p) || p < 0 || p > 1 {
				wrong = append(wrong, fmt.Sprintf("Faults.%s is %v: ", name, p))
			}
		}
		if delay < 0 {
			wrong = append(wrong, fmt.Sprintf("Faults.Delay is %v: ", faults.Delay))
		}
		if jitter < 0 {
			wrong = append(wrong, fmt.Sprintf("Faults.Jitter is %v: ", faults.Jitter))
		}
		if rate < 0 {
			wrong = append(wrong, fmt.Sprintf("Faults.Rate is %d: ", rate))
		}
		probability("CutBefore", before)
		probability("CutAfter", after)
		probability("Corrupt", corrupt)

		n := New(1)
		err := n.Set(faults)
		if len(wrong) == 0 {
			if err != nil || n.Faults() != faults {
				t.Fatalf("%+v: %v", faults, err)
			}
			// And whatever it is, it can be lived with.
			near, far := net.Pipe()
			c := n.Conn(near)
			_ = c.SetDeadline(time.Now().Add(-ms))
			_, _ = c.Write([]byte("x"))
			_, _ = c.Read(make([]byte, 1))
			n.Cut()
			_, _ = c.Close(), far.Close()
			return
		}
		if err == nil || n.Faults() != (Faults{}) {
			t.Fatalf("%+v: %v, now %+v", faults, err, n.Faults())
		}
		lines := strings.Split(err.Error(), "\n")
		if len(lines) != len(wrong) {
			t.Fatalf("%q, want %q", lines, wrong)
		}
		for i := range wrong {
			if !strings.Contains(lines[i], wrong[i]) || !strings.Contains(lines[i], ": must be ") {
				t.Errorf("%q, want %q", lines[i], wrong[i])
			}
		}
	})
}
