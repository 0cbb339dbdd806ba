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
	var errs []error
	inside := below(o.PodLogs, o.DataDir)
	if !inside {
		pods, err := os.ReadDir(filepath.Join(o.DataDir, "kubelet", "pods"))
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
		for _, pod := range pods {
			// The folders are called <namespace>_<name>_<uid>.
			dirs, _ := filepath.Glob(filepath.Join(o.PodLogs, "*_"+pod.Name()))
			for _, dir := range dirs {
				_, err := removeTree(dir)
				errs = append(errs, err)
			}
		}
	}
	// The kubelet makes these links in one place, wherever the logs are.
	links := filepath.Join(o.LogDir, "containers")
	entries, _ := os.ReadDir(links)
	for _, e := range entries {
		path := filepath.Join(links, e.Name())
		target, err := os.Readlink(path)
		if err != nil || !below(target, o.PodLogs) {
			continue
		}
		if _, err := os.Stat(target); inside || errors.Is(err, os.ErrNotExist) {
			errs = append(errs, os.Remove(path))
		}
	}
	// Only when nothing is in them.
	_ = os.Remove(links)
	_ = os.Remove(o.PodLogs)
	return errors.Join(errs...)
}
