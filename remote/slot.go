package remote

// slots is the number of hash slots of a Redis Cluster (Redis Cluster Specification, "Key distribution model").
const slots = 16384

// slotOf returns the hash slot of a name without a hash tag, as every Cluster node computes it: its CRC-16/XMODEM, most
// significant bit first, starting at 0.
func slotOf(name string) int {
	const polynomial = 0x1021 // x¹⁶ + x¹² + x⁵ + 1, without its highest power
	crc := uint16(0)
	for i := range len(name) {
		crc ^= uint16(name[i]) << 8
		for range 8 {
			carry := crc & 0x8000
			crc <<= 1
			if carry != 0 {
				crc ^= polynomial
			}
		}
	}
	return int(crc) % slots
}
