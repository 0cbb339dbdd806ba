package main

import (
	"context"
	"net/netip"
	"os"
	"path/filepath"

	"github.com/kombi-k8s/kombi/pkg/config"
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
	k := &kombi{base: filepath.Join(harness.Dir(), "k")}
	// The harness removes the control groups that are noted here.
	for _, name := range []string{cgroupRoot, k.nodeCgroup()} {
		_ = os.MkdirAll(filepath.Join(harness.Dir(), "cgroups", name), 0o755)
	}
	return k
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

// nodeCgroup is the group in which a server that is not the machine's only one
// translates service addresses.
func (k *kombi) nodeCgroup() string {
	return "kombi-" + (&config.Config{DataDir: k.dataDir()}).Instance()
}

func (k *kombi) joinNode() error {
	dir := filepath.Join("/sys/fs/cgroup/unified", k.nodeCgroup())
	if _, err := os.Stat("/sys/fs/cgroup/unified"); err != nil {
		// Inside a group that hands down controllers processes are in leaves.
		dir = filepath.Join("/sys/fs/cgroup", k.nodeCgroup(), "bench")
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	return os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte("0"), 0o644)
}
