package faults_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/tiered-limiter/tiered-limiter/internal/defaults"
	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/fleet"
	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/redistest"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

const (
	// processes share each limit.
	processes = 6

	// warmUp is how long a fleet runs before the fault: every process has a lease and has told
	// Redis that it is there.
	warmUp = 1500 * time.Millisecond

	// tripTime is how long after a fault all breakers are open: three failures in a row, of a key
	// that asks again after a pause that doubles.
	tripTime = time.Second

	// backTime is how long after the end of a fault everything is as before: one open time of a
	// breaker is 1 s at most, and a client of go-redis that could not dial tries again only each
	// second.
	backTime = 3 * time.Second

	// proofTime is how long after that the fleet is watched.
	proofTime = 3 * time.Second

	// busy is a lag from which on a call may take longer than Timeout because the machine is: the
	// process, Redis, and the process again are held up.
	busy = defaults.Timeout / 3

	// usual is how long a fault lasts.
	usual = 3 * time.Second
)

// limit is the limit of each load: high enough that a second is many decisions, low enough for two
// cores.
var limit = tiered.PerSecond(1000).WithBurst(200)

// perSecond and burst are what limit says.
const (
	perSecond = 1000
	burst     = 200
)

// opening is what a fault does to the breakers.
type opening int

const (
	stays opening = iota // no breaker opens: Redis answers all, as if nothing had happened
	may                  // some may open
	opens                // all open within tripTime, and stay so until the end
)

// row is one fault.
type row struct {
	name       string
	quick      bool                        // it is one of those that run with all other tests
	start      func(*faultRun)             // starts Redis and says how a process reaches it; nil is one server
	job        func(*faultRun, *fleet.Job) // changes what a process does
	begin      func(*faultRun)
	length     time.Duration   // of the fault, after begin has returned; 0 is usual
	end        func(*faultRun) // ends the fault; nil when it is one moment. It returns when Redis can serve again.
	passes     bool            // the fault ends by itself, and end waits for it
	gone       bool            // its node does not come back: others have its keys
	allow      float64         // part of the decisions that may fall back although Redis answers; 0 is next to none
	prompt     bool            // it holds no decision up
	breakers   opening
	unaffected int                                             // processes that the fault does not touch
	lost       int64                                           // how often at most Redis loses all of its buckets
	more       func(s *faultRun, mode tiered.FailMode) float64 // tokens that this fault may cost besides, as the design says
	check      func(*faultRun)                                 // what else must be true when all processes have ended
	subjects   func(*faultRun) []subject                       // nil is one for each fail mode
}

// subject is a load that is judged, and what the fault does to it.
type subject struct {
	fleet.Load
	breakers   opening
	lost       int64
	node       string // the one whose breakers count; "" is all of them
	unaffected int    // processes that the fault does not touch: they go on with Redis
}

// faultRun is a row while it is played. Times are ns of the wall clock.
type faultRun struct {
	*testing.T
	row

	server   *redistest.Server     // one, or the primary at the start
	admin    *redis.Client         // of server, for what is not the limiter's business
	watch    redis.UniversalClient // looks at the buckets
	sentinel *redistest.Sentinel
	cluster  *redistest.Cluster

	client  *fleet.Client
	fleet   fleet.Fleet
	reports map[*fleet.Process]fleet.Report // of those that were not killed
	judged  []subject
	wrong   []string // with the row as a whole
	note    string   // what the row has to say for itself

	paused fleet.Fleet   // processes that were stopped for a while
	lag    time.Duration // of the machine: by how much the processes overslept at most, but for the paused one

	started, down, up, back, ended int64
}

