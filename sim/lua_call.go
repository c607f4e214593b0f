package sim

import (
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/tiered-limiter/tiered-limiter/lua"
	"github.com/tiered-limiter/tiered-limiter/remote"
)

// callIn is the call that the arguments of EVAL or EVALSHA make, if they are for the token bucket; package lua says what each is.
func callIn(args []string) (c remote.Call, ok bool) {
	if len(args) < 4 || args[0] != lua.TokenBucket.SHA && args[0] != lua.TokenBucket.Source {
		return c, false
	}
	c.Bucket, c.Fleet = args[2], 1
	short := []*int64{&c.Cap, &c.Tokens, &c.Period, &c.Want, &c.Min, &c.TTL, &c.Deadline, &c.Epoch, &c.Now}
	unused := int64(0)
	long := []*int64{
		&c.Cap, &c.Tokens, &c.Period, &c.Want, &c.Min, &c.TTL, &unused, &c.Seq, &c.Ack, &c.Hold, &c.Ret, &c.Refund, &c.Debt,
		&c.Deadline, &c.Epoch, &c.Now, &unused, &c.Owed, &c.Seen, &c.Fleet,
	}
	numbers, places := args[3:], short
	if len(numbers) > len(short) {
		c.Lease, places = numbers[6], long
		numbers = slices.Clone(numbers)
		numbers[6] = "0"
	}
	for i, text := range numbers {
		if i >= len(places) {
			return c, false
		}
		var err error
		if *places[i], err = strconv.ParseInt(text, 10, 64); err != nil {
			return c, false
		}
	}
	return c, true
}

// replyIn is a reply of the token bucket, as far as somebody here looks at it: an array of whole numbers.
func replyIn(answer string) (r remote.Reply, ok bool) {
	parts := strings.Split(strings.TrimSuffix(answer, "\r\n"), "\r\n")
	if len(parts) != 11 || parts[0] != "*10" {
		return r, false // an error
	}
	var n [10]int64
	for i := range n {
		var err error
		if n[i], err = strconv.ParseInt(strings.TrimPrefix(parts[i+1], ":"), 10, 64); err != nil {
			return r, false
		}
	}
	return remote.Reply{Code: remote.Code(n[0]), Grant: n[1], Level: n[2], Now: n[6], Epoch: n[7], Flags: remote.Flags(n[8])}, true
}

// values and fields are how the auditor reads the hashes.
func (m *miniature) values(bucket string, fields ...string) []string {
	if !m.redis.Exists(bucket) {
		return nil
	}
	all := make([]string, len(fields))
	for i, f := range fields {
		all[i] = m.redis.HGet(bucket, f)
	}
	return all
}

func (m *miniature) fields(bucket string) map[string]string {
	names, _ := m.redis.HKeys(bucket) // none where there is no hash
	all := make(map[string]string, len(names))
	for _, f := range names {
		all[f] = m.redis.HGet(bucket, f)
	}
	return all
}

func (m *miniature) left(bucket string) time.Duration { return m.redis.TTL(bucket) }
