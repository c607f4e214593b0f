package rls

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"hash"
	"sync"
)

// hasher makes keys that do not tell what they were made of to anybody without the secret.
type hasher struct{ pool sync.Pool }

// shortestSecret is the least length of a secret, in bytes.
const shortestSecret = 16

func newHasher(secret []byte) *hasher {
	return &hasher{sync.Pool{New: func() any { return hmac.New(sha256.New, secret) }}}
}

// key returns 144 bits of the HMAC of a key, as text. Two keys do not become one.
func (h *hasher) key(key string) string {
	mac := h.pool.Get().(hash.Hash)
	mac.Reset()
	_, _ = mac.Write([]byte(key)) // never fails
	var room [sha256.Size]byte
	sum := mac.Sum(room[:0])
	h.pool.Put(mac)
	return "hmac:" + base64.RawURLEncoding.EncodeToString(sum[:18])
}

// Key returns the key that a joined list of values has in the limiter: as it is or, with
// Options.HashKey, its hash.
func (s *Service) Key(key string) string {
	if s.hasher == nil {
		return key
	}
	return s.hasher.key(key)
}
