//go:build unix

package sim

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/tiered-limiter/tiered-limiter/internal/harness"
	"github.com/tiered-limiter/tiered-limiter/internal/redisserver"
	"github.com/tiered-limiter/tiered-limiter/sim/faultnet"
	"github.com/tiered-limiter/tiered-limiter/sim/internal/stable"
)

// live is the engine whose Redis is a redis-server and whose processes are this program, started again, in real time.
type live struct {
	run *run
	dir string // for all files of the run

	server  *redisserver.Server   // children know its address
	servers []*redisserver.Server // all that were started
	up      bool
	admin   *redis.Client
	standby []*redisserver.Server // replicas; the first one follows
	apart   bool                  // it does no more
	clock   *redisserver.Clock
	ahead   time.Duration
	unsaved string // a directory that is not there
	saved   string // one for the data that the server loads when it starts

	state    redisState
	refusing string // as of now
	poisoned []string
	networks []conditions // by slot
	spares   []*liveProcess
	all      []*liveProcess // that became processes
}

// operator is the user that the engine is in Redis: whatever the limiter's own may do.
const (
	operator         = "operator"
	operatorPassword = "of the engine"
)

// adminTime is the longest that an order of the operator takes.
const adminTime = 5 * time.Second

// newLive starts Redis and as many processes as the run will need: they have nothing to do until their time comes, and then
// need none to start.
func newLive(r *run) (engine, error) {
	l := &live{run: r}
	err := l.serveRedis()
	for range r.starts() {
		if err != nil {
			break
		}
		var o *liveProcess
		if o, err = newLiveProcess(r); err == nil {
			l.spares = append(l.spares, o)
			if len(l.spares) > 2 { // no more than that start at one time
				err = l.spares[len(l.spares)-3].Wait()
			}
		}
	}
	for _, o := range l.spares[max(0, len(l.spares)-2):] {
		err = errors.Join(err, o.Wait())
	}
	if err != nil {
		return nil, errors.Join(err, l.close())
	}
	return l, nil
}

// serveRedis starts the servers, with all that some fault of the run will need.
func (l *live) serveRedis() (err error) {
	if l.dir, err = os.MkdirTemp("", "sim"); err != nil {
		return err
	}
	var env []string
	args := []string{
		"--lua-time-limit", "10", "--repl-diskless-sync-delay", "0", "--maxclients", "10000",
		"--user", operator, "on", ">" + operatorPassword, "~*", "&*", "+@all",
		"--masteruser", operator, "--masterauth", operatorPassword,
	}
	failovers := 0
	for i := range l.run.scenario.Faults {
		switch f := &l.run.scenario.Faults[i]; {
		case f.Kind == "clock" && l.clock == nil:
			if l.clock, err = redisserver.NewClock(l.dir); err != nil {
				return err
			}
			env = l.clock.Env()
		case f.Kind == "failover" && f.Lose < f.At:
			failovers++
		case f.Kind == "refuse" && f.Error == "MISCONF" && l.unsaved == "":
			l.unsaved = filepath.Join(l.dir, "unsaved")
			args = append(args, "--dir", l.unsaved)
		case f.Kind == "refuse" && f.Error == "LOADING" && l.saved == "":
			l.saved = filepath.Join(l.dir, "saved")
			args = append(args, "--dir", l.saved, "--key-load-delay", strconv.Itoa(loadDelay),
				"--loading-process-events-interval-bytes", "1024", "--rdbcompression", "no") // it answers after each key
		}
	}
	if password := l.run.password(); password != "" {
		args = append(args, "--requirepass", password)
	}
	for _, d := range []string{l.unsaved, l.saved} {
		if d != "" {
			if err := os.Mkdir(d, 0o700); err != nil {
				return err
			}
		}
	}
	for range 1 + failovers {
		s, err := redisserver.Start(env, args)
		if err != nil {
			return err
		}
		l.servers = append(l.servers, s)
	}
	l.server, l.standby = l.servers[0], l.servers[1:]
	l.up = true
	l.manage()
	l.follow()
	l.prepare()
	return nil
}

// manage makes the operator's client that of the present server.
func (l *live) manage() {
	if l.admin != nil {
		_ = l.admin.Close()
	}
	l.admin = l.client(l.server)
}

func (l *live) client(s *redisserver.Server) *redis.Client {
	return redis.NewClient(&redis.Options{
		Network: "unix", Addr: s.Socket, Username: operator, Password: operatorPassword,
		ReadTimeout: adminTime, ContextTimeoutEnabled: true,
	})
}

// do has the server execute an order of the operator.
func (l *live) do(args ...any) { l.note(l.admin, args...) }

func (l *live) note(c *redis.Client, args ...any) {
	ctx, cancel := context.WithTimeout(context.Background(), adminTime)
	defer cancel()
	if err := c.Do(ctx, args...).Err(); err != nil && !errors.Is(err, redis.Nil) {
		l.run.fail(fmt.Errorf("sim: engine live: redis-server: %v: %w", args[:min(2, len(args))], err))
	}
}

// follow has the next replica follow the primary, and waits until it does.
func (l *live) follow() {
	l.apart = false
	if len(l.standby) == 0 {
		return
	}
	c := l.client(l.standby[0])
	defer c.Close()
	l.note(c, "REPLICAOF", "127.0.0.1", l.server.Port)
	for end := time.Now().Add(adminTime); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		info, err := c.Info(context.Background(), "replication").Result()
		if err == nil && strings.Contains(info, "master_link_status:up") {
			return
		}
	}
	l.run.fail(errors.New("sim: engine live: a replica does not follow its primary"))
}

