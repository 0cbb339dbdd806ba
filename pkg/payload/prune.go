package payload

import (
	"errors"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// Prune removes the unpacked versions below dataDir other than keepHash and
// returns the hashes that it removed. A version from which a process still
// runs stays: the shims of its pods call the shim and runc beside them when the
// pod ends. Call it after a good start; calling it again costs a directory
// listing.
func Prune(dataDir, keepHash string) (removed []string, err error) {
	bin := filepath.Join(dataDir, binFolder)
	entries, err := os.ReadDir(bin)
	if err != nil {
		return nil, err
	}
	var old []string
	for _, e := range entries {
		if e.IsDir() && e.Name() != keepHash && isHash(e.Name()) {
			old = append(old, e.Name())
		}
	}
	if len(old) == 0 {
		return nil, nil
	}
	// A launcher that is about to run one of them holds the lock until its exec.
	lock, err := lockBin(dataDir, unix.LOCK_EX)
	if err != nil {
		return nil, err
	}
	defer lock.Close()
	used, err := executing(bin)
	if err != nil {
		return nil, err
	}
	var errs []error
	for _, hash := range old {
		if used[hash] {
			continue
		}
		// Out of sight first: half a version must never look like one.
		tmp := filepath.Join(bin, tempPrefix+hash)
		if err := os.Rename(filepath.Join(bin, hash), tmp); err != nil {
			errs = append(errs, err)
			continue
		}
		errs = append(errs, os.RemoveAll(tmp))
		removed = append(removed, hash)
	}
	return removed, errors.Join(errs...)
}

// executing returns the names directly below bin from which a process runs.
func executing(bin string) (map[string]bool, error) {
	real, err := filepath.EvalSymlinks(bin)
	if err != nil {
		return nil, err
	}
	exes, err := filepath.Glob("/proc/[0-9]*/exe")
	if err != nil {
		return nil, err
	}
	used := make(map[string]bool)
	for _, link := range exes {
		exe, err := os.Readlink(link)
		if err != nil {
			continue // ended meanwhile, or a kernel thread
		}
		if rest, ok := strings.CutPrefix(exe, real+"/"); ok {
			hash, _, _ := strings.Cut(rest, "/")
			used[hash] = true
		}
	}
	return used, nil
}

func isHash(name string) bool {
	return len(name) == 32 && strings.Trim(name, "0123456789abcdef") == ""
}
