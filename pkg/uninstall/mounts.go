package uninstall

import (
	"bufio"
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// mount is a line of /proc/self/mountinfo; see proc_pid_mountinfo(5).
type mount struct {
	id    int
	point string
	fs    string
}

func mounts() ([]mount, error) {
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return nil, fmt.Errorf("cannot read the mounts: %w", err)
	}
	defer f.Close()
	var list []mount
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20) // overlays with many layers have long lines
	for lines.Scan() {
		left, right, ok := strings.Cut(lines.Text(), " - ")
		fields := strings.Fields(left)
		if !ok || len(fields) < 6 {
			continue
		}
		id, err := strconv.Atoi(fields[0])
		if err != nil {
			continue
		}
		fs, _, _ := strings.Cut(right, " ")
		list = append(list, mount{id: id, point: unescape(fields[4]), fs: fs})
	}
	return list, lines.Err()
}

// unescape undoes the octal escapes of blanks, tabs, newlines and backslashes.
func unescape(s string) string {
	if !strings.Contains(s, `\`) {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+3 < len(s) {
			if n, err := strconv.ParseUint(s[i+1:i+4], 8, 8); err == nil {
				b.WriteByte(byte(n))
				i += 3
				continue
			}
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

func mountPoints() map[string]bool {
	list, _ := mounts()
	points := make(map[string]bool, len(list))
	for _, m := range list {
		points[m.point] = true
	}
	return points
}

// unmountBelow detaches every mount below the given folders, deepest first and,
// where several are stacked, the last one first. The folders may be mount
// points themselves; those stay. It returns how many mounts it detached.
func unmountBelow(dirs ...string) (int, error) {
	real := make([]string, len(dirs))
	for i, dir := range dirs {
		real[i] = dir
		if r, err := filepath.EvalSymlinks(dir); err == nil {
			real[i] = r
		}
	}
	detached := 0
	failed := make(map[int]error)
	// A detached mount can uncover another one, so it looks again until nothing changes.
	for {
		list, err := mounts()
		if err != nil {
			return detached, err
		}
		list = slices.DeleteFunc(list, func(m mount) bool {
			return failed[m.id] != nil || !slices.ContainsFunc(real, func(dir string) bool {
				return strings.HasPrefix(strings.TrimSuffix(m.point, "//deleted"), dir+"/")
			})
		})
		if len(list) == 0 {
			break
		}
		slices.SortFunc(list, func(a, b mount) int {
			return cmp.Or(cmp.Compare(depth(b.point), depth(a.point)), cmp.Compare(b.id, a.id))
		})
		// An unmount on a shared mount happens on all its peers as well: below a
		// recursive bind mount of / that would take the machine's own /proc away.
		for _, m := range list {
			_ = unix.Mount("", m.point, "", unix.MS_PRIVATE, "")
		}
		for _, m := range list {
			err := unix.Unmount(m.point, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
			switch {
			case err == nil:
				detached++
			case errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENOENT):
				// Gone with another one. If it is still there, it is locked to its parent.
				failed[m.id] = errGone
			default:
				failed[m.id] = fmt.Errorf("cannot unmount %s: %w", m.point, err)
			}
		}
	}
	var errs []error
	for _, err := range failed {
		if !errors.Is(err, errGone) {
			errs = append(errs, err)
		}
	}
	return detached, errors.Join(errs...)
}

var errGone = errors.New("gone")

func depth(path string) int { return strings.Count(path, "/") }
