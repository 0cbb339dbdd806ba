package configcmd

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kombi-k8s/kombi/pkg/config"
)

func run(t *testing.T, args ...string) (string, error) {
	t.Helper()
	cmd := New(Options{Load: config.LoadOptions{
		Env: []string{"KOMBI_MAX_PODS=50"}, Hostname: func() (string, error) { return "box", nil }}})
	var out bytes.Buffer
	cmd.SetOut(&out)
	cmd.SetErr(&out)
	cmd.SilenceErrors = true
	cmd.SetArgs(args)
	err := cmd.Execute()
	return out.String(), err
}

func configFile(t *testing.T, text string) string {
	path := filepath.Join(t.TempDir(), "config.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestShowNamesOrigins(t *testing.T) {
	file := configFile(t, "tls-san: [a.example]\ntoken: abcdefghijklmnopqrst\n")
	out, err := run(t, "show", "--origin", "-c", file, "--debug")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"- a.example # " + file + ":1", "max-pods: 50 # environment KOMBI_MAX_PODS",
		"debug: true # flag --debug", "data-dir: /var/lib/kombi # default", "# token: ********  (" + file + ":2)"} {
		if !strings.Contains(out, want) {
			t.Errorf("%q is missing in\n%s", want, out)
		}
	}
	if strings.Contains(out, "abcdefgh") {
		t.Error("the token is printed")
	}
}

func TestShowPrintsAConfigurationFile(t *testing.T) {
	first, err := run(t, "show", "-c", configFile(t, "node-label: [a=b, \"c=true\"]\nwrite-kubeconfig-mode: 0640\n"))
	if err != nil {
		t.Fatal(err)
	}
	second, err := run(t, "show", "-c", configFile(t, first))
	if err != nil {
		t.Fatalf("%v in\n%s", err, first)
	}
	drop := func(s string) string { return s[strings.Index(s, "data-dir"):] } // the first line names the file
	if drop(first) != drop(second) {
		t.Errorf("first\n%s\nsecond\n%s", first, second)
	}
}

func TestShowJSON(t *testing.T) {
	out, err := run(t, "show", "-o", "json", "-c", configFile(t, "max-pods: 3\n"))
	if err != nil || !strings.Contains(out, `"max-pods": 50`) || !strings.Contains(out, `"write-kubeconfig-mode": "0600"`) {
		t.Errorf("%v\n%s", err, out)
	}
	if _, err := run(t, "show", "-o", "xml", "-c", configFile(t, "")); err == nil {
		t.Error("format xml was accepted")
	}
}

func TestValidate(t *testing.T) {
	file := configFile(t, "max-pods: 3\n")
	if out, err := run(t, "validate", "-c", file); err != nil || out != "The configuration is valid ("+file+").\n" {
		t.Errorf("%v: %s", err, out)
	}
	_, err := run(t, "validate", "-c", configFile(t, "nope: 3\nmax-pods: -1\n"), "--node-name=A")
	if err == nil || strings.Count(err.Error(), "\n") != 2 {
		t.Errorf("want three problems, got %v", err)
	}
	_, err = run(t, "validate", "--node-nam=x")
	if err == nil || err.Error() != "flag --node-nam: there is no such key; did you mean node-name?" {
		t.Errorf("got %v", err)
	}
	if _, err = run(t, "validate", "what"); err == nil {
		t.Error("an argument was accepted")
	}
}
