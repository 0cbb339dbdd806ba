package recipe

import (
	"context"
	"debug/elf"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/kombi-k8s/kombi/pkg/images/ociimage"
)

// Debian unpacks packages and all that they depend on into a new folder.
func (b *Builder) Debian(ctx context.Context, packages ...string) (root string, err error) {
	args := append([]string{
		"depends", "--recurse", "--no-recommends", "--no-suggests", "--no-conflicts",
		"--no-breaks", "--no-replaces", "--no-enhances",
	}, packages...)
	out, err := exec.CommandContext(ctx, "apt-cache", args...).Output()
	if err != nil {
		return "", fmt.Errorf("apt-cache depends: %w: images are made of Debian packages, so this needs Debian or one of its family", err)
	}
	var all []string
	for line := range strings.Lines(string(out)) {
		// The names of packages begin the line; those in <> are virtual.
		if name := strings.TrimSpace(line); name != "" && strings.HasPrefix(line, name) && name[0] != '<' {
			all = append(all, name)
		}
	}
	slices.Sort(all)
	return b.Unpack(ctx, slices.Compact(all)...)
}

// Unpack downloads Debian packages and unpacks them into a new folder.
func (b *Builder) Unpack(ctx context.Context, packages ...string) (root string, err error) {
	if root, err = os.MkdirTemp(b.Work, "root-"); err != nil {
		return "", err
	}
	download := root + ".download"
	if err := os.Mkdir(download, 0o755); err != nil {
		return "", err
	}
	// apt drops its privileges to a user that has to write here.
	if err := errors.Join(os.Chmod(b.Work, 0o755), os.Chmod(download, 0o777)); err != nil {
		return "", err
	}
	get := exec.CommandContext(ctx, "apt-get", append([]string{"download", "-q"}, packages...)...)
	get.Dir = download
	if text, err := get.CombinedOutput(); err != nil {
		return "", fmt.Errorf("apt-get download: %w: run `apt-get update` first\n%s", err, text)
	}
	debs, err := filepath.Glob(filepath.Join(download, "*.deb"))
	if err != nil {
		return "", err
	}
	for _, deb := range debs {
		if text, err := exec.CommandContext(ctx, "dpkg-deb", "-x", deb, root).CombinedOutput(); err != nil {
			return "", fmt.Errorf("dpkg-deb -x %s: %w\n%s", filepath.Base(deb), err, text)
		}
	}
	return root, nil
}

// Closure returns the programs, which are paths inside root, together with the
// libraries that they need, as files of a layer.
func Closure(root string, programs ...string) ([]ociimage.File, error) {
	var (
		files []ociimage.File
		todo  = programs
		seen  = map[string]bool{}
	)
	for len(todo) > 0 {
		path := todo[0]
		todo = todo[1:]
		if seen[path] {
			continue
		}
		seen[path] = true
		f, err := elf.Open(filepath.Join(root, path))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		needed, err := f.ImportedLibraries()
		for _, p := range f.Progs {
			if p.Type == elf.PT_INTERP {
				name := make([]byte, p.Filesz-1)
				if _, err := p.ReadAt(name, 0); err != nil {
					return nil, fmt.Errorf("%s: %w", path, err)
				}
				// The loader has its own well-known place.
				if !seen[string(name)] {
					seen[string(name)] = true
					data, err := os.ReadFile(filepath.Join(root, string(name)))
					if err != nil {
						return nil, err
					}
					files = append(files, ociimage.File{Path: string(name), Mode: 0o755, Data: data})
				}
			}
		}
		if err = errors.Join(err, f.Close()); err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		data, err := os.ReadFile(filepath.Join(root, path))
		if err != nil {
			return nil, err
		}
		target := path
		if strings.Contains(filepath.Base(path), ".so") {
			// One folder that every loader looks into.
			target = "/usr/lib/" + filepath.Base(path)
		}
		files = append(files, ociimage.File{Path: target, Mode: 0o755, Data: data})
		for _, lib := range needed {
			if seen["lib "+lib] {
				continue
			}
			seen["lib "+lib] = true
			if strings.HasPrefix(lib, "ld-linux") {
				continue
			}
			found, err := find(root, lib)
			if err != nil {
				return nil, fmt.Errorf("%s needs %s: %w", path, lib, err)
			}
			todo = append(todo, found)
		}
	}
	return files, nil
}

// find looks for a library below root and returns its path inside.
func find(root, name string) (string, error) {
	var found string
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.Name() == name && !d.IsDir() {
			found = strings.TrimPrefix(path, root)
			return fs.SkipAll
		}
		return nil
	})
	if err == nil && found == "" {
		err = errors.New("it is in none of the packages")
	}
	return found, err
}
