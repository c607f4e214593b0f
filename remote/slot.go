package remote

import (
	"strings"
)

// slots is the number of hash slots of a Redis Cluster (Redis Cluster Specification, "Key distribution model").
const slots = 16384

// slotOf returns the hash slot of a key, as every Cluster node computes it: the CRC16 of what is between the first
// opening brace and the first closing brace after it, or of the whole key if that is empty.
func slotOf(key string) int {
	if open := strings.IndexByte(key, '{'); open >= 0 {
		if end := strings.IndexByte(key[open+1:], '}'); end > 0 {
			key = key[open+1 : open+1+end]
		}
	}
	crc := uint16(0)
	for i := range len(key) {
		crc = crc<<8 ^ crcTable[byte(crc>>8)^key[i]]
	}
	return int(crc) % slots
}

// polynomial is x¹⁶ + x¹² + x⁵ + 1, without its highest power.
const polynomial = 0x1021

// crcTable is the table of CRC-16/XMODEM: most significant bit first, starting at 0.
var crcTable = func() (table [256]uint16) {
	for i := range table {
		crc := uint16(i) << 8
		for range 8 {
			carry := crc & 0x8000
			crc <<= 1
			if carry != 0 {
				crc ^= polynomial
			}
		}
		table[i] = crc
	}
	return table
}()
