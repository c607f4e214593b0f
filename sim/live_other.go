//go:build !unix

package sim

import "errors"

// newLive says why there is no such engine here: it stops processes, and lets them go on, by signals.
func newLive(*run) (world, error) {
	return nil, errors.New("sim: engine live needs a Unix system")
}

// playable lets it fail there.
func (p *plan) playable() error { return nil }
