package node

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/kombi-k8s/kombi/pkg/host"
)

func TestEnsureCgroupMakesAUsableGroupInEveryHierarchy(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("control groups can only be made by root")
	}
	facts := host.Gather().Cgroups
	if facts.Mode == host.CgroupNone {
		t.Skip("no control groups are mounted")
	}
	name := fmt.Sprintf("/kombi-test-%d/inner", os.Getpid())
	mounts := map[string]bool{}
	for _, m := range facts.V1 {
		mounts[m] = true
	}
	if facts.Mode == host.CgroupV2 {
		mounts[facts.Unified] = true
	}
	t.Cleanup(func() {
		// Also in hierarchies without a controller, such as that of systemd.
		made, _ := filepath.Glob(filepath.Join(cgroupMount, "*", name))
		for _, dir := range append(made, filepath.Join(cgroupMount, name)) {
			_ = os.Remove(dir)
			_ = os.Remove(filepath.Dir(dir))
		}
	})
	for range 2 { // the second time finds everything there
		if err := EnsureCgroup(name); err != nil {
			t.Fatal(err)
		}
	}
	for m := range mounts {
		if _, err := os.Stat(filepath.Join(m, name, "cgroup.procs")); err != nil {
			t.Errorf("missing in %s: %v", m, err)
		}
	}
	if m, ok := facts.V1["cpuset"]; ok {
		if cpus, err := os.ReadFile(filepath.Join(m, name, "cpuset.cpus")); err != nil || len(cpus) < 2 {
			t.Errorf("the cpuset has no processors: %q %v", cpus, err)
		}
	}
}
