package lua

import (
	"strings"
	"testing"
)

// Each place is taken by a part of some script, and a part without a place is found at once.
func TestPartsHavePlaces(t *testing.T) {
	scripts := tokenBucketText + fixedWindowText + slidingWindowText + tokenBucketsText
	places := 0
	for line := range strings.Lines(callText + leaseText) {
		if name, is := strings.CutPrefix(strings.TrimSpace(line), place); is {
			places++
			if !strings.Contains(scripts, "\n"+place+name+"\n") {
				t.Errorf("no script has the part %s", name)
			}
		}
	}
	for a := range Algorithm(Algorithms) {
		if strings.Contains(a.Script().Source, "\n"+place) {
			t.Errorf("algorithm %d: a place was left in the text", a)
		}
	}
	if places == 0 {
		t.Error("there are no places")
	}
	defer func() {
		if recover() == nil {
			t.Error("a part without a place is dropped")
		}
	}()
	assemble(leaseText, "--[[ a script ]]\n--@ load\n--@ laod\n")
}
