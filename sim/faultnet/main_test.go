package faultnet

import (
	"testing"

	"github.com/redis/go-redis/v9/logging"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	logging.Disable() // go-redis would write a line for each connection that the tests break
	goleak.VerifyTestMain(m)
}
