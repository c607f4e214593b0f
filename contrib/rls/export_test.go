package rls

import (
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
)

// Unmarshal reads a request as the codec does if a text is no UTF-8: the tests compare it with the
// one of package proto.
func Unmarshal(data []byte, r *pb.RateLimitRequest) error { return unmarshal(data, r.ProtoReflect()) }

// ReadFile reads a file in parts, if it can be divided, or as a whole: Parse does what the file's
// size says.
func ReadFile(text []byte, inParts bool) (divided bool, c *Config, problems []error) {
	p := parser{config: &Config{domains: map[string]*domain{}}, file: "a.yaml"}
	if !inParts {
		if top := p.document(text); top != nil {
			p.domain(top)
		}
	} else if divided = p.parseParts(text); !divided {
		p.parse(text)
	}
	return divided, p.config, p.problems
}

// LargestPart is the most bytes of a file that are read at once.
func LargestPart(text []byte) (most int) {
	_, lists := parts(text)
	for _, l := range lists {
		most = max(most, len(l.text))
	}
	return most
}

// Told is for how many lists of keys it is known when a line told of them, and MostTold its bound:
// a client may invent keys.
func Told(s *Service) int {
	s.notes.mu.Lock()
	defer s.notes.mu.Unlock()
	return len(s.notes.told)
}

const MostTold = mostTold
