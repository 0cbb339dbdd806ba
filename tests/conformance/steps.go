package main

import (
	"errors"
	"fmt"
	"testing"
)

// steps lets code that reports to a test, as the harness does, run in a program:
// the end of a test is an error.
type steps struct {
	testing.TB // for the methods that nobody calls
	cleanups   []func()
	failed     bool
}

// failure is what a fatal failure panics with.
type failure struct{ error }

// try runs f and returns the failure that ended it.
func (s *steps) try(f func()) (err error) {
	defer func() {
		if r := recover(); r != nil {
			fatal, ours := r.(failure)
			if !ours {
				panic(r)
			}
			s.failed = true
			err = fatal.error
		}
	}()
	f()
	return nil
}

// end runs the clean-ups, the last one first.
func (s *steps) end() {
	for i := len(s.cleanups) - 1; i >= 0; i-- {
		s.cleanups[i]()
	}
}

func (s *steps) Helper()           {}
func (s *steps) Failed() bool      { return s.failed }
func (s *steps) Cleanup(f func())  { s.cleanups = append(s.cleanups, f) }
func (s *steps) Log(args ...any)   { fmt.Println(args...) }
func (s *steps) Fatal(args ...any) { panic(failure{errors.New(fmt.Sprint(args...))}) }

func (s *steps) Logf(format string, args ...any)   { fmt.Printf(format+"\n", args...) }
func (s *steps) Fatalf(format string, args ...any) { panic(failure{fmt.Errorf(format, args...)}) }
func (s *steps) Errorf(format string, args ...any) { s.failed = true; s.Logf(format, args...) }
