package main

import (
	"archive/tar"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// registry serves the images of archives, for containers that always pull. It has the
// part of the distribution specification that pulling needs.
type registry struct {
	manifests map[string]ocispec.Descriptor // by reference, such as registry.k8s.io/pause:3.10
	blobs     map[string]section            // by digest
}

// section is where a blob is in an archive.
type section struct {
	archive      string
	offset, size int64
	mediaType    string // of manifests
}

func openRegistry(archives []string) (*registry, error) {
	r := &registry{manifests: make(map[string]ocispec.Descriptor), blobs: make(map[string]section)}
	for _, archive := range archives {
		if err := r.add(archive); err != nil {
			return nil, fmt.Errorf("registry: %s: %w", filepath.Base(archive), err)
		}
	}
	return r, nil
}

func (r *registry) add(archive string) error {
	f, err := os.Open(archive)
	if err != nil {
		return err
	}
	defer f.Close()
	var index ocispec.Index
	for tr := tar.NewReader(f); ; {
		header, err := tr.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		if header.Name == ocispec.ImageIndexFile {
			if err := json.NewDecoder(tr).Decode(&index); err != nil {
				return err
			}
		}
		if sum, ok := strings.CutPrefix(header.Name, "blobs/sha256/"); ok {
			// The reader has read no further than the header.
			at, err := f.Seek(0, io.SeekCurrent)
			if err != nil {
				return err
			}
			r.blobs["sha256:"+sum] = section{archive: archive, offset: at, size: header.Size}
		}
	}
	for _, desc := range index.Manifests {
		r.manifests[desc.Annotations[ocispec.AnnotationRefName]] = desc
		blob := r.blobs[desc.Digest.String()]
		blob.mediaType = desc.MediaType
		r.blobs[desc.Digest.String()] = blob
	}
	return nil
}

// ServeHTTP answers /v2/, /v2/NAME/manifests/REFERENCE and /v2/NAME/blobs/DIGEST. The
// registry that is meant is in the query, as containerd asks a mirror.
func (r *registry) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	path := strings.TrimPrefix(req.URL.Path, "/v2/")
	if path == "" {
		return
	}
	dir, sum := filepath.Split(path)
	name, manifest := strings.CutSuffix(dir, "/manifests/")
	if manifest && !strings.HasPrefix(sum, "sha256:") {
		sum = r.manifests[req.URL.Query().Get("ns")+"/"+name+":"+sum].Digest.String()
	}
	blob, ok := r.blobs[sum]
	if !ok {
		http.NotFound(w, req)
		return
	}
	f, err := os.Open(blob.archive)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	defer f.Close()
	w.Header().Set("Docker-Content-Digest", sum)
	w.Header().Set("Content-Type", "application/octet-stream")
	if blob.mediaType != "" {
		w.Header().Set("Content-Type", blob.mediaType)
	}
	http.ServeContent(w, req, "", time.Time{}, io.NewSectionReader(f, blob.offset, blob.size))
}

// serve starts the registry on a free port of the loopback device and returns its
// address. It ends with the program.
func (r *registry) serve() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", fmt.Errorf("registry: %w", err)
	}
	srv := &http.Server{Handler: r, ReadHeaderTimeout: time.Minute}
	go func() { _ = srv.Serve(l) }()
	return l.Addr().String(), nil
}

// mirror makes a node pull from the registry at addr what it would from host.
func mirror(dataDir, host, addr string) error {
	dir := filepath.Join(dataDir, "node", "certs.d", host)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	text := fmt.Sprintf("[host.\"http://%s\"]\n  capabilities = [\"pull\", \"resolve\"]\n", addr)
	return os.WriteFile(filepath.Join(dir, "hosts.toml"), []byte(text), 0o644)
}
