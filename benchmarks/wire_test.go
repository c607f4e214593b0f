package benchmarks

import (
	"strconv"
	"strings"
	"testing"
)

func TestRequestsAreCounted(t *testing.T) {
	request := func(args ...string) string {
		var b strings.Builder
		b.WriteString("*" + strconv.Itoa(len(args)) + "\r\n")
		for _, a := range args {
			b.WriteString("$" + strconv.Itoa(len(a)) + "\r\n" + a + "\r\n")
		}
		return b.String()
	}
	// Data that looks like requests, and none at all.
	text := request("PING") + request("EVALSHA", "*1\r\n$4\r\nPING\r\n", "") + request("SET", "k",
		strings.Repeat("x", 300))
	for _, piece := range []int{1, 2, 3, 7, 50, len(text)} {
		var p requestParser
		var got int64
		for rest := text; rest != ""; {
			n := min(piece, len(rest))
			got += p.count([]byte(rest[:n]))
			rest = rest[n:]
		}
		if got != 3 {
			t.Errorf("in pieces of %d bytes, 3 requests are %d", piece, got)
		}
	}
}

// The meter and the server count alike, where no script calls anything.
func TestMeterAgreesWithRedis(t *testing.T) {
	s := StartServer(t)
	c := s.peerClient(t)
	ctx := t.Context()
	increments := func() {
		pipe := c.Pipeline()
		for range 100 {
			pipe.Incr(ctx, "n")
		}
		if _, err := pipe.Exec(ctx); err != nil {
			t.Fatal(err)
		}
	}
	increments() // and what a client says when it connects
	if err := s.operator.ConfigResetStat(ctx).Err(); err != nil {
		t.Fatal(err)
	}
	first := s.Meter.commands.Load()
	increments()
	if got, want := s.Meter.commands.Load()-first, s.Calls(s.operator, "incr"); got != want || want != 100 {
		t.Errorf("the meter counts %d, Redis %d, and they were 100", got, want)
	}
}
