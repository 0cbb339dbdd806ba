package config

import (
	"fmt"
	"strings"
)

// Problem is one reason why the configuration cannot be used: where, which key, why, and what to do.
type Problem struct {
	Origin Origin
	Key    string // empty when the problem is the file itself
	Cause  string
	Next   string
}

// Error is one sentence: "<where>: <key>: <cause>; <next action>".
func (p *Problem) Error() string {
	var b strings.Builder
	if where := p.Origin.where(p.Key); where != "" {
		b.WriteString(where + ": ")
	}
	b.WriteString(p.Cause)
	if p.Next != "" {
		b.WriteString("; " + p.Next)
	}
	return b.String()
}

// Problems is everything that is wrong, in the order in which it was found: the error of Load.
type Problems []*Problem

// Error puts each problem on a line of its own.
func (ps Problems) Error() string {
	lines := make([]string, len(ps))
	for i, p := range ps {
		lines[i] = p.Error()
	}
	return strings.Join(lines, "\n")
}

func (ps Problems) err() error {
	if len(ps) == 0 {
		return nil
	}
	return ps
}

// complain makes a problem whose place is filled in by whoever knows it.
func complain(next, cause string, args ...any) *Problem {
	return &Problem{Cause: fmt.Sprintf(cause, args...), Next: next}
}
