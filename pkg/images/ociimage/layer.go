package ociimage

import (
	"archive/tar"
	"bytes"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"
	"time"
)

// File is one entry of a layer.
type File struct {
	// Path is absolute inside the image, with or without the leading slash.
	Path string
	// Mode holds the permission bits and, for a folder, fs.ModeDir.
	// setuid, setgid and sticky are kept.
	Mode fs.FileMode
	// UID and GID own the entry.
	UID, GID int
	// Data is what a regular file holds.
	Data []byte
	// Link is the target of a symbolic link; Data is ignored when it is set.
	Link string
}

// Layer writes files as one uncompressed layer. The same files give the same
// bytes: entries are sorted, missing parent folders are added with mode 0755,
// and every time stamp is the epoch.
func Layer(files []File) ([]byte, error) {
	entries := make(map[string]File, len(files))
	for _, f := range files {
		name := strings.TrimPrefix(path.Clean("/"+f.Path), "/")
		if name == "" {
			return nil, fmt.Errorf("layer entry %q has no name", f.Path)
		}
		if _, twice := entries[name]; twice {
			return nil, fmt.Errorf("layer entry %q is given twice", f.Path)
		}
		entries[name] = f
	}
	for name := range entries {
		for dir := path.Dir(name); dir != "."; dir = path.Dir(dir) {
			if _, ok := entries[dir]; !ok {
				entries[dir] = File{Mode: fs.ModeDir | 0o755}
			}
		}
	}
	names := make([]string, 0, len(entries))
	for name := range entries {
		names = append(names, name)
	}
	slices.Sort(names)

	var out bytes.Buffer
	tw := tar.NewWriter(&out)
	for _, name := range names {
		if err := writeEntry(tw, name, entries[name]); err != nil {
			return nil, fmt.Errorf("layer entry %q: %w", name, err)
		}
	}
	if err := tw.Close(); err != nil {
		return nil, fmt.Errorf("layer: %w", err)
	}
	return out.Bytes(), nil
}

func writeEntry(tw *tar.Writer, name string, f File) error {
	hdr := &tar.Header{
		Name:    name,
		Mode:    tarMode(f.Mode),
		Uid:     f.UID,
		Gid:     f.GID,
		ModTime: time.Unix(0, 0),
		Format:  tar.FormatPAX,
	}
	switch {
	case f.Link != "":
		hdr.Typeflag, hdr.Linkname, hdr.Mode = tar.TypeSymlink, f.Link, 0o777
	case f.Mode.IsDir():
		hdr.Typeflag, hdr.Name = tar.TypeDir, name+"/"
	default:
		hdr.Typeflag, hdr.Size = tar.TypeReg, int64(len(f.Data))
	}
	if err := tw.WriteHeader(hdr); err != nil {
		return err
	}
	if hdr.Typeflag != tar.TypeReg {
		return nil
	}
	_, err := tw.Write(f.Data)
	return err
}

// tarMode turns Go's mode bits into the ones that tar stores.
func tarMode(m fs.FileMode) int64 {
	mode := int64(m.Perm())
	for _, bit := range []struct {
		mode fs.FileMode
		tar  int64
	}{{fs.ModeSetuid, 0o4000}, {fs.ModeSetgid, 0o2000}, {fs.ModeSticky, 0o1000}} {
		if m&bit.mode != 0 {
			mode |= bit.tar
		}
	}
	return mode
}
