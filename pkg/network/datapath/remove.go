package datapath

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/vishvananda/netlink"
)

// RemoveAll detaches all programs and removes all maps that are pinned below pinDir.
func RemoveAll(pinDir string) error {
	// Links first, so that no program runs with its maps gone.
	err := errors.Join(os.RemoveAll(filepath.Join(pinDir, "links")), os.RemoveAll(pinDir))
	if err != nil {
		return fmt.Errorf("cannot remove the network programs: %w", err)
	}
	return nil
}

// RemoveFilters removes the clsact filters that were used where the kernel has no tcx.
func RemoveFilters() error {
	links, err := netlink.LinkList()
	if err != nil {
		return fmt.Errorf("cannot list network devices: %w", err)
	}
	var errs []error
	for _, l := range links {
		errs = append(errs, removeFilters(l.Attrs().Index))
	}
	return errors.Join(errs...)
}
