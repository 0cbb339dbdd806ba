package main

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	"github.com/kombi-k8s/kombi/tests/e2e/harness"
)

// evictionHard lets the benchmark run on a disk that is fuller than the
// defaults of the kubelet allow.
const evictionHard = "memory.available<50Mi,nodefs.available<1%,imagefs.available<1%"

// cgroupRoot is where both systems put pods.
const cgroupRoot = "kombi-bench"

// kombi is the program as it is shipped.
type kombi struct {
	base    string // folder for everything
	process *process
}

func newKombi() *kombi {
	return &kombi{base: filepath.Join(harness.Dir(), "k")}
}

func (k *kombi) name() string        { return "kombi" }
func (k *kombi) dir() string         { return k.base }
func (k *kombi) dataDir() string     { return filepath.Join(k.base, "d") }
func (k *kombi) kubeconfig() string  { return filepath.Join(k.base, "kubeconfig") }
func (k *kombi) dns() netip.AddrPort { return netip.MustParseAddrPort("10.43.0.10:53") }

func (k *kombi) processes() []*process { return []*process{k.process} }

func (k *kombi) stop(ctx context.Context) error { return endAll(ctx, k.process) }

func (k *kombi) start(context.Context) (err error) {
	// The kubeconfig of a former cluster would lead to confusion, not to a client.
	if _, err := os.Stat(k.dataDir()); err != nil {
		_ = os.Remove(k.kubeconfig())
	}
	k.process, err = launch("kombi", filepath.Join(harness.Dir(), "kombi.log"), "/", harness.Binary(), "server",
		"--data-dir", k.dataDir(), "--write-kubeconfig", k.kubeconfig(), "--node-name", harness.HostName,
		"--cgroup-root", "/"+cgroupRoot, "--kubelet-arg", "eviction-hard="+evictionHard)
	return err
}

// addImages uses the folder from which Kombi imports by itself.
func (k *kombi) addImages(_ context.Context, archives []string) error {
	folder := filepath.Join(k.dataDir(), "images")
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return err
	}
	for _, archive := range archives {
		data, err := os.ReadFile(archive)
		if err != nil {
			return err
		}
		partial := filepath.Join(folder, "."+filepath.Base(archive))
		if err := os.WriteFile(partial, data, 0o644); err != nil {
			return err
		}
		if err := os.Rename(partial, filepath.Join(folder, filepath.Base(archive))); err != nil {
			return err
		}
	}
	return nil
}

// joinNode enters the cgroup2 of the server, in which one that is not the
// machine's only one translates service addresses.
func (k *kombi) joinNode() error {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", k.process.pid()))
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(data)) {
		group, unified := strings.CutPrefix(strings.TrimSpace(line), "0::")
		if !unified {
			continue
		}
		for _, mount := range []string{"/sys/fs/cgroup/unified", "/sys/fs/cgroup"} {
			procs := filepath.Join(mount, group, "cgroup.procs")
			if _, err := os.Stat(procs); err == nil {
				return os.WriteFile(procs, []byte("0"), 0o644)
			}
		}
	}
	return nil // the machine has no cgroup2
}
