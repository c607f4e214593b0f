package sim

import (
	"strconv"
	"strings"
	"time"

	"github.com/tiered-limiter/tiered-limiter/lua"
)

// callIn parses the arguments of EVAL or EVALSHA, if they are for the token bucket.
func callIn(args []string) (c lua.Call, ok bool) {
	script := lua.TokenBucket.Script()
	if len(args) < 4 || args[0] != script.SHA && args[0] != script.Source {
		return c, false
	}
	return lua.ParseCall(lua.TokenBucket, args[2], args[3:])
}

// replyIn parses a reply of the token bucket: on the wire it is an array of whole numbers.
func replyIn(answer string) (r lua.Reply, ok bool) {
	parts := strings.Split(strings.TrimSuffix(answer, "\r\n"), "\r\n")
	numbers := make([]any, 0, len(parts))
	for _, part := range parts[1:] {
		n, err := strconv.ParseInt(strings.TrimPrefix(part, ":"), 10, 64)
		if err != nil {
			return r, false // an error
		}
		numbers = append(numbers, n)
	}
	return lua.DecodeReply(lua.TokenBucket, numbers)
}

// someFields and allFields read the hashes for the audit.
func (m *luaEngine) someFields(bucket string, fields ...string) []string {
	if !m.redis.Exists(bucket) {
		return nil
	}
	all := make([]string, len(fields))
	for i, f := range fields {
		all[i] = m.redis.HGet(bucket, f)
	}
	return all
}

func (m *luaEngine) allFields(bucket string) map[string]string {
	names, _ := m.redis.HKeys(bucket) // none where there is no hash
	all := make(map[string]string, len(names))
	for _, f := range names {
		all[f] = m.redis.HGet(bucket, f)
	}
	return all
}

func (m *luaEngine) ttl(bucket string) time.Duration { return m.redis.TTL(bucket) }
