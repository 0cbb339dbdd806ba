// testsum reads the output of `go test -json`, prints what a person wants of
// it (one line for each package, the output of what failed, why tests were
// skipped) and ends with "N passed, N failed, N skipped". It fails when a test
// or package failed, or when nothing ran.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
)

// event is the part of test2json's output that is used; see `go doc test2json`.
type event struct {
	Action     string
	Package    string
	ImportPath string // of build-output
	Test       string
	Elapsed    float64 // seconds
	Output     string
}

type summary struct {
	w                       io.Writer
	passed, failed, skipped int
	output                  map[string][]string // by package and test
	failedIn                map[string]bool     // packages in which a test failed
}

func main() {
	s := &summary{w: os.Stdout, output: make(map[string][]string), failedIn: make(map[string]bool)}
	if err := s.read(os.Stdin); err != nil {
		fmt.Fprintf(os.Stderr, "testsum: %v\n", err)
		os.Exit(1)
	}
	fmt.Fprintf(s.w, "%d passed, %d failed, %d skipped\n", s.passed, s.failed, s.skipped)
	if s.failed > 0 || s.passed == 0 {
		os.Exit(1)
	}
}

func (s *summary) read(r io.Reader) error {
	lines := bufio.NewReader(r)
	for {
		line, err := lines.ReadString('\n')
		if line != "" {
			var e event
			if json.Unmarshal([]byte(line), &e) != nil {
				fmt.Fprint(s.w, line) // a message of the go command itself
			} else {
				s.take(e)
			}
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

func (s *summary) take(e event) {
	key := e.Package + " " + e.Test
	switch e.Action {
	case "build-output":
		fmt.Fprint(s.w, e.Output)
	case "output":
		s.output[key] = append(s.output[key], e.Output)
	case "pass", "fail", "skip":
		if e.Test == "" {
			s.endPackage(e, key)
		} else {
			s.endTest(e, key)
		}
		delete(s.output, key)
	}
}

func (s *summary) endTest(e event, key string) {
	switch e.Action {
	case "pass":
		s.passed++
	case "skip":
		s.skipped++
		fmt.Fprintf(s.w, "skipped %s %s: %s\n", e.Package, e.Test, reason(s.output[key]))
	case "fail":
		s.failed++
		s.failedIn[e.Package] = true
		fmt.Fprint(s.w, strings.Join(s.output[key], ""))
	}
}

func (s *summary) endPackage(e event, key string) {
	switch {
	case e.Action == "fail" && !s.failedIn[e.Package]:
		s.failed++ // did not compile, panicked or ran out of time
		fmt.Fprint(s.w, strings.Join(s.output[key], ""))
		fallthrough
	case e.Action == "fail":
		fmt.Fprintf(s.w, "FAIL    %s %.1fs\n", e.Package, e.Elapsed)
	case e.Action == "pass":
		fmt.Fprintf(s.w, "ok      %s %.1fs\n", e.Package, e.Elapsed)
	}
}

// reason is the message of t.Skip: the line with a file and a line number.
func reason(output []string) string {
	for _, line := range output {
		if _, text, ok := strings.Cut(line, ".go:"); ok {
			_, text, _ = strings.Cut(text, ": ")
			return strings.TrimSpace(text)
		}
	}
	return "no reason given"
}
