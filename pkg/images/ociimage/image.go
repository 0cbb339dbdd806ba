// Package ociimage builds small container images in memory and writes them as
// archives that `docker load`, `podman load`, `ctr image import` and
// `kombi image import` read. It needs no registry, no container runtime and no
// privileges, and the same input always gives the same bytes, so an image's
// digest can be used to see whether it changed.
package ociimage

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// Spec says what an image is made of.
type Spec struct {
	// Name is the full reference, such as "kombi.test/web:v1".
	Name string
	// OS and Arch are the platform, such as "linux" and "amd64".
	OS, Arch string
	// Config holds entrypoint, environment, user and the like.
	Config ocispec.ImageConfig
	// Layers are uncompressed tar files, lowest first, as Layer makes them.
	Layers [][]byte
}

// Image is a built image: its blobs and their descriptors.
type Image struct {
	// Name is the full reference.
	Name string
	// Manifest describes the image; Target is the descriptor of the manifest.
	Manifest, Config Blob
	// Layers are lowest first.
	Layers []Blob
}

// Blob is content with the descriptor that names it.
type Blob struct {
	ocispec.Descriptor
	Bytes []byte
}

// Build makes the blobs of the image that spec describes.
func Build(spec Spec) (*Image, error) {
	switch {
	case spec.Name == "":
		return nil, errors.New("build image: it has no name")
	case spec.OS == "" || spec.Arch == "":
		return nil, fmt.Errorf("build image %s: it has no platform", spec.Name)
	case len(spec.Layers) == 0:
		return nil, fmt.Errorf("build image %s: it has no layers", spec.Name)
	}
	platform := ocispec.Platform{OS: spec.OS, Architecture: spec.Arch}
	img := &Image{Name: spec.Name}
	config := ocispec.Image{
		Platform: platform,
		Config:   spec.Config,
		RootFS:   ocispec.RootFS{Type: "layers"},
	}
	manifest := ocispec.Manifest{
		Versioned: specs.Versioned{SchemaVersion: 2},
		MediaType: ocispec.MediaTypeImageManifest,
	}
	for _, layer := range spec.Layers {
		b := newBlob(ocispec.MediaTypeImageLayer, layer)
		img.Layers = append(img.Layers, b)
		manifest.Layers = append(manifest.Layers, b.Descriptor)
		// The layers are not compressed, so digest and diff id are the same.
		config.RootFS.DiffIDs = append(config.RootFS.DiffIDs, b.Digest)
	}
	var err error
	if img.Config, err = jsonBlob(ocispec.MediaTypeImageConfig, config); err != nil {
		return nil, fmt.Errorf("build image %s: %w", spec.Name, err)
	}
	manifest.Config = img.Config.Descriptor
	if img.Manifest, err = jsonBlob(ocispec.MediaTypeImageManifest, manifest); err != nil {
		return nil, fmt.Errorf("build image %s: %w", spec.Name, err)
	}
	img.Manifest.Platform = &platform
	return img, nil
}

func newBlob(mediaType string, data []byte) Blob {
	return Blob{
		Descriptor: ocispec.Descriptor{
			MediaType: mediaType,
			Digest:    digest.FromBytes(data),
			Size:      int64(len(data)),
		},
		Bytes: data,
	}
}

func jsonBlob(mediaType string, v any) (Blob, error) {
	data, err := json.Marshal(v)
	if err != nil {
		return Blob{}, err
	}
	return newBlob(mediaType, data), nil
}
