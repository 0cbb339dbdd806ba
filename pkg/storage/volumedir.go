package storage

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

const (
	// trashName is the folder for what is being deleted. A volume that is in it
	// is gone, whether or not its files are yet.
	trashName = ".trash"

	// Only root may look into the folder of all volumes. A volume itself is open
	// to everyone who can reach it, which is whoever it is mounted for: a pod may
	// run as any user, and only those that set fsGroup have the kubelet hand the
	// directory to their group.
	rootMode   = 0o700
	volumeMode = 0o777

	maxName = 255 // bytes in a file name
)

// volumeDir is the folder that holds the volumes.
type volumeDir struct {
	root string // absolute
}

func (d *volumeDir) trash() string { return filepath.Join(d.root, trashName) }

// prepare makes the folder and checks that it can be used.
func (d *volumeDir) prepare() error {
	root, err := filepath.Abs(d.root)
	if err != nil {
		return err
	}
	d.root = root
	if err := os.MkdirAll(d.trash(), rootMode); err != nil {
		return fmt.Errorf("the volumes' folder cannot be made: %w; make %s, or start Kombi with another --data-dir", err, d.root)
	}
	return os.Chmod(d.root, rootMode)
}

// free returns the bytes that a volume could take now.
func (d *volumeDir) free() (int64, error) {
	var s unix.Statfs_t
	if err := unix.Statfs(d.root, &s); err != nil {
		return 0, &fs.PathError{Op: "statfs", Path: d.root, Err: err}
	}
	return int64(s.Bavail) * s.Bsize, nil
}

// create makes the directory of a volume and returns its path. Making it twice
// is no error: the first attempt may have been cut short.
func (d *volumeDir) create(volume, namespace, claim string) (string, error) {
	path := filepath.Join(d.root, directoryName(volume, namespace, claim))
	if err := os.Mkdir(path, rootMode); err != nil && !errors.Is(err, fs.ErrExist) {
		return "", err
	}
	if info, err := os.Lstat(path); err != nil {
		return "", err
	} else if !info.IsDir() {
		return "", fmt.Errorf("%s is in the way: it is not a directory; move it away", path)
	}
	// Not by Mkdir, from whose mode the umask is taken.
	if err := os.Chmod(path, volumeMode); err != nil {
		return "", err
	}
	return path, syncDir(d.root)
}

// directoryName is <volume>_<namespace>_<claim>, so that a person finds the
// directory; the claim's name is cut where the three are too long together.
func directoryName(volume, namespace, claim string) string {
	name := volume + "_" + namespace + "_" + claim
	if len(name) <= maxName {
		return name
	}
	sum := sha256.Sum256([]byte(claim))
	short := "-" + hex.EncodeToString(sum[:4])
	return name[:maxName-len(short)] + short
}

// remove deletes the directory of a volume. It is moved to the trash first, so
// that a volume is never half there: after a crash the rest is removed by the
// next call or by emptyTrash. A directory that is not there is no error.
func (d *volumeDir) remove(ctx context.Context, path, volume string) error {
	// The path comes from an object that anybody with enough rights could write.
	if volume == "" || filepath.Dir(path) != d.root || !strings.HasPrefix(filepath.Base(path), volume+"_") {
		return fmt.Errorf("%s is not a directory that was made for %s in %s; delete it by hand and remove the finalizer %s", path, volume, d.root, finalizer)
	}
	if at, err := mountBelow(path); err != nil {
		return err
	} else if at != "" {
		return fmt.Errorf("something is mounted at %s; unmount it", at)
	}
	random := make([]byte, 4)
	_, _ = rand.Read(random) // never fails
	trashed := filepath.Join(d.trash(), volume+"."+hex.EncodeToString(random))
	switch err := os.Rename(path, trashed); {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return err
	default:
		if err := errors.Join(syncDir(d.trash()), syncDir(d.root)); err != nil {
			return err
		}
	}
	return d.clear(ctx, volume+".")
}

// emptyTrash removes what earlier runs did not come to the end of.
func (d *volumeDir) emptyTrash(ctx context.Context) error { return d.clear(ctx, "") }

// clear removes the entries of the trash that have the prefix.
func (d *volumeDir) clear(ctx context.Context, prefix string) error {
	entries, err := os.ReadDir(d.trash())
	if err != nil {
		return err
	}
	trash, err := openDir(unix.AT_FDCWD, d.trash())
	if err != nil {
		return err
	}
	defer trash.Close()
	for _, entry := range entries {
		if strings.HasPrefix(entry.Name(), prefix) {
			err = errors.Join(err, removeAt(ctx, trash, entry.Name(), d.trash()))
		}
	}
	return err
}

// syncDir makes the names in a directory durable.
func syncDir(path string) error {
	dir, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}
