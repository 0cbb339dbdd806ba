package main

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/kombi-k8s/kombi/pkg/images/ociimage"
)

func TestRegistryServesArchives(t *testing.T) {
	layer, err := ociimage.Layer([]ociimage.File{{Path: "/pause", Data: []byte("program")}})
	if err != nil {
		t.Fatal(err)
	}
	img, err := ociimage.Build(ociimage.Spec{Name: "registry.k8s.io/e2e/pause:1", OS: "linux", Arch: "amd64", Layers: [][]byte{layer}})
	if err != nil {
		t.Fatal(err)
	}
	var archive bytes.Buffer
	if err := ociimage.WriteOCI(&archive, img); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "pause.tar")
	if err := os.WriteFile(path, archive.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
	r, err := openRegistry([]string{path})
	if err != nil {
		t.Fatal(err)
	}
	srv := httptest.NewServer(r)
	defer srv.Close()
	get := func(path string, want int) []byte {
		t.Helper()
		resp, err := http.Get(srv.URL + path)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		if err != nil || resp.StatusCode != want {
			t.Fatalf("%s: %s, %v", path, resp.Status, err)
		}
		return body
	}
	get("/v2/", http.StatusOK)
	var manifest ocispec.Manifest
	if err := json.Unmarshal(get("/v2/e2e/pause/manifests/1?ns=registry.k8s.io", http.StatusOK), &manifest); err != nil {
		t.Fatal(err)
	}
	if got := get("/v2/e2e/pause/blobs/"+manifest.Layers[0].Digest.String(), http.StatusOK); !bytes.Equal(got, layer) {
		t.Errorf("the layer has %d bytes, want %d", len(got), len(layer))
	}
	get("/v2/e2e/pause/manifests/"+img.Manifest.Digest.String(), http.StatusOK)
	get("/v2/e2e/pause/manifests/2?ns=registry.k8s.io", http.StatusNotFound)
	get("/v2/e2e/pause/manifests/1?ns=docker.io", http.StatusNotFound)
}
