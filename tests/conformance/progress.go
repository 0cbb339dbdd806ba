package main

import (
	"bytes"
	"fmt"
	"io"
	"regexp"
	"strings"
	"sync"
	"time"
)

// progress reads what ginkgo prints in its verbose mode and tells how far it is: one
// line for each failure when it happens, and one with the numbers from time to time.
type progress struct {
	out   io.Writer
	began time.Time

	mu                      sync.Mutex
	rest                    []byte // of an unfinished line
	failure                 string // the next line is the name of a spec that did this
	passed, failed, skipped int
	told                    int // specs that the last line counted
}

func newProgress(out io.Writer) *progress {
	return &progress{out: out, began: time.Now()}
}

// result is the line before the name of a spec that ended: • [3.2 seconds],
// • [FAILED] [60.1 seconds], S [SKIPPED] [0.1 seconds] and the like.
var result = regexp.MustCompile(`^(?:•|S) (?:\[([A-Z][A-Z ]*)\] )?\[[\d.]+ seconds\]`)

// Write takes the next part of the output.
func (p *progress) Write(data []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.rest = append(p.rest, data...)
	for {
		line, after, ok := bytes.Cut(p.rest, []byte("\n"))
		if !ok {
			return len(data), nil
		}
		p.line(string(line))
		p.rest = append(p.rest[:0], after...)
	}
}

func (p *progress) line(line string) {
	if p.failure != "" && line != "" {
		fmt.Fprintf(p.out, "%s: %s\n", p.failure, line)
		p.failure = ""
	}
	found := result.FindStringSubmatch(line)
	if found == nil {
		return
	}
	switch found[1] {
	case "":
		p.passed++
	case "SKIPPED":
		p.skipped++
	default:
		p.failed++
		p.failure = strings.ToLower(found[1])
	}
}

// every prints the numbers each interval in which they changed, until stop.
func (p *progress) every(interval time.Duration) (stop func()) {
	tick := time.NewTicker(interval)
	done := make(chan struct{})
	go func() {
		for {
			select {
			case <-done:
				return
			case <-tick.C:
				p.tell()
			}
		}
	}()
	return func() { tick.Stop(); close(done) }
}

func (p *progress) tell() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if all := p.passed + p.failed + p.skipped; all != p.told {
		p.told = all
		fmt.Fprintf(p.out, "%6s: %d passed, %d failed, %d skipped\n",
			time.Since(p.began).Round(time.Second), p.passed, p.failed, p.skipped)
	}
}
