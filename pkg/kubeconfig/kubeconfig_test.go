package kubeconfig

import (
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"k8s.io/client-go/tools/clientcmd"

	"github.com/kombi-k8s/kombi/pkg/pki"
)

func TestKubeconfigsHoldTheIdentity(t *testing.T) {
	dir := t.TempDir()
	certs, err := pki.Open(pki.Options{Dir: filepath.Join(dir, "tls"), EncryptionConfig: filepath.Join(dir, "e"), NodeName: "n", ClusterDomain: "cluster.local", Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := certs.Client("system:kombi:admin", "system:masters")
	if err != nil {
		t.Fatal(err)
	}
	connection := certs.RESTConfig("https://127.0.0.1:6443", leaf)

	embedding := filepath.Join(dir, "sub", "kombi.yaml")
	if err := WriteEmbedding(embedding, 0o640, connection); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(embedding); err != nil || info.Mode().Perm() != 0o640 {
		t.Fatalf("%v %v", info, err)
	}
	read, err := clientcmd.BuildConfigFromFlags("", embedding)
	if err != nil {
		t.Fatal(err)
	}
	if read.Host != connection.Host || len(read.CertData) == 0 || len(read.KeyData) == 0 || len(read.CAData) == 0 || read.CertFile != "" {
		t.Fatalf("got %v", read)
	}

	referring := filepath.Join(dir, "part.kubeconfig")
	if err := WriteReferring(referring, connection); err != nil {
		t.Fatal(err)
	}
	before, err := os.Stat(referring)
	if err != nil || before.Mode().Perm() != 0o600 {
		t.Fatalf("%v %v", before, err)
	}
	if err := WriteReferring(referring, connection); err != nil {
		t.Fatal(err)
	}
	after, err := os.Stat(referring)
	if err != nil {
		t.Fatal(err)
	}
	if !os.SameFile(before, after) {
		t.Fatal("an equal file was written again")
	}
	if read, err = clientcmd.BuildConfigFromFlags("", referring); err != nil || read.CertFile != leaf.CertFile {
		t.Fatalf("got %v %v", read, err)
	}
}
