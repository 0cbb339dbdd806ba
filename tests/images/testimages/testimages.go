// Package testimages builds the images that the tests run, from Go sources of
// this repository and from Debian packages, without a registry. An image is
// built again only when something that it is made of changes.
package testimages

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"

	"github.com/kombi-k8s/kombi/pkg/images/ociimage"
)

// The names of the images.
const (
	WebV1   = "kombi.test/web:v1"
	WebV2   = "kombi.test/web:v2"
	Busybox = "kombi.test/busybox:1"
	Redis   = "kombi.test/redis:7"
)

// recipe makes one archive of images.
type recipe struct {
	name string
	// inputs are hashed to see whether the archive is still right.
	inputs func(b *builder) ([]byte, error)
	build  func(ctx context.Context, b *builder) ([]*ociimage.Image, error)
}

func recipes() []recipe {
	return []recipe{
		{"busybox", busyboxInputs, buildBusybox},
		{"redis", redisInputs, buildRedis},
		{"web", webInputs, buildWeb},
	}
}

// builder knows the places that recipes work with.
type builder struct {
	repo string // root of the repository
	work string // scratch folder, removed at the end
}

// Ensure returns one archive for each recipe, in the folder cache, building
// what is missing there. Several processes may call it at once.
func Ensure(ctx context.Context, cache string) (archives []string, err error) {
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return nil, fmt.Errorf("test images: %w", err)
	}
	unlock, err := lock(filepath.Join(cache, ".lock"))
	if err != nil {
		return nil, fmt.Errorf("test images: %w", err)
	}
	defer unlock()
	repo, err := repository()
	if err != nil {
		return nil, fmt.Errorf("test images: %w", err)
	}
	for _, r := range recipes() {
		archive, err := ensure(ctx, cache, repo, r)
		if err != nil {
			return nil, fmt.Errorf("test image %s: %w", r.name, err)
		}
		archives = append(archives, archive)
	}
	return archives, nil
}

func ensure(ctx context.Context, cache, repo string, r recipe) (string, error) {
	b := &builder{repo: repo}
	inputs, err := r.inputs(b)
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(slices.Concat([]byte(runtime.GOOS+runtime.GOARCH+runtime.Version()), inputs))
	path := filepath.Join(cache, r.name+"-"+hex.EncodeToString(sum[:8])+".tar")
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	if b.work, err = os.MkdirTemp("", "kombi-testimage-"); err != nil {
		return "", err
	}
	defer os.RemoveAll(b.work)
	imgs, err := r.build(ctx, b)
	if err != nil {
		return "", err
	}
	var out bytes.Buffer
	if err := ociimage.WriteOCI(&out, imgs...); err != nil {
		return "", err
	}
	// Archives of older inputs are of no use to anybody.
	old, _ := filepath.Glob(filepath.Join(cache, r.name+"-*.tar"))
	for _, o := range old {
		_ = os.Remove(o)
	}
	tmp := path + ".tmp"
	if err := os.WriteFile(tmp, out.Bytes(), 0o644); err != nil {
		return "", err
	}
	return path, os.Rename(tmp, path)
}

func lock(path string) (unlock func(), err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return func() { f.Close() }, nil
}

// repository is the folder that holds go.mod, at or above the working folder.
func repository() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for d := dir; ; d = filepath.Dir(d) {
		if _, err := os.Stat(filepath.Join(d, "go.mod")); err == nil {
			return d, nil
		}
		if d == "/" {
			return "", fmt.Errorf("no go.mod at or above %s: run from inside the repository", dir)
		}
	}
}

// sources is the content of the folders of the repository, for inputs.
func (b *builder) sources(dirs ...string) ([]byte, error) {
	var all bytes.Buffer
	for _, dir := range dirs {
		err := filepath.WalkDir(filepath.Join(b.repo, dir), func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || strings.HasSuffix(path, "_test.go") {
				return err
			}
			data, err := os.ReadFile(path)
			fmt.Fprintf(&all, "%s %d\n", path[len(b.repo):], len(data))
			all.Write(data)
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	return all.Bytes(), nil
}

// common is what every image depends on: this package and what it builds with.
func (b *builder) common(more ...string) ([]byte, error) {
	return b.sources(append([]string{"tests/images/testimages", "pkg/images/ociimage"}, more...)...)
}