// play runs the fleet through the fault.
func (s *faultRun) play() {
	if s.start != nil {
		s.start(s)
	} else {
		s.one()
	}
	if s.length == 0 {
		s.length = usual
	}
	s.judged = s.standard()
	if s.subjects != nil {
		s.judged = s.subjects(s)
	}
	job := fleet.Job{Client: s.client, Processes: processes}
	for _, j := range s.judged {
		job.Loads = append(job.Loads, j.Load)
	}
	if s.job != nil {
		s.job(s, &job)
	}
	s.fleet = fleet.StartAll(s, job, processes)
	s.started = time.Now().UnixNano()
	audit := fleet.StartAudit(s, s.watch, job.Loads[:len(s.judged)])
	time.Sleep(warmUp)
	s.down = time.Now().UnixNano() // whatever happens from here on may be the fault
	s.begin(s)
	if !s.passes {
		time.Sleep(s.length)
	}
	s.up = time.Now().UnixNano()
	if s.end != nil {
		s.end(s)
	}
	s.back = time.Now().UnixNano()
	if s.passes {
		s.up = s.back
	}
	time.Sleep(backTime + proofTime)
	s.ended = time.Now().UnixNano()
	s.audited(audit.Stop())
	s.reports = s.fleet.Stop()
	for p, r := range s.reports {
		if r.Closing != "" || r.Goroutines > 0 {
			s.complain("a process leaves %d goroutines behind, and Close says %q", r.Goroutines, r.Closing)
		}
		if !slices.Contains(s.paused, p) {
			s.lag = max(s.lag, r.Lag)
		}
	}
	if s.lag > busy {
		for i := range s.judged {
			s.judged[i].breakers = max(s.judged[i].breakers, may)
		}
		s.Logf("the machine held processes up for %v: breakers may open without the fault's doing", s.lag)
	}
}

// asSeen as the number of losses is however many the audit sees.
const asSeen = -1

// audited judges what an audit saw: Redis must lose no more than the row allows.
func (s *faultRun) audited(looks int, losses map[string]int64) {
	if looks < 50 {
		s.complain("the buckets were seen only %d times", looks)
	}
	for i := range s.judged {
		j := &s.judged[i]
		if lost := losses[j.Name]; j.lost == asSeen {
			j.lost = lost
		} else if lost > j.lost {
			s.complain("%s: Redis lost the bucket %d times, want %d at most", j.Name, lost, j.lost)
		}
	}
}

// complain says what is wrong with the row as a whole.
func (s *faultRun) complain(format string, args ...any) {
	s.wrong = append(s.wrong, fmt.Sprintf(format, args...))
}

// one starts one server.
func (s *faultRun) one(args ...string) {
	s.single(redistest.Start(s, append([]string{"--enable-debug-command", "yes"}, args...)...))
}

// single has the fleet use one server.
func (s *faultRun) single(server *redistest.Server) {
	s.server, s.admin = server, server.Client()
	s.client = &fleet.Client{Addrs: []string{server.Addr}}
	s.watch = s.watching(&redis.UniversalOptions{Addrs: s.client.Addrs})
}

// watching returns a client for the audit: it must not hang where Redis does.
func (s *faultRun) watching(o *redis.UniversalOptions) redis.UniversalClient {
	o.ContextTimeoutEnabled, o.MaxRetries, o.DialTimeout = true, -1, 100*time.Millisecond
	o.ReadTimeout, o.WriteTimeout, o.PoolTimeout = 100*time.Millisecond, 100*time.Millisecond, 100*time.Millisecond
	c := redis.NewUniversalClient(o)
	s.Cleanup(func() { _ = c.Close() })
	return c
}

// standard is one load for each fail mode, of one and a half times the limit.
func (s *faultRun) standard() (all []subject) {
	for mode := tiered.FailLocal; mode <= tiered.FailClosed; mode++ {
		all = append(all, s.subject(fmt.Sprint(mode), mode))
	}
	return all
}

func (s *faultRun) subject(policy string, mode tiered.FailMode) subject {
	return subject{
		Load: fleet.Load{
			Policy: tiered.Policy{Name: policy, FailMode: mode, Limit: limit}, Key: "shared", Offer: 1.5 * perSecond / processes,
		},
		breakers:   s.breakers,
		lost:       s.lost,
		unaffected: s.unaffected,
	}
}

// do has the server execute a command of the operator.
func (s *faultRun) do(args ...any) {
	s.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	if err := s.admin.Do(ctx, args...).Err(); err != nil {
		s.Fatalf("%v: %v", args, err)
	}
}
