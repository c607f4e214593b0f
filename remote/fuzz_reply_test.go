package remote_test

import (
	"bytes"
	"context"
	"io"
	"math"
	"net"
	"os"
	"regexp"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/tiered-limiter/tiered-limiter/lua"
	"github.com/tiered-limiter/tiered-limiter/remote"
)

// FuzzReplyBytes puts a server of the worst kind at the other end of the wire: broken, hostile, or
// none of Redis at all. Whatever bytes it sends, through go-redis' decoder and ours,
//   - nothing panics, and nothing is read without a deadline that lies within the call's timeout;
//   - what is accepted makes sense as an answer to the call: above all, no grant of more than was
//     asked for;
//   - a reply that does make sense is accepted as it stands.
//
// The server answers the two calls of a pipeline with first, and with second what comes after: the
// calls that it claimed not to know the script of. Its bytes come in pieces; at their end it hangs
// up, or is silent.
func FuzzReplyBytes(f *testing.F) {
	const good, later = "*10\r\n:0\r\n:3\r\n:7\r\n:0\r\n:1\r\n:0\r\n:1763640000123456\r\n:1763640000123400\r\n:1\r\n:1099511627776\r\n",
		"*10\r\n:0\r\n:2\r\n:-5\r\n:-1\r\n:1\r\n:1000000\r\n:1763640000123456\r\n:1763640000123400\r\n:15\r\n:4503599627370496\r\n"
	reply := func(numbers ...int64) string {
		s := "*" + strconv.Itoa(len(numbers)) + "\r\n"
		for _, n := range numbers {
			s += ":" + strconv.FormatInt(n, 10) + "\r\n"
		}
		return s
	}
	for _, first := range []string{
		good + later,
		good, good[:40], "", "\r\n", "*", "HTTP/1.1 400 Bad Request\r\n\r\n",

		// Numbers that no bucket can answer: to a call for 3 of 10 tokens, and to one for 5 with a
		// lease.
		reply(0, 4, 0, 0, 0, 0, 0, 0, 0, 0) + later, reply(0, math.MaxInt64, 0, 0, 0, 0, 0, 0, 0, 0) + later,
		reply(0, -1, 0, 0, 0, 0, 0, 0, 0, 0) + later, reply(1, 3, 0, 0, 0, 0, 0, 0, 0, 0) + later,
		reply(3, 1, 0, 0, 0, 0, 0, 0, 0, 0) + later, reply(0, 3, 11, 0, 0, 0, 0, 0, 0, 0) + later,
		reply(0, 3, math.MinInt64, 0, 0, 0, 0, 0, 0, 0) + later, reply(1, 0, 0, -2, 0, 0, 0, 0, 0, 0) + later,
		reply(1, 0, 0, math.MaxInt64, 0, 0, 0, 0, 0, 0) + later, reply(0, 3, 7, 0, -1, 0, 0, 0, 0, 0) + later,
		good + reply(0, 5, 7, 0, 1, 1_000_001, 0, 0, 0, 0), good + reply(0, 5, 7, 0, 1, -1, 0, 0, 0, 0),
		reply(0, 3, 7, 0, 0, 0, -1, 0, 0, 0) + later, reply(0, 3, 7, 0, 0, 0, 1<<53, 0, 0, 0) + later,
		reply(0, 3, 7, 0, 0, 0, 0, math.MaxInt64, 0, 0) + later, reply(0, 3, 7, 0, 0, 0, 0, 0, -1, 0) + later,
		reply(0, 3, 7, 0, 0, 0, 0, 0, 0, 1<<53) + later, reply(6, 0, 0, 0, 0, 0, 0, 0, 0, 0) + later,
		reply(0, 3, 7, 0, 0, 0, 0, 0, 0) + later, reply(0, 3, 7, 0, 0, 0, 0, 0, 0, 0, 0) + later,

		// Whole numbers, but not as numbers; and every other type that there is.
		"*10\r\n:0\r\n$1\r\n3\r\n:7\r\n:0\r\n:1\r\n:0\r\n:1\r\n:1\r\n:1\r\n:1\r\n" + later,
		"*10\r\n:0\r\n,3\r\n:7\r\n:0\r\n:1\r\n:0\r\n:1\r\n:1\r\n:1\r\n:1\r\n" + later,
		"*10\r\n:0\r\n(3\r\n:7\r\n:0\r\n:1\r\n:0\r\n:1\r\n:1\r\n:1\r\n:1\r\n" + later,
		"*10\r\n:0\r\n:99999999999999999999\r\n:7\r\n:0\r\n:1\r\n:0\r\n:1\r\n:1\r\n:1\r\n:1\r\n" + later,
		"*10\r\n:0\r\n*1\r\n:3\r\n_\r\n#t\r\n,nan\r\n=7\r\ntxt:abc\r\n%1\r\n+a\r\n~0\r\n-ERR x\r\n!5\r\nERR y\r\n" +
			later,
		"~10\r\n" + good[5:] + "+OK\r\n", "%5\r\n" + good[5:] + ":5\r\n", "%1\r\n*0\r\n:1\r\n" + later,
		"%1\r\n_\r\n" + later,
		"|1\r\n+ttl\r\n:9\r\n" + good + later, ">2\r\n+invalidate\r\n*0\r\n" + good + later, ">0\r\n" + good + later,
		"_\r\n$-1\r\n", "*-1\r\n*-2\r\n", "*1\r\n*1\r\n*1\r\n*1\r\n:1\r\n" + later, "$5\r\nabc", "*0\r\n" + later,

		// Errors, with and without effect on where the calls go.
		"-ERR Error running script (call to f_1): @user_script:84: RLARG argument 3\r\n-WRONGTYPE x\r\n",
		"-NOSCRIPT No matching script.\r\n-NOSCRIPT No matching script.\r\n", good + "-NOSCRIPT no\r\n",
		"-WRONGPASS no\r\n", "-NOAUTH no\r\n+OK\r\n",
		"-MOVED 3999 127.0.0.1:6381\r\n-ASK 3999 127.0.0.1:6381\r\n", "-LOADING x\r\n-MOVED\r\n", "-\r\n",

		// Lengths beyond all memory.
		"*9223372036854775807\r\n", "$9223372036854775807\r\n", "$1000000000000000000\r\n", "~1000000000000000000\r\n",
		"%9223372036854775807\r\n" + good, ">1000000000000000000\r\n", "|9223372036854775807\r\n" + good,
	} {
		f.Add([]byte(first), []byte(good+later), uint8(hangsUp))
		f.Add([]byte(first), []byte(reply(1, 0, -1, 5, 0, 0, 9, 0, 1, 0)+"-NOSCRIPT again\r\n"),
			uint8(newestProtocol+7*inPieces))
		f.Add([]byte(first), []byte(good+later), uint8(rude))
	}
	for _, first := range []string{
		reply(2, 1, 0), reply(-1, 1, 0), reply(math.MaxInt64, 1, 0), reply(1, -1, 0), reply(1, 1<<53, 0), reply(1, 2),
		reply(1, 2, -1), reply(1, 2, 3, 4),
		"+OK\r\n", "*-1\r\n",
		"-NOSCRIPT no\r\n", "-ERR x\r\n", "%1\r\n:1\r\n:2\r\n", "*9223372036854775807\r\n",
	} {
		f.Add([]byte(first), []byte(reply(3, 9, 1)), uint8(forCensus))
		f.Add([]byte(first), []byte(reply(3, 9, 1, 2, 1, 0)), uint8(forCensus+hangsUp))
	}
	for _, first := range []string{reply(3, 9, 1, 2, 1, -1), reply(3, 9, 1, 1<<53, 1, 1), reply(3, 9, 1, 2, 1)} {
		f.Add([]byte(first), []byte(reply(3, 9, 1, 2, 1, 0)), uint8(forCensus+hangsUp))
	}
	const granted = 1 << 19
	for _, second := range []string{
		reply(0, granted, 5, 2, 0, 9), reply(3, 0, 5, 0, 0, 9), reply(4, 0, 5, 0, 4, 9), // and some that cannot be
		reply(0, lua.Pool+1, 5, 2, 0, 9), reply(0, 4, 5, 2, 4, 9), reply(0, -1, 5, 2, 0, 9), reply(0, granted, 5, 0, 0, 9),
		reply(3, 1, 5, 0, 0, 9), reply(4, 1, 5, 0, 0, 9), reply(1, 0, 5, 1, 0, 9), reply(0, 1, 1<<53, 1, 0, 9),
		reply(0, 1, 5, 1, 8, 9), reply(0, 1, 5, 1, 0, -1), reply(0, 1, 5, 1, 0), "-NOSCRIPT no\r\n", "-ERR x\r\n",
	} {
		f.Add([]byte(reply(3, 9, 1)+second), []byte(reply(0, granted, 5, 2, 0, 9)), uint8(forCensus+newestProtocol))
	}
	f.Fuzz(func(t *testing.T, first, second []byte, how uint8) {
		if announces.Match(first) || announces.Match(second) {
			t.Skip("go-redis would allocate it")
		}
		server := &madServer{
			t: t, answers: [][]byte{first, second}, hangup: how&hangsUp != 0,
			piece: int(how / inPieces),
		}
		s := server.store(how)
		if how&forCensus != 0 {
			me := remote.Process{ID: "l", TTL: time.Second}
			if how&hangsUp != 0 {
				me.Announced = remote.Announce("service", []remote.AnnouncedPolicy{{Name: "p"}})
			}
			if how&newestProtocol != 0 {
				me.Poll = lua.Poll{Member: "m", Seq: 2, Ack: 1, Hold: 3, Want: true, TTL: 1}
			}
			census, err := s.Presence(t.Context(), patience, s.Node(""), me)
			if p := nonsensePoll(&me.Poll, &census.Poll); p != "" {
				t.Errorf("accepted %+v: %s", census.Poll, p)
			}
			numbers := []int64{census.Processes, census.Now, census.Silent}
			for _, p := range census.Policies {
				numbers = append(numbers, p.Processes, p.OtherServices, p.OtherLimits)
			}
			if slices.Min(numbers) < 0 || slices.Max(numbers) >= lua.Whole ||
				err == nil && len(census.Policies) != me.Announced.Policies() || err != nil && slices.Max(numbers) > 0 {
				t.Errorf("accepted %+v beside %v", census, err)
			}
			return
		}
		calls := [2]lua.Call{
			{Bucket: "{p/a}tb2", Cap: 10, Tokens: 1, Period: 1, TTL: 1, Fleet: 1, Want: 3, Min: 1},
			{
				Bucket: "{p/b}tb2", Cap: 10, Tokens: 1, Period: 1, TTL: 1e6, Fleet: 1, Want: 5, Lease: "l", Seq: 2,
				Ack: 1,
			},
		}
		var results [2]remote.Result
		s.Run(t.Context(), patience, calls[:], results[:])
		for i, r := range results {
			if d := nonsense(&calls[i], r); d != "" {
				t.Errorf("call %d: accepted %+v: %s", i, r.Reply, d)
			}
		}
		// Both or none: go-redis takes a reply back when a later one of its pipeline is cut off.
		var want [2]remote.Result
		rest, ok := plainReply(first, &want[0].Reply)
		if _, ok2 := plainReply(rest, &want[1].Reply); ok && ok2 && how&rude == 0 && results != want &&
			nonsense(&calls[0], want[0]) == "" && nonsense(&calls[1], want[1]) == "" {
			t.Errorf("%+v, want %+v", results, want)
		}
	})
}

