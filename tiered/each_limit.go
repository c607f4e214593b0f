package tiered

import "context"

// AllowEach does what [Uses.Allow] does. It also writes the Decision of the i-th use given to [All] to each[i]. A use
// that refused has its own refusal. If the request is refused, a use that would have been admitted is Granted, with its
// tokens back in Remaining. One that was not decided, because another had refused before, has Reason Unknown. Its
// Remaining is what this process held and last saw in Redis. If each is longer than the uses, its last elements stay as
// they are. If it is shorter, the last uses write nothing.
func (u Uses) AllowEach(ctx context.Context, each []Decision) (d Decision) {
	var room [inlineParts]part
	r := u.request(room[:0])
	r.decide(ctx, &d)
	back := r.has(refused)
	for i := range u.n {
		use := u.at(i)
		if use.place >= len(each) {
			continue
		}
		for j := range r {
			if p := &r[j]; p.limiter == use.limiter && p.key == use.key {
				p.report(&each[use.place], back)
			}
		}
	}
	return d
}

// report writes the state of the part. back says that the request was refused, and that what the part took went back.
func (p *part) report(d *Decision, back bool) {
	switch {
	case p.limiter == nil, p.state == refused:
		p.write(d)
	case p.state == taken:
		as := *p // two uses may share the part
		if back && p.bucket != nil {
			as.left += p.cost
		}
		as.write(d)
	default:
		o, b := p.limiter.invalid(p.key, Unknown)
		o.write(d, p.key, p.cost, b, p.now)
	}
}
