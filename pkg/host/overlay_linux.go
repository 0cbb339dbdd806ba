package host

import (
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// OverlayWorks tries to make an overlay with its layers on the file system of dir, which must exist: an overlay on
// an overlay, on NFS or in some containers is refused. It removes everything it made. nil means it works.
func OverlayWorks(dir string) error {
	base, err := os.MkdirTemp(dir, ".overlay-probe-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(base) }()
	path := func(elem ...string) string { return filepath.Join(append([]string{base}, elem...)...) }
	for _, d := range []string{"lower", "upper", "work", "merged"} {
		if err := os.Mkdir(path(d), 0o755); err != nil {
			return err
		}
	}
	if err := os.WriteFile(path("lower", "file"), []byte("x"), 0o644); err != nil {
		return err
	}
	options := fmt.Sprintf("lowerdir=%s,upperdir=%s,workdir=%s", path("lower"), path("upper"), path("work"))
	if err := unix.Mount("overlay", path("merged"), "overlay", 0, options); err != nil {
		return fmt.Errorf("mount an overlay in %s: %w", dir, err)
	}
	defer func() { _ = unix.Unmount(path("merged"), unix.MNT_DETACH) }()
	// Removing a file of the lower layer needs whiteouts, which some file systems cannot hold.
	if err := os.Remove(path("merged", "file")); err != nil {
		return fmt.Errorf("remove a file in an overlay in %s: %w", dir, err)
	}
	return nil
}
