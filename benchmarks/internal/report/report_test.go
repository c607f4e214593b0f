package report

import (
	"strings"
	"testing"
)

// raw is a run of two rounds, as go test prints it.
const raw = `machine: linux/amd64, 2 CPUs
commit: 0123456789ab
go: go1.26.8
redis: 7.0.15
modules: golang.org/x/time v0.16.0
goos: linux
cpu: some processor
BenchmarkDecision/load=hot/limiter=ours/goroutines=1-2	100	50 ns/op	40 client-ns/op	0 B/op	0 allocs/op
BenchmarkDecision/load=hot/limiter=ours/goroutines=2-2	100	60 ns/op	45 client-ns/op	0 B/op	0 allocs/op
BenchmarkDecision/load=hot/limiter=ours/goroutines=16-2	100	60 ns/op	50 client-ns/op	0.000002 commands/op	0 B/op	0 allocs/op
BenchmarkDecision/load=hot/limiter=x-time-rate/goroutines=1-2	100	100 ns/op	100 client-ns/op	0 B/op	0 allocs/op
BenchmarkDecision/load=hot/limiter=x-time-rate/goroutines=2-2	100	120 ns/op	100 client-ns/op	0 B/op	0 allocs/op
BenchmarkDecision/load=hot/limiter=redis_rate/goroutines=16-2	100	40000 ns/op	15000 client-ns/op	1 commands/op	12000 server-ns/op	680 B/op	22 allocs/op
BenchmarkDecision/load=hot/limiter=vearne-batch-100/goroutines=16-2	100	600 ns/op	400 client-ns/op	0.09 refused/op	4 B/op	0 allocs/op
BenchmarkDecision/load=cold/limiter=ours/goroutines=16-2	100	20000 ns/op	9000 server-ns/op
BenchmarkDecision/load=cold/limiter=redis_rate/goroutines=16-2	100	30000 ns/op	12000 server-ns/op
PASS
BenchmarkDecision/load=hot/limiter=ours/goroutines=1-2	100	70 ns/op	40 client-ns/op	0 B/op	0 allocs/op
PASS
`

func read(t *testing.T, text string) *Results {
	t.Helper()
	r, err := Read(strings.NewReader(text), "raw")
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestMediansOfARun(t *testing.T) {
	r := read(t, raw)
	if x, ok := r.Median("hot", "ours", 1, wall); !ok || x < 59.9e-9 || x > 60.1e-9 {
		t.Errorf("the median of 50 and 70 ns is %v s, %t", x, ok)
	}
	if x, ok := r.Median("hot", "ours", 16, commands); !ok || x != 0.000002 {
		t.Errorf("0.000002 commands are %v, %t", x, ok)
	}
	if _, ok := r.Median("hot", "redis_rate", 1, wall); ok {
		t.Error("there is a median of nothing")
	}
}

func TestWhatIsNoRun(t *testing.T) {
	for name, text := range map[string]string{
		"nothing":       "PASS\n",
		"another":       "BenchmarkAllow-2	100	50 ns/op\n",
		"half a result": "BenchmarkDecision/load=hot/limiter=ours/goroutines=1-2	100	50\n",
	} {
		if _, err := Read(strings.NewReader(text), "raw"); err == nil {
			t.Errorf("%s is read without an error", name)
		}
	}
}

func TestTables(t *testing.T) {
	got := read(t, raw).Tables()
	for _, want := range []string{
		"Medians of a run on linux/amd64, 2 CPUs, some processor, go1.26.8, redis-server 7.0.15, commit 0123456789ab.\n",
		"\n### One hot key, never refused\n\n| limiter |",
		"\n| **ours** | 60 ns | 60 ns | 60 ns | 50 ns |  | 2.0·10⁻⁶ | 0 | 0 |  |\n",
		"\n| redis_rate |  |  | 40 µs | 15 µs | 12 µs | 1 |  |  |  |\n",
		"\n| vearne-batch-100 |  |  | 600 ns | 400 ns |  |  |  |  | 9 % |\n",
		"\n### 100 000 keys at random, each rarely: Redis decides\n",
		"\nModules: golang.org/x/time v0.16.0.\n",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in\n%s", want, got)
		}
	}
	if strings.Contains(got, "breaker") {
		t.Errorf("a table of nothing in\n%s", got)
	}
}

func TestClaims(t *testing.T) {
	got, err := read(t, raw).Claims()
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSuffix(got, "\n"), "\n")
	if len(lines) != 3 {
		t.Fatalf("%d lines:\n%s", len(lines), got)
	}
	for i, want := range [][]string{
		{"60 ns and 0 allocations", "0.60 times what", "two cores it is 0.50 times"},
		{"2.0·10⁻⁶ Redis commands", "needs 300 times the processor", "needs 8.00 times"},
		{"1.50 times as many decisions", "0.75 times as much processor"},
	} {
		for _, w := range want {
			if !strings.Contains(lines[i], w) {
				t.Errorf("no %q in %q", w, lines[i])
			}
		}
	}
	without := strings.ReplaceAll(raw, "redis_rate", "another")
	if _, err := read(t, without).Claims(); err == nil || !strings.Contains(err.Error(), "redis_rate under cold") {
		t.Errorf("claims about what was not measured: %v", err)
	}
}

func TestNumbers(t *testing.T) {
	for x, want := range map[float64]string{
		0: "0", 1: "1", 0.1234: "0.123", 22: "22", 672.4: "672", 2849.6: "2850", 0.00000077: "7.7·10⁻⁷", 0.001: "0.001", 12.345: "12.3",
	} {
		if got := number(x); got != want {
			t.Errorf("%v is written %q, not %q", x, got, want)
		}
	}
	for seconds, want := range map[float64]string{1e-9: "1 ns", 59.6e-9: "59.6 ns", 999.6e-9: "1 µs", 45e-6: "45 µs", 1.5e-3: "1.5 ms"} {
		if got := duration(seconds); got != want {
			t.Errorf("%v s is written %q, not %q", seconds, got, want)
		}
	}
}
