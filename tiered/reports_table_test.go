package tiered_test

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/tiered-limiter/tiered-limiter/lua"
	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// afflicted is a distant store that can have every fault there is.
type afflicted struct {
	*distant
	shift   atomic.Int64            // µs that its clock was set by
	broken  atomic.Pointer[error]   // of every call
	absence atomic.Pointer[error]   // of every refresh of presence
	table   atomic.Pointer[error]   // of every poll of the table of standing shares
	code    atomic.Int64            // answers so, and does nothing, if not 0
	delay   atomic.Int64            // ns that a call takes longer
	replica atomic.Pointer[distant] // that took over, if not nil
}

func (s *afflicted) Run(ctx context.Context, timeout time.Duration, calls []lua.Call, results []remote.Result) {
	for i := range calls {
		calls[i].Now = time.Now().UnixMicro() + s.shift.Load()
	}
	time.Sleep(time.Duration(s.delay.Load()))
	if err := s.broken.Load(); err != nil {
		for i := range calls {
			results[i] = remote.Result{Err: *err}
		}
		return
	}
	store := s.distant
	if r := s.replica.Load(); r != nil {
		store = r
	}
	store.Run(ctx, timeout, calls, results)
	if code := lua.Code(s.code.Load()); code != 0 {
		for i := range calls {
			results[i] = remote.Result{Reply: lua.Reply{Code: code, Now: calls[i].Now}}
		}
	}
}

func (s *afflicted) Presence(
	ctx context.Context, timeout time.Duration, n remote.Node, p remote.Process,
) (remote.Census, error) {
	if err := s.absence.Load(); err != nil {
		return remote.Census{}, *err
	}
	table := s.table.Load()
	if table != nil {
		p.Poll = lua.Poll{}
	}
	c, err := s.distant.Presence(ctx, timeout, n, p)
	if table != nil {
		c.Poll = remote.PollResult{Sent: true, Err: *table}
	}
	c.Now += s.shift.Load()
	return c, err
}

// cut has all calls fail with an error, until the store heals.
func (s *afflicted) cut(err error) { s.broken.Store(&err); s.absence.Store(&err) }
func (s *afflicted) heal()         { s.broken.Store(nil); s.absence.Store(nil) }

// replied is an error as Redis sends it.
type replied string

func (e replied) Error() string { return string(e) }
func (replied) RedisError()     {}

var _ redis.Error = replied("")

// patientOf is what a fault is done to.
type patientOf struct {
	t     *testing.T
	store *afflicted
	l     *tiered.Limiter
}

// ask asks for one token of a few keys each 10 ms, for as long; each time for a key that is new,
// too.
func (p patientOf) ask(d time.Duration) {
	for i := range int(d / (10 * ms)) {
		p.l.Allow(ctx, "hot")
		if i%5 == 0 {
			p.l.Allow(ctx, "cold"+strconv.Itoa(i))
		}
		time.Sleep(10 * ms)
	}
}

// crowds has five callers ask at one time, again and again, each for keys that are new, while Redis
// answers within Budget, but not so fast that one call after the other does.
func (p patientOf) crowds(ask func(key string)) {
	p.store.delay.Store(int64(15 * ms))
	for i := range 100 {
		var all sync.WaitGroup
		for j := range 5 {
			all.Go(func() { ask(fmt.Sprint("cold", i, "-", j)) })
		}
		all.Wait()
		time.Sleep(100 * ms)
	}
	p.store.delay.Store(0)
	p.ask(20 * time.Second)
}

// fails has all calls fail for as long, and then work again.
func (p patientOf) fails(d time.Duration, err error) {
	p.store.cut(err)
	p.ask(d)
	p.store.heal()
}