// Bits of how a server answers.
const (
	newestProtocol = 1 << iota // RESP3 was agreed on: what the server pushes is looked for
	hangsUp                    // at the end of an answer, else it is silent
	forCensus                  // it was asked for presence
	rude                       // it wants a password, and says first to that already
	inPieces                   // times so many bytes arrive at once; 0 for all
)

// announces matches lengths from 10⁴ to 10¹⁵, of which go-redis allocates the memory before a byte
// of the content has come: a server can make any client of it die so, and that is not what is
// looked for here. Beyond that it panics.
var announces = regexp.MustCompile(`[*$%~>|=!]\+?0*[1-9][0-9]{4,14}([^0-9]|$)`)

// nonsensePoll reports what makes r impossible as a result of p, "" if nothing does. The rules are
// those of lua/standing.lua.
func nonsensePoll(p *lua.Poll, r *remote.PollResult) string {
	got := r.Reply
	switch {
	case r.Sent != (p.Seq > 0):
		return "sent"
	case !r.Sent || r.Err != nil:
		if got != (lua.PollReply{}) {
			return "a reply beside no poll or an error"
		}
	case got.Code != lua.PollDone && got.Code != lua.PollStale && got.Code != lua.PollOver:
		return "code"
	case got.Grant < 0 || got.Grant > lua.Pool || got.Grant > 0 && got.Code != lua.PollDone:
		return "grant"
	case got.Flags&lua.Quarantine != 0 && got.Grant > p.Hold:
		return "grant in the quarantine"
	case got.Flags < 0 || got.Flags > 7:
		return "flags"
	case min(got.Now, got.Epoch) < 0 || max(got.Now, got.Epoch) >= lua.Whole:
		return "time"
	case got.Members < 0 || (got.Members == 0) != (got.Code != lua.PollDone):
		return "members"
	}
	return ""
}

