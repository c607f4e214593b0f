package local_test

import (
	"cmp"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/tiered-limiter/tiered-limiter/local"
	"github.com/tiered-limiter/tiered-limiter/lua"
)

var write = flag.Bool("write", false, "write what happens into testdata/trace")

// TestTraces plays testdata/trace/*.txt, step by step on one bucket. Every file is a list of
// traces:
//
//	== name
//	bucket cap=10 tokens=10             burst and refill per second; more in trace.policy
//	ask a 3        -> waiting send      who asks for 3 waits, and the bucket is to be sent
//	begin          -> direct want=3 min=3
//	accept grant=3 -> a admitted        the reply, who got an outcome by it, and
//	take 1         -> no | pot=0        what has changed behind the bar
//
// Behind the arrow stands all that comes of the step: the outcome, what the owner has to do, and
// the outcomes of those who waited. Behind the bar stands what has changed since the step before:
// what is in the pot, until when (by the time since the start), what is owed, and of that what no
// refill pays, and until when calls and requests are held off. After every step the books balance,
// and takers are let in exactly if nobody waits. At the end of each trace the bucket owes nothing
// soon after it has retired, and answers nobody when it is closed. See trace.do for the steps. "go
// test ./local -run TestTraces -args -write" writes what happens.
func TestTraces(t *testing.T) {
	files, err := filepath.Glob("testdata/trace/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no traces: %v", err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			head, traces, _ := strings.Cut(string(text), "\n== ")
			all := head + "\n"
			for want := range strings.SplitSeq(traces, "\n== ") {
				name, _, _ := strings.Cut(want, "\n")
				t.Run(name, func(t *testing.T) {
					got := played(t, want)
					if all += "\n== " + got + "\n"; got != strings.TrimSpace(want) && !*write {
						t.Errorf("got\n%s\n\nwant\n%s", got, want)
					}
				})
			}
			if *write && !t.Failed() {
				if err := os.WriteFile(file, []byte(strings.ReplaceAll(all, "\n\n\n", "\n\n")), 0o600); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}

// played is a trace with what came of its steps.
func played(t *testing.T, text string) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	steps, width := make([]string, len(lines)), 0
	for i, line := range lines {
		step, _, _ := strings.Cut(line, "->")
		if steps[i] = strings.TrimSpace(step); i > 0 && steps[i] != "" && steps[i][0] != '#' {
			width = max(width, min(len(steps[i]), 24))
		}
	}
	var tr *trace
	for i, step := range steps {
		words := strings.Fields(step)
		switch {
		case i == 0 || step == "" || step[0] == '#':
		case words[0] == "bucket":
			tr = newTrace(t, words[1:])
		default:
			if came := tr.step(step); came != "" {
				steps[i] = fmt.Sprintf("%-*s -> %s", width, step, came)
			}
		}
	}
	tr.end()
	return strings.Join(steps, "\n")
}

// trace is a bucket under way.
type trace struct {
	*rig
	start   time.Duration
	asked   map[string]*local.Waiter
	stamps  map[string]*local.Stamp
	call    local.Call   // begun last
	due     local.Effect // that named a time last
	gen     int64        // when tokens were taken last
	changed map[string]string
}

func newTrace(t *testing.T, words []string) *trace {
	p := local.Policy{Per: time.Second}
	policy(t, &p, words)
	r := newRig(t, p)
	return &trace{
		rig: r, start: r.now, asked: map[string]*local.Waiter{}, stamps: map[string]*local.Stamp{}, changed: map[string]string{
			"pot": "0", "until": "0s", "owes": "0/0", "hold-off": "0s", "back-off": "0s",
		},
	}
}

// step takes a step, and says what came of it.
func (tr *trace) step(line string) string {
	words := strings.Fields(line)
	came := tr.do(words[0], words[1:])
	for _, name := range slices.Sorted(maps.Keys(tr.asked)) {
		select {
		case v := <-tr.asked[name].C:
			tr.stamps[name] = tr.asked[name].Stamp
			came = append(came, name, outcome(v)+more(tr.asked[name])+",")
		default:
		}
	}
	if n := len(came) - 1; n >= 0 {
		came[n] = strings.TrimSuffix(came[n], ",")
	}
	tr.balance()
	tr.letsIn()
	owed, certain := tr.b.Owing()
	var changes []string
	for _, x := range [][2]string{
		{"pot", fmt.Sprint(tr.b.Pot())},
		{"until", tr.since(tr.b.Deadline())},
		{"owes", fmt.Sprintf("%d/%d%s", owed, certain,
			either(tr.b.Booked() != owed, fmt.Sprintf(" (%d booked)", tr.b.Booked()), ""))},
		{"hold-off", tr.since(tr.b.HoldOff())},
		{"back-off", tr.since(tr.b.BackOff())},
	} {
		if tr.changed[x[0]] != x[1] {
			tr.changed[x[0]] = x[1]
			changes = append(changes, x[0]+"="+x[1])
		}
	}
	if len(changes) > 0 {
		came = append(came, "|")
	}
	return strings.Join(slices.DeleteFunc(append(came, changes...), func(s string) bool { return s == "" }), " ")
}

// letsIn fails the test unless takers are let in if nobody waits, and not else. Nothing is taken.
func (tr *trace) letsIn() {
	tr.Helper()
	waits := false
	for _, w := range tr.asked {
		waits = waits || tr.b.Awaits(w)
	}
	held := tr.b.Pot()
	if tr.now < tr.b.Deadline() && held > 0 && tr.b.Hot().Holds(tr.now, held) == waits {
		tr.Fatalf("%d are held, somebody waits: %t, and takers are let in: %t", held, waits, !waits)
	}
}

// end has everybody leave and the bucket retire, which must come to an end, and then asks the
// closed bucket by every way.
func (tr *trace) end() {
	b := tr.b
	for _, w := range tr.asked {
		b.Leave(w)
	}
	if b.Calling() {
		b.Fail(tr.now, tr.call.Seq, false)
	}
	e := b.Retire(tr.now)
	for i := 0; !e.Done && !b.Closed() && i < 10; i++ {
		if tr.now = max(tr.now, e.Check, b.BackOff()); e.Check > 0 {
			e = b.Check(tr.now)
		}
		tr.seq++
		if c, effect := b.Begin(tr.now, local.Conditions{
			Seq: tr.seq, Lease: "me", Clock: true, Server: tr.server(), RoundTrip: ms, Fleet: 1,
		}); c.Seq != 0 {
			e, _ = b.Accept(tr.now, c.Seq, lua.Reply{TTLLeft: us(time.Second)})
		} else if effect != (local.Effect{}) {
			e = effect
		}
	}
	if b.Pending() || !b.Closed() && !b.Finish(tr.now) {
		tr.Fatalf("at its end it is never settled: %+v", b.Stats())
	}
	before := tr.balance()
	_, taken, renew := b.Hot().Take(tr.now, 1)
	_, refused := b.Hot().Refuse(tr.now, 5)
	_, returned := b.Return(tr.now, 1, local.FromRedis, b.Generation(), nil)
	_, _, _, charged := b.Charge(tr.now, 5)
	if taken || renew || refused || returned || charged || before.Held != 0 {
		tr.Errorf("closed: it takes %t, renews %t, refuses %t, takes back %t, charges %t: %+v", taken, renew, refused, returned,
			charged, before)
	}
	_, asked, e := tr.ask(1)
	credited, e2 := b.Credit(local.NewWaiter(), local.Fill)
	for _, v := range []local.Outcome{asked, credited, b.ByFailMode(tr.now, 1, 1)} {
		if v.Reason != local.Outdated {
			tr.Errorf("closed, it says %s", outcome(v))
		}
	}
	for _, e := range []local.Effect{e, e2, b.Probe(), b.Renew(tr.now), b.Check(tr.now)} {
		if e != (local.Effect{}) {
			tr.Errorf("closed, it wants %+v", e)
		}
	}
	if c := tr.begin(); c.Seq != 0 || tr.b.Stats() != before {
		tr.Errorf("closed, it sends %+v: %+v, before %+v", c, tr.b.Stats(), before)
	}
}

// do takes a step. Times are told from the start on, and "after" lets time pass.
func (tr *trace) do(step string, words []string) []string {
	args := map[string]string{}
	for i, w := range words {
		if name, v, ok := strings.Cut(w, "="); ok {
			args[name] = v
		} else {
			args[strconv.Itoa(i)] = w
		}
	}
	b, first := tr.b, args["0"]
	n := func() int64 { return count(tr.T, first) }
	fleet, times := count(tr.T, cmp.Or(args["fleet"], "1")), count(tr.T, cmp.Or(args["times"], "1"))
	switch step {
	case "after":
		tr.now += length(tr.T, first)
	case "at": // when it has to be looked at, when the lease ends, or when calls are made again
		switch first {
		case "check":
			tr.now = tr.due.Check
		case "until":
			tr.now = b.Deadline()
		case "back-off":
			tr.now = max(tr.now, b.BackOff())
		default:
			tr.now = tr.start + length(tr.T, first)
		}
	case "ask": // ask a 3, or of who waits and asks again: ask a 3 again=5, or while the node answers others: ask a 3 well=yes
		w := local.NewWaiter()
		if args["again"] != "" {
			w.AskAgain, w.More = true, count(tr.T, args["again"])
		}
		w.Well = args["well"] == "yes"
		tr.asked[first], tr.gen = w, b.Generation()
		v, e := b.Ask(tr.now, count(tr.T, args["1"]), tr.now+20*ms, w)
		return []string{outcome(v), tr.effect(e)}
	case "lease": // so many tokens, by two who wait
		tr.lease(n())
	case "count": // as refused, what "refuse" did
		b.Hot().CountRefused(n())
	case "seq":
		tr.seq = n()
	case "leave":
		return []string{either(b.Leave(tr.asked[first]), "left", "no")}
	case "take":
		tr.gen = b.Generation()
		left, ok, renew := b.Hot().Take(tr.now, n())
		for range times - 1 {
			left, ok, renew = b.Hot().Take(tr.now, n())
		}
		return []string{either(ok, fmt.Sprint("left ", left), "no"), either(renew, "renew", "")}
	case "renew":
		return []string{tr.effect(b.Renew(tr.now))}
	case "begin":
		tr.seq++
		c, e := b.Begin(tr.now, local.Conditions{
			Seq: tr.seq, Lease: "me", Clock: args["clock"] != "no", Server: tr.server(), RoundTrip: ms, Fleet: fleet,
		})
		if c.Seq != 0 {
			tr.call = c
		}
		return []string{tr.callOf(c), tr.effect(e)}
	case "accept":
		e, ok := b.Accept(tr.now, count(tr.T, cmp.Or(args["seq"], fmt.Sprint(tr.call.Seq))), tr.reply(args))
		return []string{either(ok, tr.effect(e), "ignored")}
	case "fail":
		return []string{tr.effect(b.Fail(tr.now, tr.call.Seq, first == "again"))}
	case "rejected":
		e, forgiven := b.Rejected(tr.now, tr.call.Seq)
		return []string{tr.effect(e), nonzero("forgiven", forgiven)}
	case "not-spent": // by the fallback, because the caller waits
		return []string{either(b.FallbackNotSpent(n()), "", "closed")}
	case "late":
		return []string{tr.effect(b.Late(tr.now, tr.call.Seq, 0))}
	case "drop":
		return []string{tr.effect(b.Drop(tr.now))}
	case "check":
		return []string{tr.effect(b.Check(tr.now))}
	case "probe":
		return []string{tr.effect(b.Probe())}
	case "expire":
		return []string{tr.effect(b.Expire(tr.now))}
	case "burn":
		b.Burn(tr.now)
	case "retire":
		return []string{tr.effect(b.Retire(tr.now))}
	case "revive":
		b.Revive()
	case "finish":
		return []string{either(b.Finish(tr.now), "closed", "no")}
	case "reset":
		w := local.NewWaiter()
		tr.asked[first] = w
		v, e := b.Credit(w, local.Fill)
		return []string{outcome(v), tr.effect(e)}
	case "return": // return 3 of=a, return 3 from=lease, from=fallback
		source := map[string]local.Source{"lease": local.FromLease, "fallback": local.FromFallback}[args["from"]]
		if args["from"] == "" {
			source = local.FromRedis
		}
		e, ok := b.Return(tr.now, n(), source, tr.gen, tr.stamps[args["of"]])
		return []string{either(ok, tr.effect(e), "closed")}
	case "charge":
		e, taken, forgiven, ok := b.Charge(tr.now, n())
		return []string{either(ok, tr.effect(e), "closed"), nonzero("taken", taken), nonzero("forgiven", forgiven)}
	case "alone": // alone 3, or alone 1 times=150: how many had which outcome
		if times == 1 {
			return []string{outcome(b.ByFailMode(tr.now, n(), fleet))}
		}
		outcomes := map[string]int{}
		for range times {
			outcomes[names[b.ByFailMode(tr.now, n(), fleet).Reason]]++
		}
		return []string{strings.TrimSuffix(fmt.Sprint(outcomes)[len("map["):], "]")}
	case "foresee":
		return []string{outcome(b.ForeseeFailMode(tr.now, n(), fleet))}
	case "refuse": // without a lock; "refuse waiter 3" for who waits and asks again
		v, refused := b.Hot().Refuse(tr.now, count(tr.T, words[len(words)-1]))
		if first == "waiter" {
			v, refused = b.Hot().RefuseWaiter(tr.now, count(tr.T, args["1"]))
		}
		return []string{either(refused, outcome(v), "no")}
	case "earliest":
		at, known := b.Earliest(tr.now, n())
		return []string{either(at == local.Never, "never", (at - tr.now).String()), either(known, "known", "")}
	case "told": // which limit has the least left, and until when it counts, and which refused
		tight, clear := b.Hot().LastReport(false)
		refuser, _ := b.Hot().LastReport(true)
		return []string{fmt.Sprint("tight=", tight), "until=" + tr.since(clear), fmt.Sprint("refused=", refuser)}
	case "lives": // whether the bucket must be in Redis still
		surely, _ := b.Lives(tr.now, b.Epoch())
		other, _ := b.Lives(tr.now, b.Epoch()+1)
		return []string{either(surely, "yes", "no"), either(other, "and so must another", "")}
	case "demand": // demand 30 sets the tokens per second that are wanted, demand says them
		if first != "" {
			b.SetDemand(float64(n()))
			return nil
		}
		b.Account(tr.now)
		return []string{fmt.Sprintf("%.0f", b.Demand())}
	case "peek":
		held, level := b.Peek(tr.now)
		return []string{fmt.Sprintf("held=%d level=%d", held, level)}
	case "stats":
		s := b.Stats()
		fields := strings.Fields(strings.Trim(fmt.Sprintf("%+v", s), "{}"))
		fields = slices.DeleteFunc(fields, func(f string) bool { return strings.HasSuffix(f, ":0") })
		return []string{cmp.Or(strings.Join(fields, " "), "none")}
	case "offers":
		return []string{fmt.Sprint(b.Offers(tr.now))}
	case "policy":
		p := *b.Policy()
		policy(tr.T, &p, words)
		_, e, _ := b.SetPolicy(tr.now, nil, &p)
		return []string{tr.effect(e)}
	case "forget": // that calls have failed, and what was refused
		b.ForgetDenial()
		b.Heal()
	default:
		tr.Fatalf("no such step: %q", step)
	}
	return nil
}
