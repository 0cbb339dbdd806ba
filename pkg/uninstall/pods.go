package uninstall

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const shimName = "containerd-shim-runc-v2"

// Stopped counts what StopPods ended.
type Stopped struct {
	Pods       int // shims: one for each pod
	Containers int // first processes of containers, without the pods' pause
	Killed     int // processes that did not end within the grace period
}

// StopPods ends the pods of a Kombi that does not run (a running one would
// start them again): the containers of all pods at the same time, SIGTERM first
// and SIGKILL after o.Grace, then the pods' own pause processes and whatever
// else is in their cgroups, then the shims, and at last it unmounts the
// containers' root file systems. It uses DataDir, RunDir, ContainerdState,
// CgroupRoot and Grace of the options.
func StopPods(ctx context.Context, o Options) (Stopped, error) {
	o = o.withDefaults()
	t, err := processes()
	if err != nil {
		return Stopped{}, err
	}
	defer t.close()
	pods := o.findPods(t)
	result := Stopped{Pods: len(pods.shims)}

	// A frozen process gets its signal when it is thawed.
	thaw(o.CgroupRoot)
	var first []*process
	for _, p := range pods.inits {
		if p.base() != "pause" {
			first = append(first, p)
		}
	}
	result.Containers = len(first)
	if o.Grace > 0 {
		for _, p := range first {
			p.signal(unix.SIGTERM)
		}
		result.Killed = len(wait(ctx, first, o.Grace))
	}

	// The rest, and what was forked while they ended: as long as the cgroups
	// have processes there is somebody left to kill.
	rest := append(pods.inits, pods.others...)
	for deadline := time.Now().Add(processTimeout); ; {
		for _, p := range rest {
			p.signal(unix.SIGKILL)
		}
		left := wait(ctx, rest, time.Second)
		t2, err := processes()
		if err != nil {
			return result, err
		}
		rest = nil
		again := o.findPods(t2)
		rest = append(rest, again.inits...)
		rest = append(rest, again.others...)
		if len(rest) == 0 {
			t2.close()
			break
		}
		if time.Now().After(deadline) || ctx.Err() != nil {
			stuck := append(left, rest...)[0]
			err := fmt.Errorf("%s does not end, even with SIGKILL: it hangs in the kernel, often on a disk or a network file system; restart the machine", stuck)
			t2.close()
			return result, err
		}
		defer t2.close()
	}

	for _, p := range pods.shims {
		p.signal(unix.SIGTERM)
	}
	for _, p := range wait(ctx, pods.shims, time.Second) {
		p.signal(unix.SIGKILL)
	}
	if left := wait(ctx, pods.shims, processTimeout); len(left) > 0 {
		return result, fmt.Errorf("%s does not end, even with SIGKILL: restart the machine", left[0])
	}
	_, err = unmountBelow(o.ContainerdState)
	return result, err
}

// podProcesses are the processes of this data directory's pods.
type podProcesses struct {
	shims  []*process
	inits  []*process // children of a shim: the first process of each container
	others []*process // the rest of what is in the pods' cgroups
}

func isShim(p *process) bool {
	return p.base() == shimName || len(p.args) > 0 && filepath.Base(p.args[0]) == shimName
}

func (o *Options) findPods(t table) podProcesses {
	var found podProcesses
	spare := t.ancestors(os.Getpid())
	shims := make(map[int]bool)
	for pid, p := range t {
		if isShim(p) && !spare[pid] && o.isOurs(p) {
			found.shims = append(found.shims, p)
			shims[pid] = true
		}
	}
	inCgroups := make(map[int]bool)
	for _, pid := range cgroupProcesses(o.CgroupRoot) {
		inCgroups[pid] = true
	}
	for pid, p := range t {
		switch {
		case spare[pid] || shims[pid]:
		case shims[p.parent]:
			found.inits = append(found.inits, p)
		case inCgroups[pid] && !isShim(p):
			found.others = append(found.others, p)
		}
	}
	// A container whose shim died is in the cgroups only; a process there whose
	// parent is not in them is the first of its container.
	found.others = slices.DeleteFunc(found.others, func(p *process) bool {
		orphan := !inCgroups[p.parent] && !shims[p.parent]
		if orphan {
			found.inits = append(found.inits, p)
		}
		return orphan
	})
	return found
}

// isOurs says whether a shim belongs to this data directory: it runs from it,
// or reports to its containerd.
func (o *Options) isOurs(p *process) bool {
	if below(p.exe, o.binDir()) {
		return true
	}
	for i, arg := range p.args {
		if strings.TrimLeft(arg, "-") == "address" && i+1 < len(p.args) && below(p.args[i+1], o.ContainerdState) {
			return true
		}
	}
	return false
}

// cgroupProcesses lists the processes in and below a cgroup of all hierarchies.
func cgroupProcesses(root string) []int {
	var pids []int
	for _, dir := range cgroupDirs(root) {
		b, _ := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
		for _, word := range strings.Fields(string(b)) {
			if pid, err := strconv.Atoi(word); err == nil && pid > 0 {
				pids = append(pids, pid)
			}
		}
	}
	return pids
}
