package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

// Files of a report.
const (
	summaryFile  = "summary.json"
	junitFile    = "junit.xml"
	failuresFile = "failures.txt"
	skippedFile  = "skipped.txt"
)

// summary is summary.json.
type summary struct {
	Passed  int `json:"passed"`
	Failed  int `json:"failed"`
	Skipped int `json:"skipped"` // selected by the focus, but not run
	Seconds int `json:"seconds"`
	// Failures are the names of what failed.
	Failures []string `json:"failures"`

	causes  []string // of the failures
	skipped []string // names with reasons
}

// summarize counts the cases that focus selects. Those that it does not are in the
// report of ginkgo too.
func summarize(cases []testcase, o options, list *skipList) (*summary, error) {
	focus, err := regexp.Compile(o.Focus)
	if err != nil {
		return nil, err
	}
	skip, err := regexp.Compile(o.Skip)
	if err != nil {
		return nil, err
	}
	s := &summary{Failures: []string{}}
	for _, c := range cases {
		name, spec := c.spec()
		switch c.Status {
		case "passed":
			if spec {
				s.Passed++
			}
		case "skipped", "pending":
			if !spec || !focus.MatchString(name) {
				continue
			}
			why := c.reason()
			if why == "" && o.Skip != "" && skip.MatchString(name) {
				why = "SKIP"
			}
			if entry := list.match(name); why == "" && entry != nil {
				why = entry.Reason
			}
			if why == "" {
				why = "the run ended before"
			}
			s.Skipped++
			s.skipped = append(s.skipped, name+": "+why)
		default: // failed, panicked, timedout, interrupted, aborted
			if !spec {
				name = c.Name
			}
			s.Failed++
			s.Failures = append(s.Failures, name)
			s.causes = append(s.causes, c.cause())
		}
	}
	return s, nil
}

// report reads ginkgo's report and writes those of this program.
func report(o options, list *skipList, took time.Duration) (*summary, error) {
	path := filepath.Join(o.Out, junitFile)
	if err := os.Rename(filepath.Join(o.Out, "junit_01.xml"), path); err != nil {
		return nil, errors.New("the suite wrote no report")
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	cases, err := readJUnit(f)
	if err != nil {
		return nil, err
	}
	s, err := summarize(cases, o, list)
	if err != nil {
		return nil, err
	}
	s.Seconds = int(took.Seconds())
	return s, s.write(o.Out)
}

func (s *summary) write(dir string) error {
	data, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return err
	}
	var failures strings.Builder
	for i, name := range s.Failures {
		fmt.Fprintf(&failures, "%s: %s\n", name, s.causes[i])
	}
	slices.Sort(s.skipped)
	var skipped strings.Builder
	for _, line := range s.skipped {
		fmt.Fprintln(&skipped, line)
	}
	return errors.Join(
		os.WriteFile(filepath.Join(dir, summaryFile), append(data, '\n'), 0o644),
		os.WriteFile(filepath.Join(dir, failuresFile), []byte(failures.String()), 0o644),
		os.WriteFile(filepath.Join(dir, skippedFile), []byte(skipped.String()), 0o644),
	)
}

// print ends the output of the program.
func (s *summary) print(w io.Writer) {
	for i, name := range s.Failures {
		fmt.Fprintf(w, "FAILED %s: %s\n", name, s.causes[i])
	}
	fmt.Fprintf(w, "%d passed, %d failed, %d skipped, %s\n",
		s.Passed, s.Failed, s.Skipped, time.Duration(s.Seconds)*time.Second)
}
