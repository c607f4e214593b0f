//go:build unix

package sim

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"sync"
	"testing"
)

// scope is the testing.TB of a run's servers. What fails is an error of the run, and not of the test that it is called from;
// what is to be cleared up is when the run ends, and not the test: a program does not return from its own.
type scope struct {
	testing.TB

	mu       sync.Mutex
	cleanups []func()
	err      error
}

// do calls what may fail, and returns why it did.
func (s *scope) do(f func()) error {
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	<-done
	s.mu.Lock()
	defer s.mu.Unlock()
	err := s.err
	s.err = nil
	return err
}

// close clears up.
func (s *scope) close() error {
	return s.do(func() {
		for _, f := range slices.Backward(s.cleanups) {
			f()
		}
	})
}

func (s *scope) Helper() {}

func (s *scope) Cleanup(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cleanups = append(s.cleanups, f)
}

func (s *scope) Error(args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.err = errors.Join(s.err, errors.New(fmt.Sprint(args...)))
}

func (s *scope) Errorf(format string, args ...any) { s.Error(fmt.Sprintf(format, args...)) }

func (s *scope) Fatal(args ...any) {
	s.Error(args...)
	runtime.Goexit()
}

func (s *scope) Fatalf(format string, args ...any) { s.Fatal(fmt.Sprintf(format, args...)) }

func (s *scope) TempDir() string {
	dir, err := os.MkdirTemp("", "sim")
	if err != nil {
		s.Fatal(err)
	}
	s.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}
