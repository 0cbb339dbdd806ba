package storage

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// removeAt removes the entry name of the open directory parent, with all that is
// below. Links are not followed, and every directory is opened by its name in
// the one above, so that whoever still has the volume open cannot lead the way
// out of it. Mount points are not entered: what is mounted is somebody else's.
func removeAt(ctx context.Context, parent *os.File, name, shown string) error {
	shown = filepath.Join(shown, name)
	if err := ctx.Err(); err != nil {
		return err
	}
	fd := int(parent.Fd())
	err := unix.Unlinkat(fd, name, 0)
	switch {
	case err == nil, errors.Is(err, unix.ENOENT):
		return nil
	case !errors.Is(err, unix.EISDIR) && !errors.Is(err, unix.EPERM):
		return explainRemoval(shown, err)
	}
	// EPERM is what POSIX says for directories, and also what immutable files
	// give; which of the two it is shows now.
	dir, openErr := openDir(fd, name)
	switch {
	case errors.Is(openErr, unix.ENOENT):
		return nil
	case errors.Is(openErr, unix.ENOTDIR), errors.Is(openErr, unix.ELOOP):
		return explainRemoval(shown, err)
	case openErr != nil:
		return explainRemoval(shown, openErr)
	}
	defer dir.Close()
	mounted, err := isMountRoot(dir, parent)
	if err != nil {
		return explainRemoval(shown, err)
	}
	if mounted {
		return fmt.Errorf("something is mounted at %s; unmount it", shown)
	}
	if err := empty(ctx, dir, shown); err != nil {
		return err
	}
	if err := unix.Unlinkat(fd, name, unix.AT_REMOVEDIR); err != nil && !errors.Is(err, unix.ENOENT) {
		return explainRemoval(shown, err)
	}
	return nil
}

// empty removes everything in dir. It goes on after an error, so that one file
// that cannot be removed does not keep the space of all others.
func empty(ctx context.Context, dir *os.File, shown string) error {
	for {
		// From the start each time, because removing entries while reading a
		// directory may make the reading skip some.
		if _, err := dir.Seek(0, io.SeekStart); err != nil {
			return err
		}
		var failed error
		removed, err := 0, error(nil)
		var names []string
		for err == nil {
			names, err = dir.Readdirnames(512)
			for _, name := range names {
				if e := removeAt(ctx, dir, name, shown); e == nil {
					removed++
				} else if failed == nil {
					failed = e
				}
			}
			if ctx.Err() != nil {
				return ctx.Err()
			}
		}
		if !errors.Is(err, io.EOF) {
			return err
		}
		if removed == 0 {
			return failed
		}
	}
}

func openDir(at int, name string) (*os.File, error) {
	fd, err := unix.Openat(at, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), name), nil
}

// isMountRoot reports whether dir is where something is mounted. A bind mount of
// the same file system has its parent's device number, so the kernel is asked;
// one before 5.8 does not answer, and then the device number has to do.
func isMountRoot(dir, parent *os.File) (bool, error) {
	var d, p unix.Statx_t
	if err := unix.Statx(int(dir.Fd()), "", unix.AT_EMPTY_PATH|unix.AT_STATX_DONT_SYNC, unix.STATX_TYPE, &d); err != nil {
		return false, err
	}
	if d.Attributes_mask&unix.STATX_ATTR_MOUNT_ROOT != 0 {
		return d.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0, nil
	}
	if err := unix.Statx(int(parent.Fd()), "", unix.AT_EMPTY_PATH|unix.AT_STATX_DONT_SYNC, unix.STATX_TYPE, &p); err != nil {
		return false, err
	}
	return d.Dev_major != p.Dev_major || d.Dev_minor != p.Dev_minor, nil
}

// mountBelow returns a mount point at or below path, or "".
func mountBelow(path string) (string, error) {
	file, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return "", err
	}
	defer file.Close()
	lines := bufio.NewScanner(file)
	lines.Buffer(nil, 1<<20)
	unescape := strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)
	for lines.Scan() {
		// The fifth field of proc(5)'s mountinfo is the mount point.
		fields := strings.Fields(lines.Text())
		if len(fields) < 5 {
			continue
		}
		if at := unescape.Replace(fields[4]); at == path || strings.HasPrefix(at, path+"/") {
			return at, nil
		}
	}
	return "", lines.Err()
}

func explainRemoval(path string, err error) error {
	if errors.Is(err, unix.EPERM) {
		return fmt.Errorf("%s cannot be removed: %w; if it has the immutable attribute, take it off with chattr -i", path, err)
	}
	return &fs.PathError{Op: "remove", Path: path, Err: err}
}
