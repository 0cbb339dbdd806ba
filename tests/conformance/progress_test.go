package main

import (
	"bytes"
	"strings"
	"testing"
)

func TestProgressCountsWhatGinkgoPrints(t *testing.T) {
	const output = `Running Suite: Kubernetes e2e suite - /tmp
------------------------------
[SynchronizedBeforeSuite] PASSED [0.016 seconds]
[SynchronizedBeforeSuite]
------------------------------
SSSSSSSSSSSSSSSSSSSSSSSS
------------------------------
• [3.021 seconds]
[sig-network] Services should be there [Conformance] [sig-network, Conformance]
/src/service.go:10
------------------------------
S [SKIPPED] [0.120 seconds]
[sig-network] Services need two nodes
------------------------------
SSSSSSSSSSSS•
------------------------------
• [FAILED] [61.500 seconds]
[sig-network] DNS [It] should answer
------------------------------
• [PANICKED] [0.500 seconds]
[sig-network] DNS [It] panics
------------------------------
`
	var told bytes.Buffer
	p := newProgress(&told)
	// The output comes in parts that know nothing of lines.
	for rest := output; rest != ""; {
		n := min(7, len(rest))
		if _, err := p.Write([]byte(rest[:n])); err != nil {
			t.Fatal(err)
		}
		rest = rest[n:]
	}
	if p.passed != 1 || p.failed != 2 || p.skipped != 1 {
		t.Errorf("%d passed, %d failed, %d skipped", p.passed, p.failed, p.skipped)
	}
	for _, line := range []string{"failed: [sig-network] DNS [It] should answer\n", "panicked: [sig-network] DNS [It] panics\n"} {
		if !strings.Contains(told.String(), line) {
			t.Errorf("%q was not told:\n%s", line, told.String())
		}
	}
	p.tell()
	p.tell() // nothing is new
	if n := strings.Count(told.String(), "1 passed, 2 failed, 1 skipped"); n != 1 {
		t.Errorf("the numbers were told %d times:\n%s", n, told.String())
	}
}
