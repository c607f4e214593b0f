package harness

import (
	"bytes"
	"encoding/gob"
	"errors"
	"io"
	"reflect"
	"testing"

	"github.com/tiered-limiter/tiered-limiter/sim/faultnet"
)

// What is sent arrives: also that nothing is wrong with the network any more.
func TestPipe(t *testing.T) {
	var b bytes.Buffer
	s := newSender(&b)
	sent := []order{
		{Net: &faultnet.Faults{HoldOut: true}}, {Net: &faultnet.Faults{}}, {Ask: &Question{}}, {Report: true}, {Leave: 1}, {Addr: "a"},
	}
	for i := range sent {
		if err := s.send(&sent[i]); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.flush(); err != nil {
		t.Fatal(err)
	}
	s.close()
	if err := s.send(&order{}); !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("sent after the end: %v", err)
	}
	all := gob.NewDecoder(&b)
	for i, want := range sent {
		var got order
		if err := all.Decode(&got); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%d: %+v, %v, want %+v", i, got, err, want)
		}
	}
}
