package remote

import (
	"strconv"
	"strings"
)

// longestSearch ends the search for a slot, which takes as many steps as there are shards, on average: nothing may hang.
const longestSearch = 10_000

// shardOf is what a shard's name has before the key, policy/4.2.11: how many shards there are, which it is, and the first number
// that puts it into its own part of the slots. By chance alone the shards of a key would often share a node, and those of keys of
// some lengths always: names that differ in one digit have slots that differ in the same few bits.
//
// The tag is before, number and after. Its CRC is linear, so before and after are read once, however many numbers are tried.
func shardOf(k Kind, policy, key string) string {
	before := policy + "/" + strconv.Itoa(k.Shards) + "." + strconv.Itoa(k.Shard) + "."
	head := crcOf(0, before)
	after := key
	if end := strings.IndexByte(after, '}'); end >= 0 {
		after = after[:end] // the tag ends there
	}
	tail, shift := crcOf(crcOf(0, "/"), after), shiftOf(1+len(after))
	var room [8]byte
	for i := 0; ; i++ {
		number := strconv.AppendInt(room[:0], int64(i), 10)
		slot := int(times(crcOf(head, number), shift)^tail) % slots
		if slot*k.Shards/slots == k.Shard || i == longestSearch {
			return before + string(number)
		}
	}
}
