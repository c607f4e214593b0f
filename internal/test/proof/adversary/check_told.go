package adversary

import "github.com/tiered-limiter/tiered-limiter/lua"

// toldInTime checks what a caller is told whom a window refuses while others hold tokens: no later time than the end of
// the first of their leases, because by then they may have given back. It knows of no clock that was set back.
func (w *World) toldInTime(c *lua.Call, answer *lua.Reply) {
	if !w.scope.windows() || answer.Code != lua.Denied || w.setBacks > 0 {
		return
	}
	for id, l := range w.state.Records {
		if id == c.Lease || l.Out == 0 || l.End <= max(answer.Now, w.state.Last) {
			continue
		}
		if told := answer.Now + answer.Retry; told > l.End {
			w.Failf("%q is told to come back in %d µs, and the lease of %s ends in %d", c.Lease, answer.Retry, id, l.End-answer.Now)
		}
	}
	if edge := answer.Now + answer.Reset; answer.Now+answer.Retry > edge && answer.Reset > 0 {
		w.Failf("%q is told to come back in %d µs, and nothing counts in %d", c.Lease, answer.Retry, answer.Reset)
	}
}
