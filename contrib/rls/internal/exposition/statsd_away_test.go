package exposition_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/tiered-limiter/tiered-limiter/contrib/rls/internal/exposition"
	"github.com/tiered-limiter/tiered-limiter/contrib/rls/statistics"
	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/fatal"
)

// away is a process that sends to a statsd that is away.
type away struct {
	s        *exposition.Statsd
	counters *statistics.Counters
	rules    []*statistics.Counts
	log      bytes.Buffer
	hits     int // of each rule
}

func newAway(address string, dog bool, names ...string) *away {
	a := &away{counters: statistics.New(&statistics.Options{Most: len(names)})}
	for _, name := range names {
		a.rules = append(a.rules, a.counters.Rule(name))
	}
	a.s = exposition.NewStatsd(a.counters, exposition.StatsdOptions{
		Address: address, Dog: dog, Every: time.Hour, Logger: slog.New(slog.NewTextHandler(&a.log, nil)),
	})
	return a
}

// hit counts a hit of each rule.
func (a *away) hit() {
	a.hits++
	for _, rule := range a.rules {
		a.counters.Add(rule, statistics.Hit{Hits: 1, Limit: 1 << 40, Left: 1 << 40})
	}
}

// send sends once, and tells of it what is new.
func (a *away) send() {
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	a.s.Run(ended)
}

// told returns the lines of the log.
func (a *away) told() []string { return strings.Split(strings.TrimSpace(a.log.String()), "\n") }

// add adds the values of lines to those of their names. The last line may be cut off: nobody counts
// it.
func add(t *testing.T, to map[string]int, from io.Reader) {
	all := string(fatal.Get(io.ReadAll(from))(t))
	for line := range strings.Lines(all[:strings.LastIndexByte(all, '\n')+1]) {
		name, rest, ok := strings.Cut(strings.TrimSpace(line), ":")
		value, err := strconv.Atoi(strings.TrimSuffix(rest, "|c"))
		if !ok || err != nil {
			t.Errorf("%.100q is sent", line)
		}
		to[name] += value
	}
}

// A statsd that is not there keeps no memory and no goroutine, and is told once. When it is back it
// gets all that was counted meanwhile. A name may be as long as they are.
func TestStatsdIsAway(t *testing.T) {
	for _, network := range []string{"tcp", "udp"} {
		t.Run(network, func(t *testing.T) {
			held := fatal.Get(net.Listen("tcp", "127.0.0.1:0"))(t) // a port that is free for both
			address := held.Addr().String()
			fatal.If(t, held.Close())
			names := []string{"shop.user", "shop.path", "shop.host"}
			if network == "tcp" {
				names = append(names, "shop."+strings.Repeat("x", 2000))
			}
			a := newAway(address, network == "udp", names...)
			heap := func() uint64 {
				runtime.GC()
				var m runtime.MemStats
				runtime.ReadMemStats(&m)
				return m.HeapAlloc
			}
			var before uint64
			for i := range 200 {
				a.hit()
				a.send()
				if i == 20 {
					before = heap()
				}
			}
			if after := heap(); after > before+1<<20 {
				t.Errorf("%d kB of memory, and then %d kB", before>>10, after>>10)
			}
			if told := a.told(); len(told) != 1 || !strings.Contains(told[0], "statistics cannot be sent") {
				t.Errorf("%q", told)
			}
			sums := map[string]int{}
			if network == "udp" {
				at := fatal.Get(net.ListenPacket("udp", address))(t)
				defer at.Close()
				a.send()
				_ = at.SetReadDeadline(time.Now().Add(time.Minute))
				for packet := make([]byte, 64<<10); len(sums) < 2*len(names); {
					n, _, err := at.ReadFrom(packet)
					fatal.If(t, err)
					add(t, sums, bytes.NewReader(packet[:n]))
				}
			} else {
				at := fatal.Get(net.Listen("tcp", address))(t)
				defer at.Close()
				done := make(chan struct{})
				go func() { defer close(done); a.send() }()
				add(t, sums, fatal.Get(at.Accept())(t))
				<-done
			}
			for name, n := range sums {
				if n != a.hits {
					t.Errorf("%.100s: %d hits are sent, want %d", name, n, a.hits)
				}
			}
			if told := a.told(); len(sums) != 2*len(names) || len(told) != 2 || !strings.Contains(told[1], "statistics are sent again") {
				t.Errorf("%d names, told %q", len(sums), told)
			}
		})
	}
}

// A statsd that takes connections and reads nothing holds up nobody who counts, and is told once.
// When it reads again it gets all that was counted.
func TestStatsdStandsStill(t *testing.T) {
	at := fatal.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	defer at.Close()
	var names []string
	for i := range 5000 { // 20 MB: more than the kernel keeps for who does not read
		names = append(names, fmt.Sprintf("shop.%d%s", i, strings.Repeat("x", 2000)))
	}
	a := newAway(at.Addr().String(), false, names...)
	var unread []net.Conn
	send := func() (done chan struct{}) {
		done = make(chan struct{})
		go func() { defer close(done); a.send() }()
		unread = append(unread, fatal.Get(at.Accept())(t))
		return done
	}
	const times = 2
	for range times {
		a.hit()
		done := send()
		a.hit()
		select {
		case <-done:
			t.Error("nobody reads, and sending has ended before others could count")
		default:
		}
		<-done
	}
	if told := a.told(); len(told) != 1 || !strings.Contains(told[0], "statistics cannot be sent") {
		t.Errorf("%q", told)
	}
	done, sums := send(), map[string]int{}
	for _, conn := range unread {
		add(t, sums, conn)
		_ = conn.Close()
	}
	<-done
	twice := 0
	for name, n := range sums {
		if n < a.hits {
			t.Errorf("%.20s: %d hits are sent, want %d", name, n, a.hits)
		}
		if n > a.hits {
			twice++
		}
	}
	if len(sums) != 2*len(names) || twice > 100*times {
		t.Errorf("%d names, %d of them with more hits than there were", len(sums), twice)
	}
	if told := a.told(); len(told) != 2 || !strings.Contains(told[1], "statistics are sent again") {
		t.Errorf("%q", told)
	}
}
