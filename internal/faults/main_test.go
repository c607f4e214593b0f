package faults

import (
	"testing"

	"github.com/tiered-limiter/tiered-limiter/internal/fleet"
)

func TestMain(m *testing.M) { fleet.Main(m) }
