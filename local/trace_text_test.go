package local_test

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/tiered-limiter/tiered-limiter/local"
	"github.com/tiered-limiter/tiered-limiter/lua"
)

// How a trace writes what goes into a bucket and what comes of it.

// policy sets what words say.
func policy(t *testing.T, p *local.Policy, words []string) {
	counts := map[string]*int64{"cap": &p.Cap, "tokens": &p.Tokens, "size": &p.Size}
	lengths := map[string]*time.Duration{"per": &p.Per, "period": &p.Period, "window": &p.Window}
	for _, w := range words {
		name, v, _ := strings.Cut(w, "=")
		switch {
		case counts[name] != nil:
			*counts[name] = count(t, v)
			continue
		case lengths[name] != nil:
			*lengths[name] = length(t, v)
			continue
		}
		switch name {
		case "mode":
			p.FailMode = map[string]local.FailMode{"local": local.FailLocal, "open": local.FailOpen, "closed": local.FailClosed}[v]
		case "by":
			p.Call.Algorithm = map[string]lua.Algorithm{
				"fixed": lua.FixedWindow, "sliding": lua.SlidingWindow, "log": lua.SlidingLog, "buckets": lua.TokenBuckets,
			}[v]
		case "no-lease":
			p.NoLease = true
		case "unleased":
			p.Unleased = true
		case "rule":
			p.Rule = map[string]local.Rule{"blocked": local.Blocked, "unlimited": local.Unlimited, "limit": local.ByLimit}[v]
		default:
			t.Fatalf("no such part of a policy: %q", w)
		}
	}
	if p.Call.Algorithm != lua.TokenBucket {
		p.Call.Period = us(p.Per)
	}
}

func (tr *trace) server() int64 { return 1e15 + us(tr.now-tr.start) }

// reply is what Redis answers. A lease lasts for a second.
func (tr *trace) reply(args map[string]string) (r lua.Reply) {
	if !tr.call.Direct {
		r.TTLLeft = us(time.Second)
	}
	counts := map[string]*int64{
		"grant": &r.Grant, "level": &r.Level, "active": &r.Active, "epoch": &r.Epoch, "overflow": &r.Overflow, "stamp": &r.Stamp,
		"which": &r.Which,
	}
	lengths := map[string]*int64{"retry": &r.Retry, "left": &r.TTLLeft, "reset": &r.Reset}
	for name, v := range args {
		switch {
		case counts[name] != nil:
			*counts[name] = count(tr.T, v)
		case lengths[name] != nil:
			*lengths[name] = us(length(tr.T, v))
		case v == "unapplied":
			r.Flags |= lua.Unapplied
		case name != "seq":
			tr.Fatalf("no such part of a reply: %q", name)
		}
	}
	return r
}

// callOf says what a call states.
func (tr *trace) callOf(c local.Call) string {
	if c.Seq == 0 {
		return "nothing"
	}
	said := either(c.Direct, "direct ", "") + either(c.Unleased, "unleased ", "")
	instant := func(us int64) string { return (time.Duration(us-1e15) * time.Microsecond).String() }
	say := func(name, v string, says bool) {
		if says {
			said += name + "=" + v + " "
		}
	}
	say("cap", fmt.Sprint(c.Policy.Cap), c.Policy.Cap != tr.p.Cap)
	for _, x := range []struct {
		name string
		n    int64
	}{
		{"want", c.Want},
		{"min", c.Min},
		{"hold", c.Hold},
		{"ret", c.Ret},
		{"debt", c.Debt},
		{"owed", c.Owed},
		{"seen", c.Seen},
		{"epoch", c.Epoch},
		{"at", c.At},
		{"to", c.To},
		{"given-back", c.SettledNow()},
	} {
		say(x.name, fmt.Sprint(x.n), x.n != 0)
	}
	say("refund", either(c.Refund > 3*lua.MostTokens, "all", fmt.Sprint(c.Refund)), c.Refund > 0)
	say("deadline", instant(c.Deadline), c.Refund > 0)
	say("since", instant(c.Since), c.Since > 0 && c.Since != tr.server())
	say("reset", instant(c.Reset), c.Reset > 0)
	say("ack", fmt.Sprint(c.Ack, "/", c.Seq), !c.Direct && c.Ack != c.Seq-1)
	return strings.TrimSpace(either(said == "", "empty", said))
}

var names = map[local.Reason]string{
	local.Granted: "admitted", local.Limited: "refused", local.Unavailable: "failed", local.Waiting: "waiting",
	local.Outdated: "outdated", local.Fallback: "fallback", local.FallbackSpent: "fallback-spent", local.Open: "opened",
}

func outcome(v local.Outcome) string {
	said := names[v.Reason] + either(v.Left != 0, fmt.Sprint(" left=", v.Left), "")
	return said + either(v.Retry != 0, " retry="+v.Retry.String(), "")
}

// more is what a waiter learned besides.
func more(w *local.Waiter) string {
	if !w.AskAgain {
		return ""
	}
	return either(w.MoreGranted > 0, fmt.Sprint(" more=", w.MoreGranted), "") + either(w.Short, " short", "")
}

// effect says what the owner has to do, and notes when.
func (tr *trace) effect(e local.Effect) string {
	said := either(e.Send, "send ", "") + either(e.Done, "done ", "")
	if e.Check != 0 {
		tr.due = e
		said += "check=" + (e.Check - tr.now).String()
	}
	return strings.TrimSpace(said)
}

func (tr *trace) since(at time.Duration) string {
	switch at {
	case 0:
		return "0s"
	case local.Never:
		return "never"
	}
	return (at - tr.start).String()
}

func either(yes bool, a, b string) string {
	if yes {
		return a
	}
	return b
}

func nonzero(name string, n int64) string { return either(n != 0, fmt.Sprint(name, "=", n), "") }

func count(t *testing.T, s string) int64 {
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func length(t *testing.T, s string) time.Duration {
	d, err := time.ParseDuration(s)
	if err != nil {
		t.Fatal(err)
	}
	return d
}
