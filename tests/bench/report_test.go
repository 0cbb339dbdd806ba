package main

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestFiguresAreJudgedAndCompared(t *testing.T) {
	r := &report{
		kombi: &readings{
			size: 80 * mib, cold: []time.Duration{3 * time.Second, 5 * time.Second, 2 * time.Second}, window: 10,
			idle: usage{anon: 200 * mb, cpu: 100 * time.Millisecond, written: 30000},
		},
		separate: &readings{cold: []time.Duration{6 * time.Second}, window: 10, idle: usage{anon: 400 * mb}},
	}
	var out bytes.Buffer
	r.print(&out, r.figures())
	for _, want := range [][]string{
		{"size of the program file(s)", "80.00 MiB", "≤ 75", "over"},
		{"start on nothing until the node is Ready", "3.00 s", "≤ 4", "pass", "6.00 s", "0.50"},
		{"private memory at idle", "200.00 MB", "≤ 220", "pass", "400.00 MB", "0.50"},
		{"CPU at idle", "1.00 % of a core", "pass"},
		{"written to disk at idle", "3.00 kB/s", "over"},
	} {
		line := lineWith(out.String(), want[0])
		for _, part := range want[1:] {
			if !strings.Contains(line, part) {
				t.Errorf("%q is missing in %q", part, line)
			}
		}
	}
	// What was not measured is empty, never zero.
	if line := lineWith(out.String(), "restart until"); strings.Contains(line, "0.00") || strings.Contains(line, "pass") {
		t.Errorf("a figure without a reading: %q", line)
	}
}

func TestTheTableGoesBetweenTheMarks(t *testing.T) {
	file := filepath.Join(t.TempDir(), "README.md")
	if err := os.WriteFile(file, []byte("before\n"+mark+"old\n"+mark+"after\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	r := &report{kombi: &readings{cold: []time.Duration{3 * time.Second}}}
	for range 2 { // again and again
		if err := r.intoMarkdown(file, r.figures()); err != nil {
			t.Fatal(err)
		}
	}
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	text := string(data)
	if !strings.HasPrefix(text, "before\n"+mark+"|") || !strings.HasSuffix(text, "|\n"+mark+"after\n") || strings.Contains(text, "old") {
		t.Errorf("got\n%s", text)
	}
	if line := lineWith(text, "node is Ready |"); !strings.Contains(line, "| 3.00 s | ≤ 4 |") {
		t.Errorf("got the line %q", line)
	}
	if err := os.WriteFile(file, []byte("no marks\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := r.intoMarkdown(file, r.figures()); err == nil {
		t.Error("a file without marks was changed")
	}
}

func lineWith(text, part string) string {
	for line := range strings.Lines(text) {
		if strings.Contains(line, part) {
			return line
		}
	}
	return ""
}

// The separate programs are the same code as the parts of Kombi.
func TestBothSidesHaveTheSameVersions(t *testing.T) {
	ours, theirs := versions(t, "../../go.mod"), versions(t, "upstream/go.mod")
	if len(theirs) < 50 {
		t.Fatalf("only %d modules in upstream/go.mod", len(theirs))
	}
	for module, version := range theirs {
		if own, shared := ours[module]; shared && own != version {
			t.Errorf("%s is %s in upstream/go.mod and %s in go.mod: run go mod edit there", module, version, own)
		}
	}
}

func versions(t *testing.T, file string) map[string]string {
	t.Helper()
	data, err := exec.Command("go", "mod", "edit", "-json", file).Output()
	if err != nil {
		t.Fatalf("go mod edit: %v", err)
	}
	var mod struct {
		Require []struct{ Path, Version string }
		Replace []struct {
			Old, New struct{ Path, Version string }
		}
	}
	if err := json.Unmarshal(data, &mod); err != nil {
		t.Fatal(err)
	}
	out := map[string]string{}
	for _, r := range mod.Require {
		out[r.Path] = r.Version
	}
	for _, r := range mod.Replace {
		out[r.Old.Path] = r.New.Version
	}
	return out
}
