package faults_test

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/fleet"
	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/redistest"
	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// redisRows are what happens to a server, and what its operators do to it.
var redisRows = []row{
	{
		name: "killed, back empty", quick: true, breakers: opens, lost: 1,
		begin: func(s *faultRun) { s.server.Kill() },
		end:   func(s *faultRun) { s.server.Restart() },
	},
	{
		name: "frozen", quick: true, breakers: opens,
		begin: func(s *faultRun) { s.server.Pause() },
		end:   func(s *faultRun) { s.server.Resume() },
	},
	{
		name: "CLIENT PAUSE", breakers: opens,
		begin: tell(fmt.Sprintf("CLIENT PAUSE %d ALL", usual.Milliseconds())),
	},
	{
		name: "DEBUG SLEEP", breakers: opens,
		begin: func(s *faultRun) {
			sleeper := s.server.Client()
			go sleeper.Do(context.Background(), "DEBUG", "SLEEP", usual.Seconds())
		},
	},
	{
		name: "SCRIPT FLUSH", length: time.Second,
		begin: tell("SCRIPT FLUSH"),
	},
	{
		name: "FLUSHALL", length: time.Second, lost: 1,
		begin: tell("FLUSHALL"),
	},
	{
		name: "eviction", lost: asSeen,
		begin: evict,
		end:   tell("CONFIG SET maxmemory 0"),
		check: func(s *faultRun) {
			var seen int64
			for _, r := range s.reports {
				for _, n := range r.Stats.Nodes {
					seen += n.Faults.StateLosses
				}
			}
			s.note = fmt.Sprintf("%d buckets were lost, the processes saw %d losses", s.judged[0].lost, seen)
			if s.judged[0].lost == 0 || seen == 0 {
				s.complain("nothing of it was seen: %s", s.note)
			}
		},
	},
	{
		name: "out of memory", breakers: opens,
		begin: tell("CONFIG SET maxmemory 1"),
		end:   tell("CONFIG SET maxmemory 0"),
	},
	{
		name: "READONLY", breakers: opens,
		begin: tell("REPLICAOF 127.0.0.1 1"), // of nobody: nothing listens at port 1
		end:   tell("REPLICAOF NO ONE"),
	},
	{
		name: "password changed", quick: true, breakers: opens,
		start: withUser,
		// Who is in stays in otherwise.
		begin: tell("ACL SETUSER limiter resetpass >another", "CLIENT KILL USER limiter"),
		end:   tell("ACL SETUSER limiter resetpass >secret"),
		check: atOnce,
	},
	{
		name: "rights revoked", breakers: opens,
		start: withUser,
		begin: tell("ACL SETUSER limiter -evalsha -eval"),
		end:   tell("ACL SETUSER limiter +evalsha +eval"),
		check: atOnce,
	},
	{
		name: "poisoned key",
		job: func(s *faultRun, job *fleet.Job) {
			job.Damaged = true
			job.Loads = append(job.Loads, fleet.Load{
				Policy: tiered.Policy{Name: "poisoned", FailMode: tiered.FailLocal, Limit: limit},
				Offer:  1.5 * perSecond / processes,
			})
		},
		begin: func(s *faultRun) {
			name := remote.NewRedis(s.admin, nil).Key("poisoned", "shared")
			s.do("SET", name, "another program's") // in place of the hash
		},
		check: func(s *faultRun) {
			for _, r := range s.reports {
				if r.Stats.Policies["poisoned"].Faults.Rejected == 0 {
					s.complain("a process did not count the poisoned key")
				}
			}
			shared := 0
			for _, r := range fleet.Within(s.fleet.Records("poisoned"), s.back, s.ended) {
				if r.Reason == tiered.Fallback {
					shared++
				}
			}
			if shared < perSecond {
				s.complain("%d requests for the poisoned key were admitted by the shares", shared)
			}
		},
	},
	{
		name: "clock +1 h", length: 2 * time.Second,
		start: withClock,
		begin: func(s *faultRun) { s.server.SetClock(time.Hour) },
		more:  func(*faultRun, tiered.FailMode) float64 { return burst },
	},
	{
		name: "clock -1 h", length: 2 * time.Second,
		start: withClock,
		begin: func(s *faultRun) { s.server.SetClock(-time.Hour) },
	},
}

// withUser starts one server, where the limiter is a user of its own.
func withUser(s *faultRun) {
	s.one()
	tell("ACL SETUSER limiter on >secret ~* +@all")(s)
	s.client.User, s.client.Password = "limiter", "secret"
}

// withClock starts one server whose clock can be set.
func withClock(s *faultRun) { s.single(redistest.StartWithClock(s)) }

// tell has the server execute commands of the operator, whose words have no blanks.
func tell(commands ...string) func(*faultRun) {
	return func(s *faultRun) {
		for _, command := range commands {
			var args []any
			for word := range strings.FieldsSeq(command) {
				args = append(args, word)
			}
			s.do(args...)
		}
	}
}

// atOnce: what does not heal by itself opens the breaker, and is counted as what it is.
func atOnce(s *faultRun) {
	for _, r := range s.reports {
		refused := int64(0)
		for _, node := range r.Stats.Nodes {
			refused += node.Calls.Misconfigured
		}
		if refused == 0 {
			s.complain("a process counted no misconfiguration")
		}
		failures := 0
		for _, e := range r.States {
			if e.At >= s.down && e.To == "open" {
				failures++
			}
		}
		if failures == 0 {
			s.complain("a breaker did not open")
		}
	}
}

// evict has Redis evict keys at random, among which are the buckets.
func evict(s *faultRun) {
	used := s.memory()
	s.do("CONFIG", "SET", "maxmemory-policy", "allkeys-random")
	s.do("CONFIG", "SET", "maxmemory", used+512<<10)
	junk := strings.Repeat("x", 1000)
	for i := range 3000 { // each evicts one of some 400 keys, once they fill the memory
		s.do("SET", fmt.Sprint("junk", i), junk)
	}
}

// memory reports what Redis uses, in bytes.
func (s *faultRun) memory() (used int64) {
	info, err := s.admin.Info(context.Background(), "memory").Result()
	if err != nil {
		s.Fatal(err)
	}
	for line := range strings.SplitSeq(info, "\r\n") {
		if n, ok := strings.CutPrefix(line, "used_memory:"); ok {
			if _, err := fmt.Sscan(n, &used); err != nil {
				s.Fatal(err)
			}
		}
	}
	return used
}
