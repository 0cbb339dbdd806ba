package main

import (
	"strings"
	"testing"
)

func TestSummary(t *testing.T) {
	input := `{"Action":"output","Package":"p","Test":"A","Output":"noise of A\n"}
{"Action":"pass","Package":"p","Test":"A","Elapsed":0.1}
{"Action":"output","Package":"p","Test":"B","Output":"    b_test.go:7: broken\n"}
{"Action":"fail","Package":"p","Test":"B"}
{"Action":"output","Package":"p","Test":"C","Output":"    c_test.go:9: needs root\n"}
{"Action":"skip","Package":"p","Test":"C"}
{"Action":"output","Package":"p","Output":"FAIL\n"}
{"Action":"fail","Package":"p","Elapsed":1.25}
{"Action":"build-output","ImportPath":"q","Output":"q.go:1: syntax error\n"}
{"Action":"output","Package":"q","Output":"FAIL q [build failed]\n"}
{"Action":"fail","Package":"q"}
{"Action":"skip","Package":"empty"}
go: a warning
`
	var b strings.Builder
	s := &summary{w: &b, output: make(map[string][]string), failedIn: make(map[string]bool)}
	if err := s.read(strings.NewReader(input)); err != nil {
		t.Fatal(err)
	}
	if s.passed != 1 || s.failed != 2 || s.skipped != 1 {
		t.Errorf("%d passed, %d failed, %d skipped; want 1, 2, 1", s.passed, s.failed, s.skipped)
	}
	want := `    b_test.go:7: broken
skipped p C: needs root
FAIL    p 1.2s
q.go:1: syntax error
FAIL q [build failed]
FAIL    q 0.0s
go: a warning
`
	if b.String() != want {
		t.Errorf("printed\n%s\nwant\n%s", b.String(), want)
	}
}
