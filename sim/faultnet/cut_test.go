package faultnet_test

import (
	"errors"
	"io"
	"syscall"
	"testing"
	"time"

	"github.com/tiered-limiter/tiered-limiter/sim/faultnet"
)

func TestCutBefore(t *testing.T) {
	inBubble(t, func(r *rig) {
		read := r.start(func() error { _, err := r.near.Read(make([]byte, 1)); return err })
		r.set(faultnet.Faults{CutBefore: 1})
		n, err := r.near.Write([]byte("unsent"))
		if n != 0 {
			r.Errorf("wrote %d", n)
		}
		r.reset("Write", err)
		r.reset("the Read that waited", <-read)
		if n, err := r.far.Read(make([]byte, 10)); n != 0 || err == nil {
			r.Errorf("the far end read %d, %v", n, err)
		}
		_, err = r.near.Write([]byte("again"))
		r.reset("Write", err)
		r.counted(faultnet.Counts{CutBefore: 1})
	})
}

func TestCutAfter(t *testing.T) {
	for name, f := range map[string]faultnet.Faults{"at once": {}, "late": {Delay: 10 * ms}} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(r *rig) {
				r.set(f)
				r.pass(r.near, r.far, "one")
				r.pass(r.far, r.near, "eins")
				f := f
				f.CutAfter = 1
				r.set(f)
				read := r.start(func() error {
					n, err := r.near.Read(make([]byte, 1))
					if n != 0 {
						r.Error("a byte of the reply arrived")
					}
					return err
				})
				r.pass(r.near, r.far, "two")
				if n := r.Counts().Cut(); n != 0 {
					r.Error("cut before the reply")
				}
				r.start(func() error { _, err := r.far.Write([]byte("zwei")); return err })
				r.reset("Read", <-read)
				if n, err := r.near.Write([]byte("three")); n != 0 {
					r.Error("wrote after the cut")
				} else {
					r.reset("Write", err)
				}
				if c := r.Counts(); c.CutAfter != 1 || c.Cut() != 1 {
					r.Errorf("%+v", c)
				}
			})
		})
	}
}

// What came in before the Write is no answer to it, and arrives.
func TestCutAfterSparesEarlierReplies(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.set(faultnet.Faults{Delay: 10 * ms, CutAfter: 1})
		r.say(r.far, "early")
		for r.Counts().Late == 0 { // until it has come in
			time.Sleep(ms)
		}
		r.say(r.near, "doomed")
		r.hear(r.far, "doomed")
		r.say(r.far, "late")
		r.hear(r.near, "early")
		_, err := r.near.Read(make([]byte, 10))
		r.reset("Read", err)
	})
}

func TestCutNow(t *testing.T) {
	for name, f := range map[string]faultnet.Faults{"no fault": {}, "late": {Delay: time.Hour}, "withheld": {HoldIn: true}} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(r *rig) {
				r.set(f)
				read := r.start(func() error { _, err := r.near.Read(make([]byte, 1)); return err })
				write := r.start(func() error { _, err := r.near.Write(make([]byte, 2*window)); return err })
				r.Cut()
				r.reset("Read", <-read)
				r.reset("Write", <-write)
				if _, err := io.Copy(io.Discard, r.far); err != nil && !errors.Is(err, syscall.ECONNRESET) {
					r.Errorf("the far end: %v", err)
				}
				if c := r.Counts(); c.CutNow != 1 {
					r.Errorf("%+v", c)
				}
				r.Cut() // nobody is left
				if c := r.Counts(); c.CutNow != 1 {
					r.Errorf("%+v", c)
				}
			})
		})
	}
}
