package bench_test

import (
	"bufio"
	"flag"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/tiered-limiter/tiered-limiter/contrib/rls/internal/envoytest"
	"github.com/tiered-limiter/tiered-limiter/internal/test/docpage"
	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/fatal"
	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/redistest"
)

var page = flag.String("page", "", "write the table of both services behind an Envoy into this `file`")

const throughEnvoy = `domain: shop
descriptors:
  - {key: many, rate_limit: {unit: year, requests_per_unit: 1000000000}}
  - {key: few, rate_limit: {unit: year, requests_per_unit: 1000}}
  - {key: tokens, rate_limit: {unit: year, requests_per_unit: 1000}}
`

// world is two Envoys, three replicas and a Redis.
type world struct {
	*service
	envoys []*envoytest.Envoy
}

// through starts a world with envoy/envoy.yaml as it is, but for the timeout of the filter and what
// change changes.
func (p program) through(t *testing.T, timeout string, change func(*envoytest.Config), env ...string) *world {
	t.Helper()
	p.env = append(slices.Clip(p.env), append([]string{"TIERED_PROCESSES=3"}, env...)...)
	w := &world{service: p.start(t, 3, throughEnvoy)}
	var replicas []string
	for _, r := range w.replicas {
		replicas = append(replicas, r.address)
	}
	for range 2 {
		c := envoytest.HandedOut(t, "", replicas...)
		c.AnswerItself(t, "127.0.0.1:"+strconv.Itoa(redistest.FreePort(t)))
		c.Filter["timeout"] = timeout
		c.Host["rate_limits"] = envoytest.Parsed(t, `
- actions: [{request_headers: {header_name: x-many, descriptor_key: many}}]
- actions: [{request_headers: {header_name: x-few, descriptor_key: few}}]
`)
		c.CountCosts(t)
		if change != nil {
			change(c)
		}
		w.envoys = append(w.envoys, envoytest.Start(t, c))
	}
	w.offer(t, 4, 200, 0, "x-many: warm") // connections
	time.Sleep(1100 * time.Millisecond)   // Envoy merges changes of its first second
	return w
}

// plain is a cluster of the service as Envoy's examples have it.
func plain(c *envoytest.Config) {
	for _, part := range []string{"outlier_detection", "health_checks", "common_lb_config"} {
		delete(c.Cluster, part)
	}
}

func (w *world) counts(t *testing.T) (sum envoytest.Counts) {
	t.Helper()
	for _, e := range w.envoys {
		sum = sum.Add(e.Counts(t))
	}
	return sum
}

// timeouts are calls that Envoy gave up, by its own counter.
func (w *world) timeouts(t *testing.T) (sum int) {
	t.Helper()
	for _, e := range w.envoys {
		sum += e.Stats(t, `^cluster\.tieredd\.upstream_rq_timeout$`)["cluster.tieredd.upstream_rq_timeout"]
	}
	return sum
}

// offered is what clients met.
type offered struct {
	asked, admitted int
	refusedEarly    int // before the last one that was admitted
	longest         time.Duration
	perSecond       float64
	envoytest.Counts
	timeouts int
}

// offer asks through both Envoys in a closed loop, by a number of clients each, until they have
// asked n times or for a time. In the header, # is the number of the request.
func (w *world) offer(t *testing.T, clients, n int, length time.Duration, header string) offered {
	t.Helper()
	return w.offerSlowly(t, clients, n, length, 0, header)
}

