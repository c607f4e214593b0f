package faults

import (
	"testing"

	"github.com/tiered-limiter/tiered-limiter/internal/harness"
)

func TestMain(m *testing.M) { harness.Main(m) }
