package rls

import (
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
)

// kind is what a note tells.
type kind int

const (
	tooMany kind = iota
	tooManyEntries
	badLimit
	notGivenBack
	noDomain
	noDescriptors
	kinds
)

// warn logs what an operator should mend, at most once a minute for each kind. It tells the domain and the keys, never
// the values: those are of clients, and may be secrets.
func (s *Service) warn(k kind, r *pb.RateLimitRequest, text string, args ...any) {
	now, last := s.now().UnixNano(), s.said[k].Load()
	if last != 0 && now-last < int64(time.Minute) || !s.said[k].CompareAndSwap(last, now) {
		return
	}
	s.log.Warn(text, append(args, "domain", r.GetDomain())...)
}
