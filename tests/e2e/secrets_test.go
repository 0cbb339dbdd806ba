package e2e

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/kombi-k8s/kombi/tests/e2e/harness"
)

// testSecrets looks into the datastore's files: the text of a ConfigMap is
// there, so the text of a Secret would be found if it were not encrypted.
func testSecrets(t *testing.T, k *harness.Kombi) {
	const open, secret = "readable-a7f3c1", "unreadable-5d92e0"
	k.Kubectl(t, "create", "configmap", "at-rest", "--from-literal=text="+open)
	k.Kubectl(t, "create", "secret", "generic", "at-rest", "--from-literal=text="+secret)
	if got := k.Kubectl(t, "get", "secret", "at-rest", "-o", `go-template={{.data.text | base64decode}}`); got != secret {
		t.Errorf("the API returns %q", got)
	}
	files, err := filepath.Glob(filepath.Join(k.DataDir, "server", "db", "state.db*"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no datastore: %v", err)
	}
	var stored []byte
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		stored = append(stored, content...)
	}
	if !bytes.Contains(stored, []byte(open)) {
		t.Errorf("the ConfigMap is not found in %v, so nothing can be said of the Secret", files)
	}
	if bytes.Contains(stored, []byte(secret)) {
		t.Error("the Secret is stored in the clear")
	}
}