// offerSlowly is offer with a pause after each request.
func (w *world) offerSlowly(t *testing.T, clients, n int, length, pause time.Duration, header string) offered {
	t.Helper()
	before, timeouts := w.counts(t), w.timeouts(t)
	var next atomic.Int64
	results := make([]offered, clients*len(w.envoys))
	var all sync.WaitGroup
	begin := time.Now()
	for i := range results {
		all.Go(func() {
			r := &results[i]
			c, err := net.Dial("tcp", w.envoys[i%len(w.envoys)].Address)
			if err != nil {
				t.Error(err)
				return
			}
			defer c.Close()
			answers, refused := bufio.NewReader(c), 0
			for length == 0 || time.Since(begin) < length {
				number := next.Add(1)
				if n > 0 && number > int64(n) {
					break
				}
				path := "/"
				if strings.HasPrefix(header, "x-user") {
					path = "/cost"
				}
				sent := time.Now()
				status, err := askOnce(c, answers, path, strings.ReplaceAll(header, "#", strconv.FormatInt(number, 10)))
				if err != nil {
					t.Error(err)
					return
				}
				r.longest = max(r.longest, time.Since(sent))
				r.asked++
				switch status {
				case "200":
					r.admitted++
					r.refusedEarly = refused
				case "429":
					refused++
				default:
					t.Errorf("the status is %s", status)
				}
				time.Sleep(pause)
			}
		})
	}
	all.Wait()
	sum := offered{perSecond: 1 / time.Since(begin).Seconds()}
	for _, r := range results {
		sum.asked += r.asked
		sum.admitted += r.admitted
		sum.refusedEarly += r.refusedEarly
		sum.longest = max(sum.longest, r.longest)
	}
	sum.perSecond *= float64(sum.asked)
	sum.Counts, sum.timeouts = w.counts(t).Sub(before), w.timeouts(t)-timeouts
	return sum
}

// askOnce sends a request on a connection and reads the answer. It costs little, because it shares
// the machine.
func askOnce(c net.Conn, answers *bufio.Reader, path, header string) (status string, err error) {
	_ = c.SetDeadline(time.Now().Add(time.Minute))
	if _, err := fmt.Fprintf(c, "GET %s HTTP/1.1\r\nHost: shop\r\n%s\r\n\r\n", path, header); err != nil {
		return "", err
	}
	length := 0
	for {
		line, err := answers.ReadSlice('\n')
		if err != nil {
			return "", err
		}
		text := strings.TrimSpace(string(line))
		if text == "" {
			break
		}
		if status == "" && len(text) >= 12 {
			status = text[9:12]
		}
		if n, ok := strings.CutPrefix(strings.ToLower(text), "content-length:"); ok {
			length, _ = strconv.Atoi(strings.TrimSpace(n))
		}
	}
	_, err = answers.Discard(length)
	return status, err
}

const many = "x-many: key#" // each request asks about a key of its own

// row is a line of the table.
type row struct {
	name string
	play func(t *testing.T, p program, ours bool) string
}

