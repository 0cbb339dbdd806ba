package ociimage

import (
	"archive/tar"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// archiveWriter writes the entries of an archive, each path once.
type archiveWriter struct {
	tw   *tar.Writer
	done map[string]bool
}

func newArchiveWriter(w io.Writer) *archiveWriter {
	return &archiveWriter{tw: tar.NewWriter(w), done: map[string]bool{}}
}

func (a *archiveWriter) add(name string, data []byte) error {
	if a.done[name] {
		return nil
	}
	a.done[name] = true
	hdr := &tar.Header{
		Typeflag: tar.TypeReg, Name: name, Mode: 0o644,
		Size: int64(len(data)), ModTime: time.Unix(0, 0),
	}
	if err := a.tw.WriteHeader(hdr); err != nil {
		return fmt.Errorf("image archive: %s: %w", name, err)
	}
	if _, err := a.tw.Write(data); err != nil {
		return fmt.Errorf("image archive: %s: %w", name, err)
	}
	return nil
}

func (a *archiveWriter) addJSON(name string, v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("image archive: %s: %w", name, err)
	}
	return a.add(name, data)
}

// WriteOCI writes images as a tar of an OCI image layout (image-spec v1.1,
// image-layout.md). Names are stored as full references.
func WriteOCI(w io.Writer, images ...*Image) error {
	a := newArchiveWriter(w)
	index := ocispec.Index{
		Versioned: specs.Versioned{SchemaVersion: 2},
		MediaType: ocispec.MediaTypeImageIndex,
	}
	if err := a.addJSON(ocispec.ImageLayoutFile, ocispec.ImageLayout{Version: ocispec.ImageLayoutVersion}); err != nil {
		return err
	}
	for _, img := range images {
		desc := img.Manifest.Descriptor
		desc.Annotations = map[string]string{ocispec.AnnotationRefName: img.Name}
		index.Manifests = append(index.Manifests, desc)
		for _, b := range slices.Concat([]Blob{img.Manifest, img.Config}, img.Layers) {
			if err := a.add("blobs/sha256/"+b.Digest.Encoded(), b.Bytes); err != nil {
				return err
			}
		}
	}
	if err := a.addJSON(ocispec.ImageIndexFile, index); err != nil {
		return err
	}
	return a.tw.Close()
}

// WriteDocker writes images in the format of `docker save` (image spec v1.2).
func WriteDocker(w io.Writer, images ...*Image) error {
	type entry struct {
		Config   string
		RepoTags []string
		Layers   []string
	}
	a := newArchiveWriter(w)
	var manifest []entry
	for _, img := range images {
		e := entry{
			Config:   img.Config.Digest.Encoded() + ".json",
			RepoTags: []string{img.Name},
		}
		if err := a.add(e.Config, img.Config.Bytes); err != nil {
			return err
		}
		for _, b := range img.Layers {
			name := b.Digest.Encoded() + "/layer.tar"
			if err := a.add(name, b.Bytes); err != nil {
				return err
			}
			e.Layers = append(e.Layers, name)
		}
		manifest = append(manifest, e)
	}
	if err := a.addJSON("manifest.json", manifest); err != nil {
		return err
	}
	return a.tw.Close()
}
