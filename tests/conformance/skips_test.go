package main

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	imageutils "k8s.io/kubernetes/test/utils/image"

	"github.com/kombi-k8s/kombi/tests/images/suiteimages"
)

func TestDocumentShowsTheSkipList(t *testing.T) {
	list, err := readSkips()
	if err != nil {
		t.Fatal(err)
	}
	doc, err := os.ReadFile("../../docs/conformance.md")
	if err != nil {
		t.Fatal(err)
	}
	var rows []string
	for _, s := range list.Skips {
		rows = append(rows, fmt.Sprintf("| `%s` | %s |", strings.ReplaceAll(s.Pattern, "|", `\|`), s.Reason))
	}
	for _, i := range list.Images {
		rows = append(rows, fmt.Sprintf("| %s | %s | %s |", i.Image, i.Reason, i.Specs))
	}
	for _, row := range rows {
		if !strings.Contains(string(doc), row+"\n") {
			t.Errorf("docs/conformance.md lacks this line:\n%s", row)
		}
	}
	// What the tables say beyond the list is not true any more.
	_, tables, _ := strings.Cut(string(doc), "## What is left out")
	if n := strings.Count(tables, "\n| ") - 2; n != len(rows) {
		t.Errorf("the tables of docs/conformance.md have %d lines, the list %d entries", n, len(rows))
	}
}

func TestEveryImageIsBuiltOrExplained(t *testing.T) {
	list, err := readSkips()
	if err != nil {
		t.Fatal(err)
	}
	var explained strings.Builder
	for _, i := range list.Images {
		explained.WriteString(i.Image + "\n")
	}
	for _, c := range imageutils.GetImageConfigs() {
		name := c.GetE2EImage()
		base, tag, _ := strings.Cut(name, ":")
		folder := base[:strings.LastIndex(base, "/")]
		last := base[len(folder)+1:]
		if slices.Contains(suiteimages.Names(), name) {
			continue
		}
		// An entry names the image, its whole folder, or an old tag of a built one.
		found := false
		for _, part := range []string{base, folder + "/*", strings.TrimPrefix(base, "registry.k8s.io/e2e-test-images/"), last + ":" + tag} {
			found = found || strings.Contains(explained.String(), part)
		}
		if !found {
			t.Errorf("%s is neither built nor in skips.yaml", name)
		}
	}
}

func TestSkipListMatches(t *testing.T) {
	list, err := readSkips()
	if err != nil {
		t.Fatal(err)
	}
	for name, skipped := range map[string]bool{
		"[sig-network] Services should serve a basic endpoint from pods [Conformance]":              false,
		"[sig-network] Networking should function for pod-Service: sctp [Feature:SCTPConnectivity]": true,
		"[sig-network] KubeProxy should set TCP CLOSE_WAIT timeout [Privileged]":                    true,
		"[sig-node] Pods should do something new [Alpha]":                                           true,
		"[sig-windows] [Feature:Windows] DNS should support configurable pod DNS servers":           true,
	} {
		if got := list.match(name) != nil; got != skipped {
			t.Errorf("%s: skipped is %v", name, got)
		}
	}
}