// nonsense reports what makes r impossible as a result of c, "" if nothing does. The rules are
// those of the script's contract, whatever the store itself looks at.
func nonsense(c *lua.Call, r remote.Result) string {
	p := r.Reply
	if r.Err != nil {
		if p != (lua.Reply{}) {
			return "a reply beside an error"
		}
		return ""
	}
	in := func(x, least, most int64) bool { return x >= least && x <= most }
	switch {
	case !in(int64(p.Code), 0, 5):
		return "an unknown code"
	case !in(p.Grant, 0, c.Want), p.Grant > 0 && p.Code != lua.Granted && p.Code != lua.Replay:
		return "a grant that nobody asked for"
	case !in(p.Level, -lua.Whole, c.Cap):
		return "a level above the burst, or out of range"
	case !in(p.Retry, -1, lua.Whole), !in(p.TTLLeft, 0, c.TTL):
		return "a time that is none"
	case !in(p.Now, 0, lua.Whole-1), !in(p.Epoch, 0, lua.Whole-1):
		return "a clock that cannot be"
	case p.Active < 0 || p.Flags < 0 || !in(p.Overflow, 0, lua.OverflowEnd):
		return "a count that is none"
	}
	return ""
}

// plainReply reads a reply of ten, eleven or fourteen numbers at the beginning of an answer, and
// reports what follows and whether there is one. It knows nothing of RESP but what those look like.
func plainReply(answer []byte, r *lua.Reply) (rest []byte, ok bool) {
	numbers := []*int64{
		(*int64)(&r.Code), &r.Grant, &r.Level, &r.Retry, &r.Active, &r.TTLLeft, &r.Now, &r.Epoch, (*int64)(&r.Flags),
		&r.Overflow,
	}
	if rest, ok = bytes.CutPrefix(answer, []byte("*14\r\n")); ok {
		numbers = append(numbers, &r.Forgiven, &r.Governs.Cap, &r.Governs.Tokens, &r.Governs.Period)
	} else if rest, ok = bytes.CutPrefix(answer, []byte("*11\r\n")); ok {
		numbers = append(numbers, &r.Forgiven)
	} else {
		rest, ok = bytes.CutPrefix(answer, []byte("*10\r\n"))
	}
	for _, number := range numbers {
		line, after, found := bytes.Cut(rest, []byte("\r\n"))
		digits, colon := bytes.CutPrefix(line, []byte(":"))
		n, err := strconv.ParseInt(string(digits), 10, 64)
		*number, rest, ok = n, after, ok && found && colon && err == nil
	}
	return rest, ok
}