func (l *live) start(p *process) (instance, error) {
	if len(l.spares) == 0 {
		return nil, errors.New("sim: engine live has no process left to start")
	}
	o := l.spares[0]
	l.spares = l.spares[1:]
	l.all = append(l.all, o)
	options := &l.run.options
	o.process.Store(p)
	j := &harness.Job{
		Client: &harness.Client{Addrs: []string{l.server.Addr}, Password: l.run.password(), Strict: true},
		Net:    l.faults(p.slot), Seed: stable.Mix(l.run.seed ^ stable.Mix(uint64(p.slot))), Verbose: true,
		Budget: options.Budget, Timeout: options.Timeout, Processes: options.Processes,
		MaxKeys: options.MaxKeys, MaxInFlight: options.MaxInFlight,
	}
	for _, policy := range l.run.policies {
		j.Loads = append(j.Loads, harness.Load{Policy: policy})
	}
	o.Do(j)
	o.Begin()
	return o, nil
}

// coarse is the least delay that the network adds: a shorter one would become as long, for the system's timers are no finer.
// The machine's own network takes its place.
const coarse = 2 * time.Millisecond

// faults are those of the network of a slot.
func (l *live) faults(slot int) faultnet.Faults {
	var c conditions
	if slot < len(l.networks) {
		c = l.networks[slot]
	}
	n := &l.run.scenario.Net
	delay, jitter := time.Duration(n.RTT)+c.delay, time.Duration(n.Jitter)+c.jitter
	if delay+jitter < coarse {
		delay, jitter = 0, 0
	}
	hole := c.holdOut || c.holdIn
	return faultnet.Faults{
		HoldDial: hole, HoldOut: c.holdOut, HoldIn: c.holdIn, Delay: delay / 2, Jitter: jitter, CutBefore: c.cut, CutAfter: c.lose,
	}
}

func (l *live) connect(slot int, c conditions) {
	for len(l.networks) <= slot {
		l.networks = append(l.networks, conditions{})
	}
	l.networks[slot] = c
	for _, o := range l.all {
		if o.process.Load().slot == slot {
			o.Net(l.faults(slot))
		}
	}
}

func (l *live) serve(s redisState) {
	if s == l.state {
		return
	}
	was := l.state
	l.state = s
	if was.frozen && l.up {
		l.server.Resume() // else it takes no orders
	}
	switch {
	case s.down && l.up:
		l.server.Kill()
		l.up, l.refusing = false, ""
	case !s.down && !l.up:
		l.restart()
	}
	if l.up && s.refuse != l.refusing {
		l.accept(l.refusing)
		l.refuse(s.refuse)
		l.refusing = s.refuse
	}
	if s.frozen && l.up {
		l.server.Pause()
	}
}

// restart starts the server again, without what it had.
func (l *live) restart() {
	if l.unsaved != "" {
		_ = os.MkdirAll(l.unsaved, 0o700)
	}
	if err := l.server.Run(); err != nil {
		l.run.fail(err)
		return
	}
	l.up = true
	l.manage()
	l.prepare()
}

func (l *live) flush() {
	if l.up { // who is down has nothing
		l.do("FLUSHALL")
	}
}

func (l *live) flushScripts() {
	if l.up {
		l.do("SCRIPT", "FLUSH")
	}
}

func (l *live) evict(keys int, random *rand.Rand) {
	if !l.up {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), adminTime)
	defer cancel()
	var buckets []string
	all := l.admin.ScanType(ctx, 0, "*", 1000, "hash").Iterator()
	for all.Next(ctx) {
		buckets = append(buckets, all.Val())
	}
	if err := all.Err(); err != nil {
		l.run.fail(fmt.Errorf("sim: engine live: redis-server: SCAN: %w", err))
	}
	for _, b := range sample(slices.Compact(slices.Sorted(slices.Values(buckets))), keys, random) {
		l.do("DEL", b)
	}
}

func (l *live) step(by time.Duration) {
	l.ahead += by
	if err := l.clock.Set(l.ahead); err != nil {
		l.run.fail(err)
	}
}

func (l *live) remember() {
	if len(l.standby) == 0 {
		return
	}
	c := l.client(l.standby[0])
	defer c.Close()
	l.note(c, "REPLICAOF", "NO", "ONE")
	l.apart = true
}

func (l *live) promote() {
	if len(l.standby) == 0 || !l.apart {
		return // an empty one starts in its place
	}
	l.server, l.standby = l.standby[0], l.standby[1:]
	l.up = true
	l.manage()
	l.prepare()
	l.follow()
	for _, o := range l.all {
		o.Redirect(l.server.Addr)
	}
}

// close ends the servers, and the processes that never had to start.
func (l *live) close() error {
	var all []error
	for _, o := range l.spares {
		o.Kill()
		all = append(all, o.end())
	}
	if l.admin != nil {
		all = append(all, l.admin.Close())
	}
	for _, s := range l.servers {
		s.Close()
	}
	if l.dir != "" {
		all = append(all, os.RemoveAll(l.dir))
	}
	return errors.Join(all...)
}

// keys are the names of all buckets that the run's traffic can ask for, but for those that are new each time.
func (l *live) keys(bucket func(policy, key string) string) (names []string) {
	for i := range l.run.scenario.Traffic {
		t := &l.run.scenario.Traffic[i]
		for k := range max(1, t.Keys) {
			names = append(names, bucket(l.run.policies[l.run.limitOf(t.Limit)].Name, "key "+strconv.FormatInt(k, 10)))
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}
