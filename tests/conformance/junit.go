package main

import (
	"encoding/xml"
	"fmt"
	"io"
	"strings"
)

// testcase is one spec, or another node of the suite, in a JUnit report as ginkgo
// writes it (ginkgo/v2/reporters/junit_report.go).
type testcase struct {
	Name    string   `xml:"name,attr"` // [It] and the full text
	Status  string   `xml:"status,attr"`
	Skipped *problem `xml:"skipped"`
	Failure *problem `xml:"failure"`
	Error   *problem `xml:"error"`
}

type problem struct {
	Message string `xml:"message,attr"`
	Text    string `xml:",chardata"`
}

// readJUnit reads the test cases of a report.
func readJUnit(r io.Reader) ([]testcase, error) {
	var doc struct {
		Suites []struct {
			Cases []testcase `xml:"testcase"`
		} `xml:"testsuite"`
	}
	if err := xml.NewDecoder(r).Decode(&doc); err != nil {
		return nil, fmt.Errorf("JUnit report: %w", err)
	}
	var cases []testcase
	for _, s := range doc.Suites {
		cases = append(cases, s.Cases...)
	}
	return cases, nil
}

// spec returns the name of a spec; other nodes of the suite are none.
func (c testcase) spec() (name string, ok bool) { return strings.CutPrefix(c.Name, "[It] ") }

// reason is why a case was skipped by itself, or empty.
func (c testcase) reason() string {
	if c.Skipped == nil {
		return ""
	}
	reason, _ := strings.CutPrefix(c.Skipped.Message, "skipped - ")
	if reason == "skipped" {
		return ""
	}
	return oneLine(reason)
}

// cause is what a failed case says first.
func (c testcase) cause() string {
	for _, p := range []*problem{c.Failure, c.Error} {
		if p == nil {
			continue
		}
		for _, text := range []string{p.Text, p.Message} {
			if line := oneLine(text); line != "" {
				return line
			}
		}
	}
	return c.Status
}

// oneLine is the beginning of a text, up to 300 bytes, in one line.
func oneLine(text string) string {
	text = strings.TrimPrefix(strings.TrimSpace(text), "[FAILED] ")
	text = strings.Join(strings.Fields(text), " ")
	if len(text) > 300 {
		text = strings.ToValidUTF8(text[:300], "") + "…"
	}
	return text
}
