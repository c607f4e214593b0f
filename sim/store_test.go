package sim_test

import (
	"errors"
	"testing"

	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/sim"
)

// A call that is refused though no scenario asks for it ends the run with an error.
func TestUnaskedRefusals(t *testing.T) {
	for text, want := range map[string]bool{
		"RLARG argument 3": true, "RLCORRUPT field": true, "NOSCRIPT No matching script.": true,
		"WRONGTYPE Operation": false,
	} {
		for _, err := range []error{&remote.ScriptError{Text: text}, sim.Reply(text)} {
			if _, plain := errors.AsType[sim.Reply](err); plain && text[:2] == "RL" {
				continue // a script says that, and then it is a ScriptError
			}
			if got := sim.Unasked(&remote.Result{Err: err}) != nil; got != want {
				t.Errorf("%T %v: %v, want %v", err, err, got, want)
			}
		}
	}
	if sim.Unasked(&remote.Result{}) != nil || sim.Unasked(&remote.Result{Err: errors.New("LOADING")}) != nil {
		t.Error("an outage is not a refusal")
	}
}
