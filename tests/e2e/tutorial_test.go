package e2e

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kombi-k8s/kombi/tests/e2e/harness"
)

// line is one command of a transcript with what it prints.
type line struct {
	number  int
	command string
	want    string
}

// testTutorial types the tutorial on custom resource definitions line by line
// and compares what is printed, but for times and the width of columns.
func testTutorial(t *testing.T, k *harness.Kombi) {
	for _, episode := range []string{"ep1", "ep3", "ep4"} {
		t.Run(episode, func(t *testing.T) {
			for _, l := range transcript(t, filepath.Join("testdata/tutorial", episode+".txt")) {
				typeLine(t, k, episode, l)
			}
		})
	}
}

func typeLine(t *testing.T, k *harness.Kombi, episode string, l line) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "bash", "-c", l.command)
	cmd.Dir = "testdata/tutorial"
	cmd.Env = k.Env()
	cmd.WaitDelay = 5 * time.Second
	out, _ := cmd.CombinedOutput() // an error is part of the lesson, and printed
	got := normalize(string(out))
	if !pattern(l.want).MatchString(got) {
		t.Errorf("%s.txt:%d: $ %s\nprints\n%s\nwant\n%s\ncompared as\n%s\nand\n%s", episode, l.number, l.command, out, l.want, got, normalize(l.want))
	}
}

// transcript reads commands, after "$ ", each with its output up to the next
// blank line. Here documents and continued lines belong to the command; lines
// after a blank one that start with "#" are comments.
func transcript(t *testing.T, path string) []line {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var (
		lines   []line
		heredoc = regexp.MustCompile(`<<'?EOF'?$`)
		text    = strings.Split(string(data), "\n")
	)
	for i := 0; i < len(text); i++ {
		command, ok := strings.CutPrefix(text[i], "$ ")
		if !ok {
			continue
		}
		l := line{number: i + 1, command: command}
		switch {
		case heredoc.MatchString(command):
			for i++; text[i] != "EOF"; i++ {
				l.command += "\n" + text[i]
			}
			l.command += "\nEOF"
		default:
			for strings.HasSuffix(text[i], `\`) {
				i++
				l.command += "\n" + text[i]
			}
		}
		for i++; i < len(text) && text[i] != ""; i++ {
			l.want += text[i] + "\n"
		}
		lines = append(lines, l)
	}
	return lines
}

// normalize makes what differs from run to run, and white space, the same. The
// API server lists the errors of a custom resource in no order.
func normalize(s string) string {
	text := strings.Split(s, "\n")
	for from := 0; from < len(text); from++ {
		to := from
		for to < len(text) && strings.HasPrefix(text[to], "* ") {
			to++
		}
		slices.Sort(text[from:to])
		from = max(from, to-1)
	}
	s = strings.Join(text, "\n")
	for _, r := range []struct{ from, to string }{
		{`\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ`, "<time>"},
		{`(?m)\b\d+[smhd](\d+[smh])?$`, "<age>"},
		{`\x1b\[[0-9;]*m`, ""},
		{`\s+`, " "},
	} {
		s = regexp.MustCompile(r.from).ReplaceAllString(s, r.to)
	}
	return strings.TrimSpace(s)
}

// pattern matches a normalized output; "..." stands for anything.
func pattern(want string) *regexp.Regexp {
	quoted := regexp.QuoteMeta(normalize(want))
	return regexp.MustCompile(`^` + strings.ReplaceAll(quoted, `\.\.\.`, `.*`) + `$`)
}
