package local

// debt is what was admitted without Redis and is to be charged to the bucket when Redis answers again.
//
// A bucket that nobody could reach was full meanwhile and threw its refill away: that pays for what was admitted
// without it. A bucket that others could reach threw nothing away, and all of the debt is charged. The bucket counts
// what it threw away (its overflow). The script charges max(owed, admitted − (overflow − seen)/fleet).
type debt struct {
	admitted int64 // tokens, since the overflow was last read
	certain  int64 // part of it that no refill pays: costs that turned out higher. Invariant: 0 ≤ certain ≤ admitted
}

// maxDebt is the most that one call reports. More is not exact in a double, and Redis would refuse the call. The rest
// goes with the next call.
const maxDebt = 1 << 52

// charge adds n tokens that no refill pays.
func (d *debt) charge(n int64) {
	d.admitted += n
	d.certain += n
}

// report is the part that one call can state.
func (d *debt) report() (admitted, certain int64) {
	admitted = min(d.admitted, maxDebt)
	return admitted, min(d.certain, admitted)
}

// accepted notes that Redis took what a call reported.
func (d *debt) accepted(c Call) {
	d.admitted -= c.Debt
	d.certain -= c.certain
}

// lower takes n tokens that were not used after all off the debt. It keeps what is certain, and what a call under way
// reports.
func (d *debt) lower(n, underWay int64) {
	d.admitted -= min(n, d.admitted-d.certain-underWay)
}