// madServer is what the store is connected to: it says what it was told to, and understands
// nothing. It has no goroutine and no socket, so that a run takes microseconds.
type madServer struct {
	t      testing.TB
	piece  int // bytes that arrive at once, 0 for all
	hangup bool

	mu      sync.Mutex
	answers [][]byte // to what is asked, in turn
}

// store makes a store that is connected to the server.
func (s *madServer) store(how uint8) *remote.Redis {
	o := &redis.Options{
		Addr: "mad:1", PoolSize: 2, DisableIdentity: true, Protocol: 2,
		Dialer: func(context.Context, string, string) (net.Conn, error) {
			return &madWire{server: s, polite: how&rude == 0}, nil
		},
	}
	if how&newestProtocol != 0 {
		o.Protocol = 3
	}
	if how&rude != 0 {
		o.Password = "p"
	}
	remote.FillOptions(o)
	o.ReadTimeout, o.WriteTimeout = 2*patience, 2*patience // more than a call has
	return remote.NewRedis(serverClient(s.t, o), nil)
}

// madWire is one connection to the server.
type madWire struct {
	server *madServer
	polite bool // the first question, which is the client's HELLO, is answered as by Redis
	asking bool // bytes were written and none read since

	mu       sync.Mutex
	unread   []byte
	deadline time.Time
}

// Write takes whatever is asked and has the next answer ready.
func (w *madWire) Write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.polite {
		w.unread = []byte("%0\r\n")
	} else if !w.asking {
		w.server.mu.Lock()
		if all := w.server.answers; len(all) > 0 {
			w.unread, w.server.answers = append(w.unread, all[0]...), all[1:]
		}
		w.server.mu.Unlock()
	}
	w.asking, w.polite = true, false
	return len(b), nil
}

// Read reads the next piece. At the end of all that was said it takes as long as the deadline
// allows, which is no time at all in a test; but there must be a deadline.
func (w *madWire) Read(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.asking = false
	if len(w.unread) == 0 {
		if w.deadline.IsZero() || w.deadline.After(time.Now().Add(patience)) {
			w.server.t.Errorf("a silent server is waited for until %v", w.deadline)
		}
		if w.server.hangup {
			return 0, io.EOF
		}
		return 0, os.ErrDeadlineExceeded
	}
	if n := w.server.piece; n > 0 && n < len(b) {
		b = b[:n]
	}
	n := copy(b, w.unread)
	w.unread = w.unread[n:]
	return n, nil
}

func (w *madWire) SetReadDeadline(d time.Time) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.deadline = d
	return nil
}

func (w *madWire) SetDeadline(d time.Time) error  { return w.SetReadDeadline(d) }
func (*madWire) SetWriteDeadline(time.Time) error { return nil } // nothing that is written ever waits
func (*madWire) Close() error                     { return nil }
func (*madWire) LocalAddr() net.Addr              { return &net.UnixAddr{Name: "mad", Net: "unix"} }
func (*madWire) RemoteAddr() net.Addr             { return &net.UnixAddr{Name: "mad", Net: "unix"} }
