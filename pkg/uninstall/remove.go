package uninstall

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// removeTree deletes path and what is below it, but nothing behind a mount
// point. It returns the mount points that it kept; path itself may be one, its
// content is then removed. Symbolic links are removed, never followed.
func removeTree(path string) (kept []string, err error) {
	r := remover{mounts: mountPoints()}
	parent, err := unix.Open(filepath.Dir(path), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENOENT) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", filepath.Dir(path), err)
	}
	defer unix.Close(parent)
	if dir, err := unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0); err == nil {
		r.empty(dir, path)
		if err := unix.Unlinkat(parent, filepath.Base(path), unix.AT_REMOVEDIR); err != nil {
			switch {
			case errors.Is(err, unix.EBUSY):
				r.kept = append(r.kept, path)
			case errors.Is(err, unix.ENOTEMPTY) && len(r.kept)+len(r.errs) > 0:
			default:
				r.fail(path, err)
			}
		}
	} else {
		r.remove(parent, filepath.Base(path), path)
	}
	return r.kept, errors.Join(r.errs...)
}

type remover struct {
	kept   []string
	errs   []error
	mounts map[string]bool // for kernels and sandboxes without openat2
}

func (r *remover) fail(path string, err error) {
	// Thousands of files can fail for one reason.
	if len(r.errs) < 5 {
		r.errs = append(r.errs, fmt.Errorf("cannot remove %s: %w", path, err))
	}
}

// remove deletes the entry name of the folder parent; path is for messages.
func (r *remover) remove(parent int, name, path string) {
	err := unix.Unlinkat(parent, name, 0)
	switch {
	case err == nil, errors.Is(err, unix.ENOENT):
		return
	case errors.Is(err, unix.EBUSY):
		r.kept = append(r.kept, path)
		return
	case !errors.Is(err, unix.EISDIR) && !errors.Is(err, unix.EPERM):
		r.fail(path, err)
		return
	}
	dir, openErr := r.open(parent, name, path)
	switch {
	case errors.Is(openErr, unix.EXDEV):
		r.kept = append(r.kept, path)
		return
	case errors.Is(openErr, unix.ENOTDIR):
		r.fail(path, err) // a file that may not be deleted: immutable
		return
	case openErr != nil:
		r.fail(path, openErr)
		return
	}
	before := len(r.kept) + len(r.errs)
	r.empty(dir, path)
	err = unix.Unlinkat(parent, name, unix.AT_REMOVEDIR)
	if err == nil || errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTEMPTY) && len(r.kept)+len(r.errs) > before {
		return
	}
	r.fail(path, err)
}

// empty removes the content of the folder and closes it.
func (r *remover) empty(fd int, path string) {
	dir := os.NewFile(uintptr(fd), path)
	defer dir.Close()
	for {
		names, err := dir.Readdirnames(4096)
		for _, name := range names {
			r.remove(fd, name, filepath.Join(path, name))
		}
		if errors.Is(err, io.EOF) {
			return
		}
		if err != nil {
			r.fail(path, err)
			return
		}
	}
}

// open opens a folder, and fails with EXDEV when it is a mount point.
func (r *remover) open(parent int, name, path string) (int, error) {
	fd, err := unix.Openat2(parent, name, &unix.OpenHow{
		Flags:   unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_NO_XDEV | unix.RESOLVE_NO_SYMLINKS,
	})
	// Old container sandboxes refuse the call instead of not knowing it.
	if !errors.Is(err, unix.ENOSYS) && !errors.Is(err, unix.EPERM) {
		return fd, err
	}
	return r.openOld(parent, name, path)
}

// openOld does the same by comparing the mounts of the two folders.
func (r *remover) openOld(parent int, name, path string) (int, error) {
	if r.mounts[path] {
		return -1, unix.EXDEV
	}
	fd, err := unix.Openat(parent, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	if a, b := mountID(parent), mountID(fd); a == "" || a != b {
		_ = unix.Close(fd)
		return -1, unix.EXDEV
	}
	return fd, nil
}

func mountID(fd int) string {
	b, _ := os.ReadFile(fmt.Sprintf("/proc/self/fdinfo/%d", fd))
	for line := range strings.Lines(string(b)) {
		if id, ok := strings.CutPrefix(line, "mnt_id:"); ok {
			return strings.TrimSpace(id)
		}
	}
	return ""
}
