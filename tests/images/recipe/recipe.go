// Package recipe builds images for tests without a registry, from Go programs, from
// Debian packages and from files, and keeps them as archives: an archive is built
// again only when something that it is made of changes.
package recipe

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

// Recipe makes one archive of images.
type Recipe struct {
	// Name is the beginning of the archive's name.
	Name string
	// Inputs are hashed to see whether the archive is still right.
	Inputs func(b *Builder) ([]byte, error)
	// Build makes the images; it may write to b.Work.
	Build func(ctx context.Context, b *Builder) ([]*ociimage.Image, error)
}

// Builder knows the places that recipes work with.
type Builder struct {
	Repo string // root of the repository
	Work string // scratch folder, removed at the end
}

// Ensure returns one archive for each recipe, in the folder cache, building what is
// missing there. Several processes may call it at once.
func Ensure(ctx context.Context, cache string, recipes ...Recipe) (archives []string, err error) {
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
	for _, r := range recipes {
		archive, err := ensure(ctx, cache, repo, r)
		if err != nil {
			return nil, fmt.Errorf("test image %s: %w", r.Name, err)
		}
		archives = append(archives, archive)
	}
	return archives, nil
}

func ensure(ctx context.Context, cache, repo string, r Recipe) (string, error) {
	b := &Builder{Repo: repo}
	inputs, err := r.Inputs(b)
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(slices.Concat([]byte(runtime.GOOS+runtime.GOARCH+runtime.Version()), inputs))
	path := filepath.Join(cache, r.Name+"-"+hex.EncodeToString(sum[:8])+".tar")
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	if b.Work, err = os.MkdirTemp("", "kombi-testimage-"); err != nil {
		return "", err
	}
	defer os.RemoveAll(b.Work)
	imgs, err := r.Build(ctx, b)
	if err != nil {
		return "", err
	}
	var out bytes.Buffer
	if err := ociimage.WriteOCI(&out, imgs...); err != nil {
		return "", err
	}
	// Archives of older inputs are of no use to anybody. The pattern has the length
	// of the sum: the name of a recipe may be the beginning of another's.
	old, _ := filepath.Glob(filepath.Join(cache, r.Name+"-"+strings.Repeat("[0-9a-f]", 16)+".tar"))
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

// Sources is the content of folders and files of the repository, for inputs. Tests
// are left out.
func (b *Builder) Sources(paths ...string) ([]byte, error) {
	var all bytes.Buffer
	for _, p := range paths {
		err := filepath.WalkDir(filepath.Join(b.Repo, p), func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || strings.HasSuffix(path, "_test.go") {
				return err
			}
			data, err := os.ReadFile(path)
			fmt.Fprintf(&all, "%s %d\n", path[len(b.Repo):], len(data))
			all.Write(data)
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	return all.Bytes(), nil
}

// Common is what every image depends on: this package and what it builds with, and
// the paths given.
func (b *Builder) Common(more ...string) ([]byte, error) {
	return b.Sources(append([]string{"tests/images/recipe", "pkg/images/ociimage"}, more...)...)
}
