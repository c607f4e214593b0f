package remote

import (
	"testing"

	"go.uber.org/goleak"
)

// No test may leave a goroutine: the store owns none, and go-redis' end with their clients.
func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }
