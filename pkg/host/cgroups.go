package host

import (
	"path/filepath"
	"sort"
	"strings"
)

// CgroupMode says how control groups are mounted.
type CgroupMode string

// The ways in which control groups are found.
const (
	CgroupNone   CgroupMode = "none"
	CgroupV1     CgroupMode = "v1"     // controllers in hierarchies of their own, no cgroup2
	CgroupHybrid CgroupMode = "hybrid" // v1 controllers, and a cgroup2 beside them
	CgroupV2     CgroupMode = "v2"     // all controllers in one cgroup2
)

// Cgroups is how control groups are mounted and which controllers they offer.
type Cgroups struct {
	Mode CgroupMode
	// Controllers that pods can use, sorted.
	Controllers []string
	// V1 is the mount point of each v1 controller; several may share one.
	V1 map[string]string
	// Unified is the mount point of cgroup2; empty when there is none. eBPF programs for sockets attach below it.
	Unified string
	// ReadOnly is set when the hierarchy that holds the memory controller is mounted read-only, as in a container
	// that was not given its own cgroups.
	ReadOnly bool
}

// cgroupRoot is where everything but Kombi expects control groups.
const cgroupRoot = "/sys/fs/cgroup"

// FindCgroups derives the facts from the mounts, of which only those at or below /sys/fs/cgroup count. visible says
// that a mount is not covered by another (Mount.Visible); read reads a file (os.ReadFile).
func FindCgroups(mounts Mounts, visible func(Mount) bool, read func(string) ([]byte, error)) Cgroups {
	c := Cgroups{Mode: CgroupNone, V1: map[string]string{}}
	for _, m := range mounts {
		below := m.Point == cgroupRoot || strings.HasPrefix(m.Point, cgroupRoot+"/")
		if !below || !visible(m) {
			continue
		}
		switch m.FSType {
		case "cgroup":
			for _, o := range m.Super {
				if known(o) {
					c.V1[o] = m.Point
				}
			}
		case "cgroup2":
			if c.Unified == "" || m.Point == cgroupRoot {
				c.Unified = m.Point
			}
		}
	}
	if len(c.V1) > 0 {
		c.Mode = CgroupV1
		if c.Unified != "" {
			c.Mode = CgroupHybrid
		}
		for name, point := range c.V1 {
			c.Controllers = append(c.Controllers, name)
			if name == "memory" {
				m, _ := mounts.At(point)
				c.ReadOnly = m.Has("ro")
			}
		}
	} else if c.Unified != "" {
		data, _ := read(filepath.Join(c.Unified, "cgroup.controllers"))
		c.Controllers = strings.Fields(string(data))
		c.Mode = CgroupV2
		m, _ := mounts.At(c.Unified)
		c.ReadOnly = m.Has("ro")
	}
	sort.Strings(c.Controllers)
	return c
}

func known(controller string) bool {
	switch controller {
	case "cpu", "cpuacct", "cpuset", "memory", "pids", "devices", "freezer", "blkio", "hugetlb", "net_cls", "net_prio",
		"perf_event", "rdma", "misc":
		return true
	}
	return false
}

// Missing lists the controllers without which the kubelet does not start.
func (c Cgroups) Missing() []string {
	need := []string{"cpu", "memory", "pids"}
	if c.Mode != CgroupV2 {
		need = append(need, "cpuacct", "devices") // v2 has both without a controller
	}
	var out []string
	for _, n := range need {
		i := sort.SearchStrings(c.Controllers, n)
		if i == len(c.Controllers) || c.Controllers[i] != n {
			out = append(out, n)
		}
	}
	return out
}
