package standing

import (
	"testing"
	"time"

	"github.com/tiered-limiter/tiered-limiter/lua"
)

// Only the reply to the last poll counts, and a right begins when its poll was sent.
func TestReplyOfPoll(t *testing.T) {
	s, now := new(Shares), time.Hour
	id := func() string { return "m" }
	older, _ := s.Poll(now, id)
	last, _ := s.Poll(now+time.Second, id)
	reply := lua.PollReply{Grant: lua.Pool, Epoch: 1, Members: 1}
	s.Accept(now+2*time.Second, older.Member, older.Seq, reply)
	if st := s.State(now + 2*time.Second); st.Fraction != 0 {
		t.Errorf("the reply to an older poll gave a fraction of %v", st.Fraction)
	}
	s.Accept(now+3*time.Second, last.Member, last.Seq, reply)
	if st := s.State(now + 3*time.Second); st.Fraction != 1 || st.Left > TTL-2*time.Second {
		t.Errorf("2 s after its poll was sent, a fraction of %v is left for %v", st.Fraction, st.Left)
	}
}

// What a key used by its former limit is not put back once another limit has its place.
func TestUseByFormerLimit(t *testing.T) {
	part, _, err := Split(Rate{16, 1, time.Second}, 1)
	if err != nil {
		t.Fatal(err)
	}
	s, now := new(Shares), time.Hour
	s.Open(4)
	former, l := s.Begin(now, part), s.Begin(now, part)
	s.set(now, lua.Pool, now+time.Hour)
	now += time.Minute
	var u Use
	if _, ok := s.Take(At{Now: now}, key, former, 1, &u); !ok {
		t.Fatal("there is no token")
	}
	now += time.Minute
	s.Take(At{Now: now}, key, l, 1, nil) // takes the place over
	if s.Return(key, u, 1) {
		t.Error("a use of the former limit was put back")
	}
}

// A share that grows has only what it had before.
func TestShareThatGrows(t *testing.T) {
	l, _, err := Split(Rate{160, 16, time.Second}, 1)
	if err != nil {
		t.Fatal(err)
	}
	s, now := new(Shares), time.Hour
	s.Open(4)
	a := s.Begin(now, l)
	s.set(now, lua.Pool/2, now+time.Hour)
	now += 30 * time.Minute
	s.set(now, lua.Pool, now+time.Hour)
	if n := s.Level(At{Now: now}, key, a); n != 10 {
		t.Errorf("a share of 10 that grows has %d tokens at once", n)
	}
}
