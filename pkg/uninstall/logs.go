package uninstall

import (
	"errors"
	"os"
	"path/filepath"
)

// removePodLogs removes the logs of the pods that the kubelet of this data
// directory knows from a log folder that other kubelets may share, and the
// links to them. A log folder below the data directory goes with that.
func removePodLogs(o Options) error {
	if below(o.PodLogs, o.DataDir) {
		return nil
	}
	pods, err := os.ReadDir(filepath.Join(o.DataDir, "kubelet", "pods"))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	var errs []error
	for _, pod := range pods {
		// The folders are called <namespace>_<name>_<uid>.
		dirs, _ := filepath.Glob(filepath.Join(o.PodLogs, "*_"+pod.Name()))
		for _, dir := range dirs {
			_, err := removeTree(dir)
			errs = append(errs, err)
		}
	}
	links := filepath.Join(filepath.Dir(o.PodLogs), "containers")
	entries, _ := os.ReadDir(links)
	for _, e := range entries {
		path := filepath.Join(links, e.Name())
		target, err := os.Readlink(path)
		if err != nil || !below(target, o.PodLogs) {
			continue
		}
		if _, err := os.Stat(target); errors.Is(err, os.ErrNotExist) {
			errs = append(errs, os.Remove(path))
		}
	}
	// Only when nothing is in them.
	_ = os.Remove(links)
	_ = os.Remove(o.PodLogs)
	return errors.Join(errs...)
}
