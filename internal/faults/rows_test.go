package faults

import (
	"slices"
)

// rows are all faults.
var rows = slices.Concat(redisRows, networkRows, fleetRows, topologyRows)
