package remote_test

import (
	"fmt"
	"maps"
	"strconv"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/tiered-limiter/tiered-limiter/lua"
	"github.com/tiered-limiter/tiered-limiter/remote"
)

// rightTTL is the ttl of all polls of a random play, µs.
const rightTTL = int64(60e6)

// player is a process as a member of the table. Its right ends by its own clock.
type player struct {
	id       string
	epoch    int64
	seq, ack int64
	sent     int64 // when the poll under way was sent; only its reply is accepted
	units    int64 // that it may use until deadline
	deadline int64 // 0: no reply was accepted
}

// uses returns the units that the player may use.
func (p *player) uses(now int64) int64 {
	if now >= p.deadline {
		return 0
	}
	return p.units
}

// standingReply is a reply that is on its way.
type standingReply struct {
	to    int // player
	id    string
	seq   int64
	reply lua.PollReply
}

// standingPlay is a table on all engines and the processes that poll it. Polls and replies stay on
// their way for ever: each may arrive late, out of order, twice, or never.
type standingPlay struct {
	key     string
	engines []*engine // the first is the model
	now     int64     // true time, µs
	clock   int64     // by which the server's clock is off
	jumped  int64     // true time of its last jump ahead
	players []player
	born    int // ids so far
	polls   []lua.Poll
	senders []int // of the polls
	replies []standingReply
	fails   bool // writes are lost in failovers; then nothing is promised
	forgot  bool // the table was lost: members say what they hold, and late calls say it too
}

// TestStandingAtRandom plays random polls. The script answers as Memory does and stores the same.
// All processes together never may use more than there is, even if the table is lost and its clock
// jumps.
func TestStandingAtRandom(t *testing.T) {
	all, run, seen := engines(t), 0, map[string]int{}
	rapid.Check(t, func(t *rapid.T) {
		run++
		w := &standingPlay{
			key: fmt.Sprintf("{random %d}table", run), now: scriptStart, jumped: scriptStart,
			engines: append([]*engine{{name: "memory", memory: remote.NewMemory()}}, all[1:]...),
			fails:   rapid.IntRange(0, 2).Draw(t, "fails") == 0,
		}
		for range 3 {
			w.players = append(w.players, player{})
			w.restart(len(w.players) - 1)
		}
		for range rapid.IntRange(1, 80).Draw(t, "steps") {
			w.step(t, seen)
			w.check(t)
		}
	})
	t.Log(seen)
	if testing.Short() {
		return
	}
	for _, what := range []string{"done", "granted", "stale", "over", "created", "lost", "quarantine", "whole pool"} {
		if seen[what] < few {
			t.Errorf("%s: %d times", what, seen[what])
		}
	}
}

// restart makes a player another member, without a right.
func (w *standingPlay) restart(i int) {
	w.born++
	w.players[i] = player{id: strconv.Itoa(w.born), epoch: w.players[i].epoch}
}

// step lets one thing happen, most often a poll with its reply.
func (w *standingPlay) step(t *rapid.T, seen map[string]int) {
	i := rapid.IntRange(0, len(w.players)-1).Draw(t, "player")
	p := &w.players[i]
	index := func(n int) int { return rapid.IntRange(0, n-1).Draw(t, "index") }
	switch rapid.SampledFrom([]string{
		"round", "round", "round", "round", "rounds", "rounds", "rounds", "pass", "send", "send", "execute", "execute",
		"accept", "accept", "restart", "clock", "delete", "failover", "failover",
	}).Draw(t, "step") {
	case "round":
		w.accept(w.execute(t, w.send(t, i), seen))
	case "rounds": // all poll for a while
		for range rapid.IntRange(1, 15).Draw(t, "rounds") {
			w.now += 5e6
			for i := range w.players {
				w.accept(w.execute(t, w.send(t, i), seen))
			}
		}
	case "pass":
		w.now += rapid.SampledFrom([]int64{1, 1e6, 3e6, 5e6, 7e6, 20e6, 60e6 - 1, 60e6, 65e6, 70e6}).Draw(t, "passes")
	case "send":
		w.send(t, i)
	case "execute":
		if n := len(w.polls); n > 0 {
			w.execute(t, max(0, n-1-index(6)), seen)
		}
	case "accept":
		if n := len(w.replies); n > 0 {
			w.accept(max(0, n-1-index(6)))
		}
	case "restart":
		if rapid.Bool().Draw(t, "leaves") {
			p.units = 0
			w.execute(t, w.send(t, i), seen)
		}
		w.restart(i)
	case "clock": // ahead at most once in a right
		by := rapid.SampledFrom([]int64{-3600e6, -3e6, 3e6, 3600e6}).Draw(t, "by")
		if by < 0 || w.now-w.jumped > rightTTL {
			w.clock += by
			if by > 0 {
				w.jumped = w.now
			}
		}
	case "delete":
		w.forgot = true
		w.engines[0].memory.SetTable(remote.NewMemory())
		for _, e := range w.engines[1:] {
			e.client.Del(noContext, w.key)
		}
	case "failover":
		if w.fails {
			w.failover(t, i, seen)
		}
	}
}

