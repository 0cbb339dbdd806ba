package node

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// cgroupMount is where the kernel's control groups are mounted by convention.
const cgroupMount = "/sys/fs/cgroup"

// EnsureCgroup makes the cgroup name (an absolute path inside the hierarchy,
// such as /kombi) in every hierarchy that the kubelet uses: each v1 controller,
// or the one v2 hierarchy with its controllers handed down. Making it twice is
// no mistake.
func EnsureCgroup(name string) error {
	if isUnified(cgroupMount) {
		return ensureV2(cgroupMount, name)
	}
	entries, err := os.ReadDir(cgroupMount)
	if err != nil {
		return fmt.Errorf("there are no control groups at %s: %w; mount them", cgroupMount, err)
	}
	made := 0
	for _, e := range entries {
		hierarchy := filepath.Join(cgroupMount, e.Name())
		// Links such as cpu → cpu,cpuacct lead to the same hierarchy; the v2 part of a hybrid has no controllers.
		if !e.IsDir() || isUnified(hierarchy) || !isHierarchy(hierarchy) {
			continue
		}
		if err := ensureV1(hierarchy, name); err != nil {
			return err
		}
		made++
	}
	if made == 0 {
		return fmt.Errorf("no control group controllers are mounted below %s: mount cgroup2 there, or the v1 controllers", cgroupMount)
	}
	return nil
}

func isUnified(dir string) bool {
	_, err := os.Stat(filepath.Join(dir, "cgroup.controllers"))
	return err == nil
}

func isHierarchy(dir string) bool {
	_, err := os.Stat(filepath.Join(dir, "cgroup.procs"))
	return err == nil
}

func ensureV1(hierarchy, name string) error {
	dir := hierarchy
	for part := range strings.SplitSeq(strings.Trim(name, "/"), "/") {
		parent := dir
		dir = filepath.Join(dir, part)
		if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
			return fmt.Errorf("cannot make the control group %s: %w", dir, err)
		}
		// A new cpuset has neither processors nor memory nodes until they are copied.
		for _, file := range []string{"cpuset.cpus", "cpuset.mems"} {
			own, err := os.ReadFile(filepath.Join(dir, file))
			if err != nil || len(bytes.TrimSpace(own)) > 0 {
				continue
			}
			above, err := os.ReadFile(filepath.Join(parent, file))
			if err != nil {
				return err
			}
			if err := os.WriteFile(filepath.Join(dir, file), above, 0o644); err != nil {
				return fmt.Errorf("cannot set up the control group %s: %w", dir, err)
			}
		}
	}
	return nil
}

// ensureV2 makes the cgroup and enables every controller on the way down. In a
// container the processes of the container's own root have to leave it first:
// a v2 group either holds processes or hands down controllers.
func ensureV2(mount, name string) error {
	if err := handDown(mount); err != nil {
		if err := evacuate(mount); err != nil {
			return err
		}
		if err := handDown(mount); err != nil {
			return fmt.Errorf("the controllers of %s cannot be handed down: %w; start the container with its own, writable cgroup namespace", mount, err)
		}
	}
	dir := mount
	for part := range strings.SplitSeq(strings.Trim(name, "/"), "/") {
		dir = filepath.Join(dir, part)
		if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
			return fmt.Errorf("cannot make the control group %s: %w", dir, err)
		}
		if err := handDown(dir); err != nil {
			return fmt.Errorf("the controllers of %s cannot be handed down: %w", dir, err)
		}
	}
	return nil
}

func handDown(dir string) error {
	available, err := os.ReadFile(filepath.Join(dir, "cgroup.controllers"))
	if err != nil {
		return err
	}
	var enable []string
	for _, c := range strings.Fields(string(available)) {
		enable = append(enable, "+"+c)
	}
	return os.WriteFile(filepath.Join(dir, "cgroup.subtree_control"), []byte(strings.Join(enable, " ")), 0o644)
}

// evacuate moves the processes of a cgroup into its child "init".
func evacuate(dir string) error {
	leaf := filepath.Join(dir, "init")
	if err := os.Mkdir(leaf, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	procs, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
	if err != nil {
		return err
	}
	for _, pid := range strings.Fields(string(procs)) {
		// Kernel threads and processes that ended meanwhile cannot be moved.
		_ = os.WriteFile(filepath.Join(leaf, "cgroup.procs"), []byte(pid), 0o644)
	}
	return nil
}

// socketCgroupRoot is the mount of cgroup2; "" where there is none.
func socketCgroupRoot() string {
	for _, dir := range []string{cgroupMount, filepath.Join(cgroupMount, "unified")} {
		if isUnified(dir) {
			return dir
		}
	}
	return ""
}

// SocketCgroup returns the cgroup2 directory whose processes get service
// addresses translated when they connect: the whole hierarchy for the only
// Kombi of a machine (instance ""), or the one below which its pods are, into which
// this process moves so that everything it starts is inside. It returns "" where the
// machine has no cgroup2.
func SocketCgroup(instance, cgroupRoot string) (string, error) {
	root := socketCgroupRoot()
	if root == "" || instance == "" {
		return root, nil
	}
	dir := filepath.Join(root, cgroupRoot)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", fmt.Errorf("cannot make the control group %s: %w", dir, err)
	}
	if root == cgroupMount {
		return dir, nil // pods are below this group already, so it must hold no process itself
	}
	return dir, os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte("0"), 0o644)
}

// LeaveSocketCgroup moves the processes that are still in an instance's cgroup2
// directory, such as the one that asks, up to the root. The directory goes with
// the others of the cgroup root.
func LeaveSocketCgroup(instance, cgroupRoot string) error {
	root := socketCgroupRoot()
	if root == "" || instance == "" {
		return nil
	}
	procs, err := os.ReadFile(filepath.Join(root, cgroupRoot, "cgroup.procs"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	for _, pid := range strings.Fields(string(procs)) {
		_ = os.WriteFile(filepath.Join(root, "cgroup.procs"), []byte(pid), 0o644)
	}
	return err
}
