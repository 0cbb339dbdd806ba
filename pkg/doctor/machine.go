package doctor

import (
	"context"
	"strings"

	"github.com/kombi-k8s/kombi/pkg/host"
)

func checkUser(_ context.Context, o *Options) []Finding {
	if !o.Facts.Root {
		return fail("run it with sudo", "Kombi needs root to run containers")
	}
	return nil
}

func checkKernel(_ context.Context, o *Options) []Finding {
	if k := o.Facts.Kernel; k.Major > 0 && !k.AtLeast(5, 10) {
		return fail("install a kernel of version 5.10 or newer", "the kernel %s is too old for the network's eBPF programs", k.Release)
	}
	return nil
}

// checkClock refuses a clock that was never set: certificates made with it would not be valid once it is.
func checkClock(_ context.Context, o *Options) []Finding {
	const next = "set the clock, for example with: date -s or a time service"
	now := o.Now()
	switch {
	case now.Year() < 2024:
		return fail(next, "the clock says %s, which is in the past", now.UTC().Format("2006-01-02"))
	case now.Year() > 2100:
		return fail(next, "the clock says %s, which cannot be right", now.UTC().Format("2006-01-02"))
	}
	return nil
}

func checkCapabilities(_ context.Context, o *Options) []Finding {
	missing := o.Facts.Capabilities.Missing()
	if len(missing) == 0 {
		return nil
	}
	next := "start it with all capabilities"
	if o.Facts.Container != "" {
		next = "start the container with --privileged, or --cap-add ALL"
	}
	return fail(next, "this process lacks %s", strings.Join(missing, ", "))
}

func checkCgroups(_ context.Context, o *Options) []Finding {
	c := o.Facts.Cgroups
	inside := o.Facts.Container != ""
	next := "mount them: mount -t cgroup2 cgroup2 /sys/fs/cgroup"
	if inside {
		next = "start the container with its control groups, for example --cgroupns private and a writable /sys/fs/cgroup"
	}
	if c.Mode == host.CgroupNone {
		return fail(next, "no control groups are mounted at /sys/fs/cgroup, so pods cannot be run")
	}
	if missing := c.Missing(); len(missing) > 0 {
		if !inside {
			next = "enable them on the kernel's command line, for example: cgroup_enable=memory cgroup_memory=1"
		}
		return fail(next, "the control group controllers %s are missing, which the kubelet needs", strings.Join(missing, ", "))
	}
	if c.ReadOnly {
		if !inside {
			next = "run: mount -o remount,rw /sys/fs/cgroup"
		}
		return fail(next, "the control groups in /sys/fs/cgroup are mounted read-only")
	}
	if c.Unified == "" {
		return warn("mount one: mkdir -p /sys/fs/cgroup/unified && mount -t cgroup2 cgroup2 /sys/fs/cgroup/unified",
			"there is no cgroup2 mount, so service addresses are translated for pods only and not for this machine itself")
	}
	return nil
}

// lowMemory is what a server and a few small pods fit in.
const lowMemory = 400 << 20

func checkMemory(_ context.Context, o *Options) []Finding {
	if m := o.Facts.Memory; m.Total > 0 && m.Available < lowMemory {
		return warn("stop other programs, or add memory", "only %d MiB of memory are free, and a server needs about %d",
			m.Available>>20, lowMemory>>20)
	}
	return nil
}

func checkBPF(_ context.Context, o *Options) []Finding {
	if o.BPFFS == "" {
		return nil
	}
	if err := host.EnsureBPFFS(o.BPFFS); err != nil {
		sentence, next, _ := strings.Cut(err.Error(), "; ")
		return fail(next, "%s", sentence)
	}
	return nil
}
