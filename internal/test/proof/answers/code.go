package answers

import (
	"fmt"
	"go/format"
	"strings"
	"time"

	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// head and foot surround the steps of a sequence. p has the Limiters by process and policy, d is the last Decision.
const head = `// imports: context, errors, sync, sync/atomic, testing, testing/synctest, time; lua, remote, tiered
func TestAnswers%d(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := context.Background()
		store, rules := %s, []map[string]tiered.Limit{%s}
		policies := []tiered.Policy{%s}
		p, rs, d := make([][]*tiered.Limiter, %d), []tiered.Reservation(nil), tiered.Decision{}
		open := func(i int) {
			g, err := tiered.NewGroup(store, &tiered.Options{%s})
			if err != nil {
				t.Fatal(err)
			}
			p[i] = nil
			for _, x := range policies {
				l, err := g.NewLimiter(x)
				if err != nil {
					t.Fatal(err)
				}
				p[i] = append(p[i], l)
			}
		}
		for i := range p {
			open(i)
			defer func() { _ = p[i][0].Group().Close(ctx) }()
		}
		sleep := func(d time.Duration) { time.Sleep(d); synctest.Wait() }
		_, _, _ = rs, d, rules
		sleep(70 * time.Second)
`

const hanging = `
type hanging struct {
	*remote.Memory
	now, slow atomic.Bool
}

func (s *hanging) Run(ctx context.Context, timeout time.Duration, calls []lua.Call, results []remote.Result) {
	if !s.now.Load() {
		if s.slow.Load() {
			time.Sleep(100 * time.Microsecond)
		}
		s.Memory.Run(ctx, timeout, calls, results)
		return
	}
	time.Sleep(timeout)
	for i := range calls {
		results[i] = remote.Result{Err: context.DeadlineExceeded}
	}
}
`

// Code returns a test of package tiered_test that plays the sequence and fails at f.
func (s Sequence) Code(f *Fault) string {
	var b strings.Builder
	store, hangs, policies := "remote.NewMemory()", false, make([]string, 0, 2)
	for _, x := range s.Steps {
		hangs = hangs || x.Verb == Hang || x.Verb == Crowd
	}
	if hangs {
		store = "&hanging{Memory: remote.NewMemory()}"
	}
	for i, p := range s.Policies {
		policies = append(policies, policyCode(p, i, s.Rules[i]))
	}
	options := fmt.Sprintf("Budget: %s, MaxKeys: %d, Processes: %d, Random: func() float64 { return %v }",
		dur(s.Budget), s.MaxKeys, s.Fleet, s.Random)
	if s.Traced {
		options += ", Trace: &tiered.Trace{Decision: func(tiered.Decision) {}}"
	}
	rules := make([]string, len(s.Rules))
	for i, r := range s.Rules {
		for key, l := range r { // one at most
			rules[i] = fmt.Sprintf("%q: %s", key, limitCode(l))
		}
		rules[i] = "{" + rules[i] + "}"
	}
	fmt.Fprintf(&b, head, s.Seed, store, strings.Join(rules, ", "), strings.Join(policies, ", "), s.Processes, options)
	held := 0
	for i, x := range s.Steps {
		if x.After > 0 {
			fmt.Fprintf(&b, "\t\tsleep(%s)\n", dur(x.After))
		}
		code := s.code(x, held, hangs)
		if x.Empty {
			code = fmt.Sprintf("for range 100 {\n\tif d = p[%d][%d].AllowN(ctx, %q, %d); !d.Allowed {\n\t\tbreak\n\t}\n\tsleep(time.Millisecond)\n}\nsleep(%s)\n",
				x.Who%s.Processes, x.Which%len(s.Policies), keys[x.Key], x.N, dur(time.Duration(x.Pick)*25*ms)) + code
		}
		if f != nil {
			code += f.returns[i]
		}
		if x.Verb == Crowd {
			code += "\nstore.slow.Store(false)"
		}
		if x.Verb == Reserve {
			held++
		}
		if f != nil && i == f.step {
			code += "\n" + f.Check
		}
		if x.Verb == Look {
			code = "{\n" + code + "\n_ = v\n}"
		}
		for line := range strings.Lines(strings.TrimSpace(code) + "\n") {
			b.WriteString("\t\t" + line)
		}
	}
	if f != nil && f.step >= len(s.Steps) {
		b.WriteString("\t\t" + strings.ReplaceAll(f.Check, "\n", "\n\t\t") + "\n")
	}
	b.WriteString("\t})\n}\n")
	if hangs {
		b.WriteString(hanging)
	}
	text, err := format.Source([]byte(b.String()))
	if err != nil {
		panic(fmt.Sprintf("answers: %v:\n%s", err, b.String()))
	}
	return string(text)
}

// code returns a step as Go, without what judges do.
func (s Sequence) code(x Step, held int, hangs bool) string {
	who, key := x.Who%s.Processes, keys[x.Key]
	which := x.Which % len(s.Policies)
	l := fmt.Sprintf("p[%d][%d]", who, which)
	call := func(method string) string { return fmt.Sprintf("%s.%s(ctx, %q, %d)", l, method, key, x.N) }
	all := func(format string) string {
		var uses []string
		for i := range s.Policies {
			uses = append(uses, fmt.Sprintf("p[%d][%d].For(%q).N(%d)", who, i, key, x.N))
		}
		if x.Verb == Apart {
			uses = append(uses, fmt.Sprintf("%s.For(%q)", l, key))
		}
		return fmt.Sprintf(format, strings.Join(uses, ", "))
	}
	within := func(call string) string {
		return fmt.Sprintf("{\n\tctx, cancel := context.WithTimeout(ctx, %s)\n\t%s\n\tcancel()\n}", dur(x.Pause), call)
	}
	wait := within("_ = " + call("WaitN"))
	index := held - 1 - x.Pick%max(held, 1)
	text := "d = " + call("AllowN")
	switch x.Verb {
	case Hurry:
		text = within(text)
	case WaitAll:
		text = within(all("_ = tiered.All(%s).Wait(ctx)"))
	case Again:
		text = fmt.Sprintf("for range %d {\n\td = %s.Allow(ctx, %q)\n}", x.N, l, key)
	case Climb:
		ask := fmt.Sprintf("d = %s.Allow(ctx, %q)", l, key)
		text = "for range 40 {\n\tif " + ask + "; !d.Allowed {\n\t\tbreak\n\t}\n}\nsleep(d.RetryAfter)\n" + ask + "\n" + ask +
			"\nfor range 40 {\n\tif " + text + "; !d.Allowed {\n\t\tbreak\n\t}\n}"
	case Crowd:
		text = "store.slow.Store(true)\n{\n\tvar crowd sync.WaitGroup\n\tall := make([]tiered.Decision, " + fmt.Sprint(len(x.Costs)) + ")\n"
		for i, n := range x.Costs {
			text += fmt.Sprintf("\tcrowd.Go(func() { all[%d] = %s.AllowN(ctx, %q, %d) })\n\tsynctest.Wait()\n", i, l, key, n)
		}
		text += "\tcrowd.Wait()\n\tfor i := range all {\n\t\tif d = all[(i+" + fmt.Sprint(x.Pick) +
			")%len(all)]; !d.Allowed {\n\t\t\tbreak\n\t\t}\n\t}\n}"
	case Scout:
		text = "d = " + call("PeekN")
	case Back:
		if x.By != byKey {
			text = "d = " + useCode(x, l, key, x.N) + ".Allow(ctx)"
		}
		text = "for range 40 {\n\tif " + text + "; !d.Allowed {\n\t\tbreak\n\t}\n}"
	case Look:
		text = "v := " + call("PeekN") + "\nsynctest.Wait()\n" + text
	case Each:
		text = fmt.Sprintf("_, _ = %s.PeekEach(ctx, %q)", l, key)
	case Known:
		text = fmt.Sprintf("d = %s.PeekN(ctx, %q, 0)", l, key)
	case Reserve:
		text = "rs = append(rs, " + call("ReserveN") + ")\nd = rs[len(rs)-1].Decision"
	case Settle, Cancel:
		text = ""
		if index >= 0 {
			text = fmt.Sprintf("rs[%d].Cancel()", index)
			if x.Verb == Settle {
				text = fmt.Sprintf("rs[%d].Settle(%d)", index, x.N)
			}
		}
	case AtMost:
		text = "_, d = " + call("AllowAtMost")
	case Together:
		text = all("d = tiered.All(%s).Allow(ctx)")
	case Apart:
		text = all("each := make([]tiered.Decision, 3)\ntiered.All(%s).AllowSeparately(ctx, each)\nd = each[0]")
		text = "{\n" + text + "\n}"
	case Carry:
		text = "d = " + useCode(x, l, key, x.N) + ".Allow(ctx)"
	case Do:
		text = fmt.Sprintf("%s.Reserve(ctx, %q)%s", l, key, map[bool]string{true: ".Cancel()"}[x.Pick%2 == 1])
	case Wait:
		text = wait
	case Behind:
		text = "go func() " + wait + "()\nsynctest.Wait()"
	case Charge:
		text = fmt.Sprintf("_ = %s.For(%q).N(%d).Charge()", l, key, x.N)
	case Refund:
		text = "_ = " + call("Refund")
	case Reset:
		text = fmt.Sprintf("_ = %s.Reset(ctx, %q)", l, key)
	case Change:
		text = fmt.Sprintf("for i := range p {\n\tif x := p[i][%d].Policy(); i == %d || %t {\n\t\tx.Limit = %s\n\t\t_ = p[i][%d].SetPolicy(x)\n\t}\n}",
			which, who, x.Pick%2 == 0, limitCode(x.Limit), which)
	case Rule:
		text = fmt.Sprintf("rules[%d][%q] = %s\nfor i := range p {\n\tp[i][%[1]d].Refresh(%[2]q)\n}", which, key, limitCode(x.Limit))
	case Others:
		text = fmt.Sprintf("for i := range %d {\n\td = %s.Allow(ctx, fmt.Sprint(\"other\", i))\n}", x.N, l)
	case Figures:
		text = fmt.Sprintf("_ = %s.Group().Stats()", l)
	case Restart:
		text = fmt.Sprintf("_ = %s.Group().Close(ctx)\nopen(%d)", l, who)
	case Down:
		text = "store.Fail(errors.New(\"down\"))"
	case Hang:
		text = "store.now.Store(true)"
	case Well:
		if text = "store.Fail(nil)\nsleep(15 * time.Second)"; hangs {
			text = "store.now.Store(false)\n" + text
		}
	}
	return text
}

// useCode returns a use by the limit of a step as Go.
func useCode(x Step, limiter, key string, n int64) string {
	text := fmt.Sprintf("%s.For(%q).N(%d)", limiter, key, n)
	switch x.By {
	case byLimit:
		return text + ".WithLimit(" + limitCode(x.Limit) + ")"
	case byPlan:
		return fmt.Sprintf("%s.WithPlan(%q)", text, plan)
	}
	return text
}

// dur returns a duration as Go.
func dur(d time.Duration) string {
	for _, u := range []struct {
		unit time.Duration
		name string
	}{{time.Hour, "time.Hour"}, {time.Minute, "time.Minute"}, {second, "time.Second"}, {ms, "time.Millisecond"}, {time.Microsecond, "time.Microsecond"}} {
		if d >= u.unit && d%u.unit == 0 {
			return fmt.Sprintf("%d * %s", d/u.unit, u.name)
		}
	}
	return fmt.Sprint(int64(d))
}

func limitCode(l tiered.Limit) string {
	switch l {
	case tiered.Unlimited():
		return "tiered.Unlimited()"
	case tiered.Blocked():
		return "tiered.Blocked()"
	}
	text := fmt.Sprintf("tiered.Limit{Tokens: %d, Per: %s", l.Tokens, dur(l.Per))
	if l.Burst > 0 {
		text += fmt.Sprintf(", Burst: %d", l.Burst)
	}
	if l.Precision > 0 {
		text += ", Precision: " + dur(l.Precision)
	}
	return text + "}"
}

func policyCode(p tiered.Policy, which int, r rules) string {
	text := fmt.Sprintf("{Name: %q, Limit: %s", p.Name, limitCode(p.Limit))
	if p.Also != nil {
		text += ", Also: []tiered.Limit{"
		for i, l := range p.Also {
			if i > 0 {
				text += ", "
			}
			text += limitCode(l)
		}
		text += "}"
	}
	names := []string{"TokenBucket", "FixedWindow", "SlidingLog", "SlidingWindow"}
	field := func(set bool, name, value string) {
		if set {
			text += ", " + name + ": " + value
		}
	}
	field(p.Algorithm != 0, "Algorithm", "tiered."+names[p.Algorithm])
	field(p.Calendar, "Calendar", "true")
	field(p.Shadow, "Shadow", "true")
	field(p.FailMode == tiered.FailOpen, "FailMode", "tiered.FailOpen")
	field(p.FailMode == tiered.FailClosed, "FailMode", "tiered.FailClosed")
	field(p.Lease.Size != 0, "Lease", fmt.Sprintf("tiered.Lease{Size: %d}", p.Lease.Size))
	field(p.Lease.Period != 0, "Lease", fmt.Sprintf("tiered.Lease{Period: %s}", dur(p.Lease.Period)))
	field(p.MaxDebt != 0, "MaxDebt", fmt.Sprint(p.MaxDebt))
	field(p.Standing == tiered.StandingOn, "Standing", "tiered.StandingOn")
	for name, l := range p.Plans {
		field(true, "Plans", fmt.Sprintf("map[string]tiered.Limit{%q: %s}", name, limitCode(l)))
	}
	field(r != nil, "PerKey", fmt.Sprintf("func(key string) tiered.Limit { return rules[%d][key] }", which))
	return text + "}"
}
