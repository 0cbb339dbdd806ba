package images

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/opencontainers/go-digest"
)

// pass brings containerd up to date with the folder.
type pass struct {
	Options
	client *containerd.Client
	state  map[string]record
	report func(map[string]FileStatus)

	// refused remembers the files that are no image archives, so that they are
	// read, and complained about, only once.
	refused map[string]record
	last    map[string]FileStatus
}

// run looks at every file once. It returns true when one failed for a reason
// that may pass, such as a full disk.
func (p *pass) run(ctx context.Context) (again bool) {
	entries, err := os.ReadDir(p.Dir)
	if err != nil {
		p.Log.Error("images folder cannot be read", "dir", p.Dir, "err", err)
		return true
	}
	if p.refused == nil {
		p.refused = map[string]record{}
	}
	status := map[string]FileStatus{}
	for _, entry := range entries {
		if ctx.Err() != nil {
			return false
		}
		name := entry.Name()
		if ignored(name) || entry.IsDir() {
			continue
		}
		s, err := p.file(ctx, name)
		var refused *Refused
		switch {
		case err == nil:
		case ctx.Err() != nil:
			return false
		case errors.Is(err, os.ErrNotExist): // gone again; its event follows
			continue
		case errors.As(err, &refused):
			s.Error = fmt.Sprintf("image archive %s is refused: %s", name, refused)
		default:
			s.Error = fmt.Sprintf("image archive %s could not be imported and will be tried again: %v", name, err)
			again = true
		}
		if s.Error != "" && p.last[name].Error != s.Error {
			p.Log.Error(s.Error, "dir", p.Dir)
		}
		status[name] = s
		p.report(merged(p.last, status))
	}
	p.forget(status)
	p.last = status
	p.report(status)
	return again
}

// merged is the status while a pass is under way.
func merged(old, new map[string]FileStatus) map[string]FileStatus {
	all := make(map[string]FileStatus, len(old)+len(new))
	for name, s := range old {
		all[name] = s
	}
	for name, s := range new {
		all[name] = s
	}
	return all
}

// file imports one file unless that was done before.
func (p *pass) file(ctx context.Context, name string) (FileStatus, error) {
	status := FileStatus{File: name}
	f, err := os.Open(filepath.Join(p.Dir, name))
	if err != nil {
		return status, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil || !info.Mode().IsRegular() {
		return status, errors.Join(err, os.ErrNotExist)
	}
	if bad, ok := p.refused[name]; ok && bad.same(info) {
		return p.last[name], nil
	}
	known, seen := p.state[name]
	if seen && known.same(info) && p.present(ctx, known) {
		status.Images = known.Images
		return status, nil
	}
	if beingWritten(f) {
		status.Pending = true
		return status, nil
	}
	if seen && known.Size == info.Size() && !known.MTime.Equal(info.ModTime()) && p.present(ctx, known) {
		// Copied again or touched: reading is cheaper than importing.
		if sum, err := digest.FromReader(f); err == nil && sum == known.Digest {
			known.MTime = info.ModTime()
			p.state[name] = known
			status.Images = known.Images
			return status, saveState(p.StateFile, p.state)
		}
	}
	rec := record{Size: info.Size(), MTime: info.ModTime()}
	rec.Images, rec.Digest, err = p.importFile(ctx, f)
	if err != nil {
		var refused *Refused
		if errors.As(err, &refused) {
			p.refused[name] = rec
		}
		return status, err
	}
	delete(p.refused, name)
	p.state[name] = rec
	status.Images = rec.Images
	names := make([]string, 0, len(rec.Images))
	for _, img := range rec.Images {
		names = append(names, img.Name)
	}
	p.Log.Info("images imported", "file", name, "images", names)
	return status, saveState(p.StateFile, p.state)
}

func (p *pass) importFile(ctx context.Context, f *os.File) ([]Imported, digest.Digest, error) {
	for _, step := range []func() error{
		func() error { _, err := f.Seek(0, io.SeekStart); return err },
		func() error { return sniff(f) },
		func() error { _, err := f.Seek(0, io.SeekStart); return err },
	} {
		if err := step(); err != nil {
			return nil, "", err
		}
	}
	sum := digest.Canonical.Digester()
	r := io.TeeReader(f, sum.Hash())
	imgs, err := Import(ctx, p.client, r, ImportOptions{Snapshotter: p.Snapshotter, Pinned: true})
	if err != nil {
		return nil, "", err
	}
	// Whatever follows the compressed stream belongs to the file's digest too.
	if _, err := io.Copy(io.Discard, r); err != nil {
		return nil, "", err
	}
	return imgs, sum.Digest(), nil
}

// present tells whether every name that the file gave is still there, pinned. A
// name that something newer took over counts: else two files with the same name
// inside would replace each other for ever.
func (p *pass) present(ctx context.Context, rec record) bool {
	for _, want := range rec.Images {
		img, err := p.client.ImageService().Get(ctx, want.Name)
		if err != nil || img.Labels[LabelPinned] != PinnedValue {
			return false
		}
	}
	return len(rec.Images) > 0
}

// forget drops what is known of files that are gone. Their images stay, pinned:
// removing an archive to save space must not take images from running pods.
func (p *pass) forget(status map[string]FileStatus) {
	changed := false
	for name := range p.state {
		if _, ok := status[name]; !ok {
			delete(p.state, name)
			changed = true
		}
	}
	for name := range p.refused {
		if _, ok := status[name]; !ok {
			delete(p.refused, name)
		}
	}
	if changed {
		if err := saveState(p.StateFile, p.state); err != nil {
			p.Log.Warn(err.Error())
		}
	}
}