// send lets a player poll. The poll before is given up.
func (w *standingPlay) send(t *rapid.T, i int) int {
	p := &w.players[i]
	if p.deadline > 0 && w.now >= p.deadline {
		w.restart(i)
	}
	p.seq++
	p.sent = w.now
	want := rapid.IntRange(0, 9).Draw(t, "want") > 0
	if !want && rapid.Bool().Draw(t, "uses nothing more") {
		p.units = 0
	}
	w.polls = append(w.polls, lua.Poll{
		Member: p.id, Seq: p.seq, Ack: p.ack, Hold: p.uses(w.now), Want: want, TTL: rightTTL, Epoch: p.epoch,
	})
	w.senders = append(w.senders, i)
	return len(w.polls) - 1
}

// execute lets a poll arrive. All engines must answer and store the same.
func (w *standingPlay) execute(t *rapid.T, n int, seen map[string]int) int {
	poll := w.polls[n]
	poll.Now = w.now + w.clock
	before := w.engines[0].memory.Table()
	want, _ := w.engines[0].poll(t, w.key, poll)
	after := w.engines[0].memory.Table()
	for _, e := range w.engines[1:] {
		got, refusal := e.poll(t, w.key, poll)
		if got != want || refusal != "" {
			t.Fatalf("%s: %+v\n%+v, %q, want\n%+v", e.name, poll, got, refusal, want)
		}
		if fields := e.look(t, w.key).fields; !maps.Equal(fields, after) {
			t.Fatalf("%s: %+v\n%v, want\n%v", e.name, poll, fields, after)
		}
	}
	if want.Code != lua.PollDone && !maps.Equal(before, after) {
		t.Fatalf("%+v wrote", want)
	}
	if others := out(after, poll.Member); want.Grant > 0 && want.Grant+others > lua.Pool {
		t.Fatalf("granted %d beside %d", want.Grant, others)
	}
	for what, is := range map[string]bool{
		"done": want.Code == lua.PollDone, "granted": want.Grant > poll.Hold, "stale": want.Code == lua.PollStale,
		"over": want.Code == lua.PollOver, "created": want.Flags&lua.TableCreated != 0,
		"lost": want.Flags&lua.WritesLost != 0, "quarantine": want.Flags&lua.Quarantine != 0 && poll.Hold > 0,
		"whole pool": out(after, "") == lua.Pool && len(after) > 5+1,
	} {
		if is {
			seen[what]++
		}
	}
	w.replies = append(w.replies, standingReply{w.senders[n], poll.Member, poll.Seq, want})
	return len(w.replies) - 1
}

// accept lets a reply arrive. A player ignores all but that to its last poll, and one that took
// longer than the right.
func (w *standingPlay) accept(n int) {
	r := w.replies[n]
	p := &w.players[r.to]
	switch {
	case r.id != p.id || r.seq != p.seq || p.ack == p.seq || r.reply.Code == lua.PollStale:
	case r.reply.Code == lua.PollOver || w.now >= p.sent+rightTTL:
		w.restart(r.to)
	default:
		p.ack, p.epoch = r.seq, r.reply.Epoch
		p.units, p.deadline = r.reply.Grant, p.sent+rightTTL
	}
}

// failover loses the polls of one player, as a replica that is behind when it becomes the primary.
func (w *standingPlay) failover(t *rapid.T, i int, seen map[string]int) {
	model := w.engines[0].memory
	before, fields := model.Clone(), model.Table()
	for range rapid.IntRange(1, 3).Draw(t, "lost") {
		w.accept(w.execute(t, w.send(t, i), seen))
	}
	model.SetTable(before)
	for _, e := range w.engines[1:] {
		e.client.Del(noContext, w.key)
		if fields == nil {
			continue
		}
		if err := e.client.HSet(noContext, w.key, fields).Err(); err != nil {
			t.Fatalf("%v", err)
		}
	}
}

// out returns the units that may be in use by the records of a table, without those of one member.
func out(table map[string]string, but string) (sum int64) {
	now, _ := strconv.ParseInt(table["u"], 10, 64)
	for name, record := range table {
		var seq, units, end int64
		if strings.HasPrefix(name, "m") && name != "m"+but {
			if _, err := fmt.Sscanf(record, "%d|%d|%d", &seq, &units, &end); err != nil {
				panic(err)
			}
			if end > now {
				sum += units
			}
		}
	}
	return sum
}

// check holds what is promised at every moment.
func (w *standingPlay) check(t *rapid.T) {
	if w.fails {
		return
	}
	used := int64(0)
	for i := range w.players {
		used += w.players[i].uses(w.now)
	}
	if used > lua.Pool {
		t.Fatalf("%d units may be used of %d: %+v\n%v", used, lua.Pool, w.players, w.engines[0].memory.Table())
	}
	// After a loss late calls may claim more than there is. Then nothing is granted.
	if sum := out(w.engines[0].memory.Table(), ""); sum > lua.Pool && !w.forgot {
		t.Fatalf("%d units are out of %d: %v", sum, lua.Pool, w.engines[0].memory.Table())
	}
}
