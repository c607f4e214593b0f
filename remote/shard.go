package remote

import (
	"strconv"
	"strings"
)

// maxSearch bounds the search for a slot. On average it takes as many steps as there are shards.
const maxSearch = 10_000

// shardOf returns the part of a shard's name before the key, such as policy/4.2.11: the number of shards, the index
// of this one, and the first number that puts the shard into its own part of the slots. By chance alone the shards
// of a key would often share a node. For keys of some lengths they always would, because names that differ in one
// digit have slots that differ in the same few bits.
//
// The hash tag is before, number and after. Its CRC is linear, so before and after are read only once, however many
// numbers are tried.
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
		if slot*k.Shards/slots == k.Shard || i == maxSearch {
			return before + string(number)
		}
	}
}