// rows are what an operator asks before he changes over. What ours promises is demanded.
var rows = []row{
	{"requests per second, one busy key", func(t *testing.T, p program, _ bool) string {
		return fmt.Sprintf("%.0f", p.through(t, "0.1s", nil).offer(t, 8, 0, 4*time.Second, "x-many: busy").perSecond)
	}},
	{"requests per second, a key each", func(t *testing.T, p program, _ bool) string {
		return fmt.Sprintf("%.0f", p.through(t, "0.1s", nil).offer(t, 8, 0, 4*time.Second, many).perSecond)
	}},
	{"1000 a year, 3000 asked at once: admitted", func(t *testing.T, p program, ours bool) string {
		w := p.through(t, "1s", nil)
		n := w.offer(t, 8, 3000, 0, "x-few: a").admitted
		time.Sleep(2 * time.Second)
		all := n + w.offer(t, 8, 300, 0, "x-few: a").admitted
		if ours && all != 1000 {
			t.Errorf("%d are admitted of 1000", all)
		}
		return fmt.Sprintf("%d, two seconds later %d", n, all)
	}},
	{"the same by one client, 300 a second: admitted; refused before the last of them", func(t *testing.T, p program, ours bool) string {
		w := p.through(t, "1s", nil)
		w.envoys = w.envoys[:1]
		all, refused, early := 0, 0, 0
		for range 1300 {
			if w.offer(t, 1, 1, 0, "x-few: a").admitted == 1 {
				all, early = all+1, refused
			} else {
				refused++
			}
			time.Sleep(3 * time.Millisecond)
		}
		if ours && all != 1000 {
			t.Errorf("%d are admitted of 1000", all)
		}
		return fmt.Sprintf("%d; %d", all, early)
	}},
	{"costs after the answer, of 1000: the first answer that is refused, if each costs 150, or 5000", func(t *testing.T, p program, _ bool) string {
		w := p.through(t, "1s", nil)
		first := func(cost int) (n int) {
			for n = 1; n < 20; n++ {
				if w.offer(t, 1, 1, 0, fmt.Sprintf("x-user: by%d\r\nx-costs: %[1]d", cost)).admitted == 0 {
					return n
				}
				time.Sleep(150 * time.Millisecond) // Redis hears of a cost within 50 ms
			}
			return n
		}
		w.envoys = w.envoys[:1]
		return fmt.Sprintf("number %d; number %d", first(150), first(5000))
	}},
	{"Redis is frozen for 2 s: failed calls; the longest request", func(t *testing.T, p program, ours bool) string {
		return fails(t, p, ours, (*redistest.Server).Pause, (*redistest.Server).Resume)
	}},
	{"Redis is killed for 2 s: failed calls; the longest request", func(t *testing.T, p program, ours bool) string {
		return fails(t, p, ours, (*redistest.Server).Kill, (*redistest.Server).Restart)
	}},
	{"100 of 1000 are used, Redis is frozen for good, 3000 asked: admitted in all", func(t *testing.T, p program, ours bool) string {
		w := p.through(t, "0.1s", nil)
		n := w.offer(t, 1, 100, 0, "x-few: a").admitted
		time.Sleep(time.Second)
		w.redis.Pause()
		defer w.redis.Resume()
		n += w.offer(t, 8, 3000, 0, "x-few: a").admitted
		if ours && n > 1000 {
			t.Errorf("%d are admitted of 1000", n)
		}
		return strconv.Itoa(n)
	}},
	{"Redis' primary dies, and Sentinel has another: failed calls; admitted of 1000, half of them before", func(t *testing.T, p program, ours bool) string {
		sentinel := redistest.StartSentinel(t)
		w := p.through(t, "0.1s", nil, "REDIS_TYPE=SENTINEL", "REDIS_URL="+sentinel.Name+","+sentinel.Sentinel.Addr)
		n := w.offer(t, 1, 500, 0, "x-few: a").admitted
		time.Sleep(time.Second)
		sentinel.Primary.Kill()
		failed := w.offer(t, 2, 0, 6*time.Second, many).Failed
		o := w.offer(t, 8, 3000, 0, "x-few: a")
		n += o.admitted
		time.Sleep(2 * time.Second)
		n += w.offer(t, 8, 300, 0, "x-few: a").admitted
		if ours && (failed+o.Failed > 0 || n > 1000) {
			t.Errorf("%d calls failed, and %d are admitted of 1000", failed+o.Failed, n)
		}
		return fmt.Sprintf("%d; %d", failed+o.Failed, n)
	}},
	replicas("a replica is killed for 2 s", 2*time.Second, syscall.SIGKILL),
	replicas("a replica is frozen for 2 s", 2*time.Second, syscall.SIGSTOP),
	replicas("a replica gets SIGTERM, and is back 6 s later", 6*time.Second, syscall.SIGTERM),
	inTime("20 ms, Envoy's default", 20*time.Millisecond),
	inTime("10 ms", 10*time.Millisecond),
	inTime("5 ms", 5*time.Millisecond),
}

// fails plays an outage of Redis, with a key for each request.
func fails(t *testing.T, p program, ours bool, begin, end func(*redistest.Server)) string {
	t.Helper()
	w := p.through(t, "0.1s", nil)
	begin(w.redis)
	o := w.offer(t, 8, 0, 2*time.Second, many)
	end(w.redis)
	if ours && o.Failed > 0 {
		t.Errorf("%d of %d calls failed", o.Failed, o.asked)
	}
	return fmt.Sprintf("%d of %d; %d ms", o.Failed, o.asked, o.longest.Milliseconds())
}

// replicas plays that one of three replicas is gone, with a cluster as Envoy's examples have it,
// and with that of envoy.yaml. What is not decided passes.
func replicas(name string, away time.Duration, signal syscall.Signal) row {
	return row{name + ": requests that pass, with a cluster of the examples; with that of envoy.yaml", func(t *testing.T, p program, ours bool) string {
		var all []string
		for _, change := range []func(*envoytest.Config){plain, nil} {
			w := p.through(t, "0.1s", change)
			gone := w.service.replicas[0]
			_ = gone.Process.Signal(signal)
			o := w.offer(t, 8, 0, away, "x-many: busy")
			if signal == syscall.SIGSTOP {
				_ = gone.Process.Signal(syscall.SIGCONT)
			}
			all = append(all, fmt.Sprintf("%d of %d", o.Failed, o.asked))
			if ours && change == nil && o.Failed > 30 {
				t.Errorf("%d of %d calls failed", o.Failed, o.asked)
			}
		}
		return strings.Join(all, "; ")
	}}
}