const (
	gone         = "WARN redis does not answer: the fail modes decide"
	back         = "INFO redis answers again"
	flaps        = "WARN redis comes and goes: the fail modes decide while it is gone"
	refusedUser  = "ERROR redis refuses this user: the fail modes decide until somebody changes that"
	refusedCalls = "ERROR redis refuses calls: the fail modes decide for their keys until somebody changes that"
	cannotServe  = "WARN redis answers that it cannot serve: the fail modes decide"
	otherNumber  = "DEBUG another number of processes shares the limits"
	wasSettled   = "INFO what was admitted without redis was reported to it"
	lossy        = "WARN redis lost buckets, or what it had written last: each may admit a burst more"
)

// outageFigures are those of an outage in which shares decided.
const outageFigures = "policy.Tokens.Fallback policy.Costs.Settled policy.Leases.Lost node.Calls.Failed node.Outages.Count node.Outages.Settled"

// opens is the events of a breaker that opens for errors of one class, and is probed in vain before
// it closes.
func opens(class string) string {
	return fmt.Sprintf("closed→open %[1]s, open→probing, probing→open %[1]s, probing→closed, error %[1]s", class)
}

// faultsTold is the table of faults: what each of them shows of itself, and that nothing of it is
// there without it. The lines are all that are written; the figures are those that are zero before
// and are not afterwards; so are the events. With a question mark it may be there or not: a refresh
// of presence is under way when Redis goes, or is not, and a probe is one, or a request's call.
var faultsTold = []struct {
	name     string
	mode     tiered.FailMode
	standing float64
	limit    tiered.Limit // zero is 100 per second
	options  tiered.Options
	fault    func(p patientOf)
	lines    []string
	figures  string // of the Group, "policy." or "node."
	events   string
	attrs    string // somewhere in the lines
}{
	{name: "nothing", fault: func(p patientOf) { p.ask(5 * time.Second) }}, {
		name: "Redis is gone", fault: func(p patientOf) { p.fails(5*time.Second, io.EOF) },
		lines: []string{gone, back, wasSettled}, figures: outageFigures, events: opens("unreachable"),
		attrs: `node=memory class=unreachable error=EOF decide="fail-local: api"`,
	}, {
		name: "Redis is gone, fail-open", mode: tiered.FailOpen, fault: func(p patientOf) {
			p.fails(5*time.Second, io.EOF)
		},
		lines:   []string{gone, back, wasSettled},
		figures: "policy.Tokens.Open policy.Costs.Settled policy.Leases.Lost node.Calls.Failed node.Outages.Count node.Outages.Settled",
		events:  opens("unreachable"),
		attrs:   `decide="fail-open: api"`,
	}, {
		name: "Redis is gone, fail-closed", mode: tiered.FailClosed,
		fault: func(p patientOf) { p.fails(5*time.Second, io.EOF) }, lines: []string{gone, back},
		figures: "policy.Tokens.Unavailable policy.Leases.Lost node.Calls.Failed node.Outages.Count",
		events:  opens("unreachable"),
	}, {
		name: "Redis is gone, and the share is used up", limit: tiered.PerSecond(10),
		fault: func(p patientOf) { p.fails(3*time.Second, io.EOF) }, options: tiered.Options{Processes: 20},
		lines: []string{gone, back, wasSettled}, figures: outageFigures + " policy.Tokens.FallbackSpent",
		events: opens("unreachable"),
	}, {
		name: "Redis is gone without a word", fault: func(p patientOf) {
			p.store.loseRequests.Store(true)
			p.ask(5 * time.Second)
			p.store.loseRequests.Store(false)
		},
		lines:   []string{gone, back, wasSettled},
		figures: outageFigures + " node.Calls.Overruns node.Calls.LateReplies",
		events:  opens("unreachable"),
	}, {
		name: "Redis comes and goes", fault: func(p patientOf) {
			for range 20 {
				p.fails(2*time.Second, io.EOF)
				p.ask(1500 * ms)
			}
			p.ask(2 * time.Minute)
		},
		lines: []string{ // each that says that it does not answer is followed by one that it does
			gone, back, flaps, back, wasSettled, flaps, back, wasSettled, flaps, wasSettled, "INFO redis answers again, and has for a minute",
		},
		figures: outageFigures + " node.Faults.Absences",
		attrs:   "outages=17 gone=3",
		events:  opens("unreachable"),
	}, {
		name: "out of memory", fault: func(p patientOf) { p.fails(5*time.Second, replied("OOM command not allowed")) },
		lines: []string{cannotServe, back, wasSettled}, figures: outageFigures + " node.Calls.CannotServe",
		events: opens("cannot serve"), attrs: `class="cannot serve" error="OOM command not allowed"`,
	}, {
		name: "no connection", fault: func(p patientOf) { p.fails(5*time.Second, redis.ErrPoolTimeout) },
		lines:   []string{"WARN no connection to redis is free: the fail modes decide", back, wasSettled},
		figures: outageFigures + " node.Calls.Saturated", events: opens("saturated"),
	}, {
		name: "the password was changed", fault: func(p patientOf) {
			p.fails(5*time.Second, replied("WRONGPASS invalid"))
		},
		lines:   []string{refusedUser, back, wasSettled},
		figures: outageFigures + " node.Calls.Misconfigured",
		events:  opens("misconfigured"),
	}, {
		name: "the user may be counted, and nothing else", fault: func(p patientOf) {
			p.store.broken.Store(new(error(replied("NOPERM The user executing the script can't run this command or subcommand"))))
			for range 20 {
				p.l.Allow(ctx, "rare")
				time.Sleep(5 * time.Second)
			}
			p.store.broken.Store(nil)
			for range 3 {
				p.l.Allow(ctx, "rare")
				time.Sleep(time.Second)
			}
		},
		lines:   []string{refusedCalls, refusedCalls}, // one a minute
		figures: "policy.Tokens.Fallback policy.Costs.Settled policy.Leases.Lost node.Calls.Failed node.Calls.Misconfigured node.Outages.Settled",
		events:  "error refused",
		attrs:   `class=refused error="NOPERM The user executing the script can't run this command or subcommand (the client's user must`,
	}, {
		name: "it died, loaded, and came back with another password",
		fault: func(p patientOf) {
			p.fails(5*time.Second, io.EOF)
			p.fails(5*time.Second, replied("LOADING Redis is loading the dataset in memory"))
			p.fails(5*time.Second, replied("WRONGPASS invalid"))
		},
		lines:   []string{gone, cannotServe, refusedUser, back, wasSettled},
		figures: outageFigures + " node.Calls.CannotServe node.Calls.Misconfigured",
		events: "closed→open unreachable, open→probing, probing→open unreachable, probing→open cannot serve, probing→open misconfigured, " +
			"probing→closed, error unreachable",
	}, {
		name: "a refused password, a restart, and the password is refused again", // the last line says what is wrong
		fault: func(p patientOf) {
			p.fails(5*time.Second, replied("WRONGPASS invalid"))
			p.fails(5*time.Second, io.EOF)
			p.fails(5*time.Second, replied("WRONGPASS invalid"))
		},
		lines:   []string{refusedUser, gone, refusedUser, back, wasSettled},
		figures: outageFigures + " node.Calls.Misconfigured",
		events: "closed→open misconfigured, open→probing, probing→open misconfigured, probing→open unreachable, " +
			"probing→closed, error misconfigured",
	}, {
		name: "a refused password, and a probe that is lost",
		fault: func(p patientOf) {
			p.fails(5*time.Second, replied("WRONGPASS invalid"))
			p.fails(500*ms, io.EOF) // a probe comes every 0.75 s
			p.fails(5*time.Second, replied("WRONGPASS invalid"))
		},
		lines:   []string{refusedUser, back, wasSettled},
		figures: outageFigures + " node.Calls.Misconfigured",
		events: "closed→open misconfigured, open→probing, probing→open misconfigured, probing→open unreachable, " +
			"probing→closed, error misconfigured",
	}, {
		name: "slower than Budget", fault: func(p patientOf) {
			p.store.delay.Store(int64(30 * ms))
			p.ask(20 * time.Second)
			p.store.delay.Store(0)
			p.ask(20 * time.Second)
		},
		lines: []string{
			"WARN redis answers later than Budget: the fail modes decide for keys without a lease",
			"INFO redis answers within Budget again",
		},
		figures: "policy.Tokens.Fallback policy.Costs.Settled node.Calls.Overruns node.Outages.Settled",
	}, {
		name: "calls wait for their turn in the process", options: tiered.Options{MaxInFlight: 1},
		fault: func(p patientOf) {
			p.crowds(func(key string) { p.l.Allow(ctx, key) })
		},
		lines: []string{
			"WARN this process is later than Budget, and not redis: the fail modes decide for keys without a lease",
			"INFO this process is within Budget again",
		},
		figures: "policy.Tokens.Fallback policy.Costs.Settled node.Calls.Overruns node.Outages.Settled",
		attrs:   `"round trip"=16ms late=0s budget=20ms`,
	}, {
		name: "calls for two keys wait for their turn in the process", options: tiered.Options{MaxInFlight: 1},
		fault: func(p patientOf) {
			p.crowds(func(key string) { tiered.All(p.l.For(key), p.l.For(key+" too")).Allow(ctx) })
		},
		lines: []string{
			"WARN this process is later than Budget, and not redis: the fail modes decide for keys without a lease",
			"INFO this process is within Budget again",
		},
		figures: "policy.Tokens.Fallback policy.Costs.Settled node.Calls.Overruns node.Outages.Settled",
		attrs:   `"round trip"=16ms late=0s budget=20ms`,
	}, {
		name: "slower than Timeout", fault: func(p patientOf) {
			p.store.delay.Store(int64(200 * ms))
			p.ask(5 * time.Second)
			p.store.delay.Store(0)
		},
		lines: []string{
			gone, back, "WARN redis answers later than Budget: the fail modes decide for keys without a lease", wasSettled,
		},
		figures: outageFigures + " node.Calls.Overruns node.Calls.LateReplies",
		events:  "closed→open unreachable, open→probing, probing→closed, error unreachable",
	}, {
		name: "one hiccup", fault: func(p patientOf) {
			p.store.delay.Store(int64(30 * ms))
			p.l.Allow(ctx, "hiccup")
			p.store.delay.Store(0)
			p.ask(3 * time.Second)
		},
		figures: "policy.Tokens.Fallback policy.Costs.Settled node.Calls.Overruns node.Outages.Settled",
	}, {
		name: "buckets are lost", fault: func(p patientOf) {
			for range 3 {
				for i := range 3 {
					key := "lost" + strconv.Itoa(i)
					p.l.AllowN(ctx, key, 1000)
					p.store.Del(p.store.Key("api", key))
					p.l.Allow(ctx, key)
				}
			}
			p.ask(2 * time.Second)
		},
		limit: tiered.PerDay(1 << 20), // so that none is full again
		lines: []string{lossy}, figures: "node.Faults.StateLosses", events: "state loss", attrs: "count=9",
	}, {
		name: "buckets are lost again and again", limit: tiered.PerDay(1 << 20), fault: func(p patientOf) {
			for range 20 { // every 5 s, which make one line a minute
				p.l.AllowN(ctx, "lost", 1000)
				p.store.Del(p.store.Key("api", "lost"))
				p.l.Allow(ctx, "lost")
				time.Sleep(5 * time.Second)
			}
		},
		lines: []string{lossy, lossy}, figures: "node.Faults.StateLosses", events: "state loss", attrs: "count=12",
	}, {
		name: "buckets expire", limit: tiered.PerSecond(10), fault: func(p patientOf) {
			for range 3 {
				time.Sleep(10 * time.Second)
				p.ask(time.Second)
			}
		},
	}, {
		name: "a failover loses the last writes", limit: tiered.PerDay(1 << 20), fault: func(p patientOf) {
			replica := &distant{Memory: p.store.Memory.Clone(), trip: ms}
			p.ask(time.Second)
			p.store.replica.Store(replica)
			p.ask(2 * time.Second)
		},
		lines: []string{lossy}, figures: "node.Faults.StateLosses", events: "state loss",
	}, {
		name: "the clock of Redis is set forward", fault: func(p patientOf) {
			p.store.shift.Store(time.Hour.Microseconds())
			p.ask(5 * time.Second)
		},
		lines:   []string{"WARN the clock of redis was set", lossy},
		figures: "node.Calls.Late node.Faults.ClockSteps node.Faults.StateLosses",
		events:  "clock step 1h0m0s, error late, state loss",
		attrs:   "count=1",
	}, {
		name: "the clock of Redis is set back", fault: func(p patientOf) {
			p.store.shift.Store(-time.Minute.Microseconds())
			p.ask(5 * time.Second)
		},
		lines:   []string{"WARN the clock of redis was set"},
		figures: "node.Faults.ClockSteps node.Faults.ClockBack", events: "clock step -1m0s",
	}, {
		name: "the machine stands still", fault: func(p patientOf) {
			tiered.Engine(p.l.Group()).StandStill(time.Minute) // as if the wall clock had gone on without us
			p.store.shift.Add(time.Minute.Microseconds())
			p.ask(5 * time.Second)
		},
		// Until the entry of its old identity is over, it counts as two.
		lines:   []string{"WARN the clock jumped: all leases were given up", otherNumber},
		figures: "Standstills node.Calls.Late", events: "standstill 1m0s, error late", attrs: "by=1m0s",
	}, {
		name: "keys of another type", mode: tiered.FailClosed, fault: func(p patientOf) {
			p.store.broken.Store(new(error(&remote.ScriptError{Text: "WRONGTYPE"})))
			p.ask(5 * time.Second)
			p.ask(5 * time.Second) // the same keys
			p.store.broken.Store(nil)
		},
		lines: []string{ // a hundred keys: one line a minute
			"ERROR redis refuses buckets: they are not what the limiter wrote, so the fail mode decides for their keys"},
		figures: "policy.Faults.Rejected policy.Tokens.Unavailable", events: "error key fault",
		attrs: "policy=api error=\"remote: WRONGTYPE\"",
	}, {
		name: "presence is not allowed", fault: func(p patientOf) {
			p.store.absence.Store(new(error(replied("NOPERM this user has no permissions to run the 'zadd' command"))))
			p.ask(10 * time.Second)
			p.store.absence.Store(nil)
			p.ask(5 * time.Second)
		},
		lines: []string{
			"ERROR redis does not count this process: fallbacks are too large while it does not answer",
			"INFO redis counts this process again",
		},
		figures: "node.Faults.Absences", events: "presence NOPERM this user has no permissions to run the 'zadd' command, presence again",
	}, {
		name: "presence is lost once", fault: func(p patientOf) {
			p.store.absence.Store(new(io.EOF))
			p.ask(3 * time.Second)
			p.store.absence.Store(nil)
			p.ask(5 * time.Second)
		},
		figures: "node.Faults.Absences",
	}, {
		name: "nobody asks, and Redis is gone", fault: func(p patientOf) {
			p.store.absence.Store(new(io.EOF))
			time.Sleep(time.Minute)
			p.store.absence.Store(nil)
			time.Sleep(5 * time.Second)
		},
		lines: []string{
			"WARN redis does not count this process: fallbacks are too large while it does not answer",
			"INFO redis counts this process again",
		},
		figures: "node.Faults.Absences", events: "presence EOF, presence again",
	}, {
		name: "stale calls", fault: func(p patientOf) {
			p.store.code.Store(int64(lua.Stale))
			p.ask(time.Second)
			p.store.code.Store(0)
		},
		figures: "policy.Tokens.Fallback policy.Costs.Settled node.Calls.Stale node.Outages.Settled", events: "error stale",
	}, {
		name: "another process comes", fault: func(p patientOf) {
			l, err := tiered.New(p.store, tiered.Policy{Name: "api", Limit: tiered.PerSecond(100)}, nil)
			if err != nil {
				p.t.Fatal(err)
			}
			time.Sleep(10 * time.Second)
			closeIn(p.t, l, time.Second)
			time.Sleep(time.Second)
		},
		lines: []string{otherNumber, otherNumber},
		attrs: "from=1 to=2",
	}, {
		name: "another service has other limits", fault: func(p patientOf) {
			other := run(p.t, p.store, "billing", tiered.Policy{Name: "api", Limit: tiered.PerMinute(3)})
			time.Sleep(10 * time.Second)
			other.end()
			time.Sleep(time.Second)
		},
		lines: []string{
			otherNumber,
			"WARN another service has a policy of this name with other limits: both count the same keys, so give one of them another name",
			otherNumber,
		},
		events: "other limits 0s", attrs: "processes=1",
	}, {
		name: "a deploy changes the limits", options: tiered.Options{Service: "shop"}, fault: func(p patientOf) {
			run(p.t, p.store, "shop", tiered.Policy{Name: "api", Limit: tiered.PerSecond(50)})
			time.Sleep(10 * time.Second)
		},
		lines:   []string{otherNumber, "INFO processes of this service have other limits for this policy"},
		figures: "policy.Processes.OtherLimits", attrs: "policy=api service=shop limits=100/s processes=1",
	}, {
		name: "processes do not split the limit", standing: 1.0 / 8, fault: func(p patientOf) {
			other := run(p.t, p.store, "", tiered.Policy{Name: "api", Limit: tiered.PerSecond(100)})
			time.Sleep(10 * time.Second)
			other.end()
			time.Sleep(30 * time.Second)
		},
		lines: []string{
			otherNumber, "WARN some processes do not split this policy's limit alike: standing shares are not used",
			otherNumber, "INFO all processes split this policy's limit alike: standing shares are used again",
		},
		attrs: "policy=api processes=1",
	}, {
		name: "the table of standing shares is damaged", standing: 1.0 / 8, fault: func(p patientOf) {
			time.Sleep(80 * time.Second)
			p.store.table.Store(new(error(&remote.ScriptError{Text: "WRONGTYPE"})))
			time.Sleep(80 * time.Second)
			if d := p.l.Allow(ctx, "new"); d.Tier != tiered.Remote {
				p.t.Errorf("without a table: %+v", d)
			}
			p.store.table.Store(nil)
		},
		lines: []string{"ERROR redis refuses the table of standing shares: without it they end within a minute"},
		attrs: `error="remote: WRONGTYPE"`,
	}, {
		name: "too many processes for standing shares", standing: 1.0 / 8, fault: func(p patientOf) {
			var others []*program
			for range 14 {
				others = append(others, run(p.t, p.store, "", tiered.Policy{Name: "api", Limit: tiered.PerSecond(100), Standing: 1.0 / 8}))
			}
			time.Sleep(100 * time.Second)
			for _, other := range others[:10] {
				other.end()
			}
			time.Sleep(40 * time.Second)
		},
		lines: []string{
			otherNumber,
			"WARN too many processes for this policy's standing shares: none would hold a whole token, so its limits are whole again",
			"INFO few enough processes for this policy's standing shares again",
			otherNumber,
		},
		attrs: "policy=api processes=15 most=11",
	}, {
		name: "too many policies to announce", standing: 1.0 / 8, fault: func(p patientOf) {
			for i := range 512 {
				if _, err := p.l.Group().NewLimiter(standingPolicy(fmt.Sprint("p", i))); err != nil {
					p.t.Fatal(err)
				}
			}
		},
		lines: []string{
			"WARN too many policies to announce: this process counts as one of every policy, and no standing share is used",
		},
		attrs: "policies=513 most=512",
	}, {
		name: "a hook panics", fault: func(p patientOf) {
			for range 3 {
				p.l.Allow(ctx, "panic")
			}
		},
		lines: []string{"ERROR a trace hook panicked"}, figures: "TracePanics", attrs: `panic="string in `,
	},
}
