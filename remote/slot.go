package remote

import "strings"

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
	return int(crcOf(0, key)) % slots
}

// crcOf returns the CRC of a text that follows a text with the given CRC.
func crcOf[T string | []byte](crc uint16, text T) uint16 {
	for i := range len(text) {
		crc = crc<<8 ^ crcTable[byte(crc>>8)^text[i]]
	}
	return crc
}

// shiftOf returns the factor by which n further bytes multiply a CRC: the CRC of a and b is times(crcOf(0, a),
// shiftOf(len(b))) ^ crcOf(0, b). A CRC is the remainder of a polynomial over two elements, and n bytes shift it by
// 8n powers of x.
func shiftOf(n int) uint16 {
	crc := uint16(1)
	for range n {
		crc = crc<<8 ^ crcTable[crc>>8]
	}
	return crc
}

// times returns the product of two remainders.
func times(a, b uint16) (product uint16) {
	for range 16 { // the powers of b, highest first
		product = product<<1 ^ polynomial&-(product>>15)
		product ^= a & -(b >> 15)
		b <<= 1
	}
	return product
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