// waited returns how long the threads of a process have waited for a processor, by the kernel's
// count.
func waited(t *testing.T, pid int) (sum time.Duration) {
	t.Helper()
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid))
	if err != nil || threads == nil {
		t.Fatalf("no threads of %d: %v", pid, err)
	}
	for _, path := range threads {
		text, _ := os.ReadFile(path) // the thread may have ended
		if fields := strings.Fields(string(text)); len(fields) == 3 {
			n, _ := strconv.ParseInt(fields[1], 10, 64)
			sum += time.Duration(n)
		}
	}
	return sum
}

// inTime counts the calls that Envoy gives up while Redis is frozen, with a short timeout of
// Envoy's filter. Each request has a key of its own. A round counts only if no process on the way
// has waited for a processor for longer, in all, than the time that the service leaves for the way:
// otherwise the machine was too busy for any service.
func inTime(name string, timeout time.Duration) row {
	return row{"Redis is frozen, and Envoy waits for " + name + ": calls that it gives up", func(t *testing.T, p program, ours bool) string {
		w := p.through(t, fmt.Sprintf("%.3fs", timeout.Seconds()), nil)
		pids := []int{os.Getpid()}
		for _, e := range w.envoys {
			pids = append(pids, e.Process.Pid)
		}
		for _, r := range w.replicas {
			pids = append(pids, r.Process.Pid)
		}
		calls, late, counted, busyCalls, busyLate := 0, 0, 0, 0, 0
		for i := 0; i < 16 && counted < 8; i++ {
			time.Sleep(1200 * time.Millisecond) // all breakers are closed again
			w.offer(t, 1, 20, 0, fmt.Sprintf("x-many: ready%d-#", i))
			w.redis.Pause()
			before := map[int]time.Duration{}
			for _, pid := range pids {
				before[pid] = waited(t, pid)
			}
			o := w.offerSlowly(t, 1, 0, 100*time.Millisecond, time.Millisecond, fmt.Sprintf("x-many: round%d-#", i))
			longest := time.Duration(0)
			for _, pid := range pids {
				longest = max(longest, waited(t, pid)-before[pid])
			}
			w.redis.Resume()
			if longest > timeout/2 {
				busyCalls, busyLate = busyCalls+o.asked, busyLate+o.timeouts
				continue
			}
			counted, calls, late = counted+1, calls+o.asked, late+o.timeouts
		}
		if ours && late > 0 {
			t.Errorf("%d of %d calls are given up, though the machine was not busy", late, calls)
		}
		var all []string
		if counted > 0 {
			all = append(all, fmt.Sprintf("%d of %d", late, calls))
		}
		if busyCalls > 0 {
			all = append(all, fmt.Sprintf("%d of %d while processors were short", busyLate, busyCalls))
		}
		return strings.Join(all, "; ")
	}}
}

// TestThroughEnvoy prints a table of both services behind two real Envoys.
func TestThroughEnvoy(t *testing.T) {
	if os.Getenv("TIERED_TEST_RLS_BENCH") == "" {
		t.Skip("takes six minutes, and builds envoyproxy/ratelimit: make rls-bench, or TIERED_TEST_RLS_BENCH=1")
	}
	envoytest.Program(t)
	ours, theirs := build(t)
	table := [][]string{{"", ours.name, theirs.name}}
	for _, r := range rows {
		line := []string{r.name}
		for _, p := range []program{ours, theirs} {
			t.Run(r.name+": "+p.name, func(t *testing.T) {
				is := r.play(t, p, p.name == ours.name)
				line = append(line, is)
				fmt.Printf("%s: %s: %s\n", r.name, p.name, is)
			})
		}
		table = append(table, line)
	}
	fmt.Println(docpage.Table(table))
	if *page != "" && !t.Failed() {
		fatal.If(t, docpage.Write(*page, "through-envoy", docpage.Table(table)))
	}
}
