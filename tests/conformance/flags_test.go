package main

import (
	"strings"
	"testing"
	"time"
)

func TestFlags(t *testing.T) {
	for _, tc := range []struct {
		args []string
		want string // in the error; empty for none
	}{
		{nil, ""},
		{[]string{"--focus", `\[sig-network\]`, "--nodes", "1", "--timeout", "5m"}, ""},
		{[]string{"--nodes", "3"}, "the runner does not start agents yet"},
		{[]string{"--nodes", "0"}, "begin at 1"},
		{[]string{"--procs", "0"}, "begin at 1"},
		{[]string{"--focus", "("}, "--focus is no regular expression"},
		{[]string{"--skip", "["}, "--skip is no regular expression"},
		{[]string{"--timeout", "5s"}, "begins at 1m"},
		{[]string{"services"}, `"services" is not expected`},
	} {
		o, err := flags(tc.args)
		switch {
		case tc.want == "" && err != nil:
			t.Errorf("%v: %v", tc.args, err)
		case tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)):
			t.Errorf("%v: error %v, want %q", tc.args, err, tc.want)
		case tc.args == nil && (o.Nodes != 1 || o.Procs != 4 || o.Timeout != 2*time.Hour || o.Focus != `\[Conformance\]`):
			t.Errorf("defaults are %+v", o)
		}
	}
}

func TestStepsTurnTheEndOfATestIntoAnError(t *testing.T) {
	s := new(steps)
	var order []int
	err := s.try(func() {
		s.Cleanup(func() { order = append(order, 1) })
		s.Cleanup(func() { order = append(order, 2) })
		s.Fatalf("node %d is gone", 3)
	})
	if err == nil || err.Error() != "node 3 is gone" || !s.Failed() {
		t.Errorf("error %v, failed %v", err, s.Failed())
	}
	if s.end(); len(order) != 2 || order[0] != 2 {
		t.Errorf("clean-ups ran as %v", order)
	}
	if err := new(steps).try(func() {}); err != nil {
		t.Error(err)
	}
}

func TestMissing(t *testing.T) {
	if err := missing([]string{"a", "b"}, []string{"b", "c", "a"}); err != nil {
		t.Error(err)
	}
	if err := missing([]string{"a", "b"}, []string{"b"}); err == nil || err.Error() != "missing: a" {
		t.Errorf("error %v", err)
	}
}
