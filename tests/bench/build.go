package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/kombi-k8s/kombi/tests/e2e/harness"
	"github.com/kombi-k8s/kombi/tests/images/testimages"
)

// buildTags are those of the Makefile: with others the compiler would build
// everything again.
const buildTags = "-tags=netgo,osusergo,sqlite_omit_load_extension,grpcnotrace,no_btrfs,no_devmapper,no_zfs"

// upstreamPackages are the main programs of upstream, unmodified, and ours of
// CoreDNS with the usual plugins.
var upstreamPackages = []string{
	"k8s.io/kubernetes/cmd/kube-apiserver",
	"k8s.io/kubernetes/cmd/kube-controller-manager",
	"k8s.io/kubernetes/cmd/kube-scheduler",
	"k8s.io/kubernetes/cmd/kubelet",
	"k8s.io/kubernetes/cmd/kube-proxy",
	"github.com/containerd/containerd/v2/cmd/containerd",
	"github.com/k3s-io/kine",
	"github.com/containernetworking/plugins/plugins/main/loopback",
	"github.com/containernetworking/plugins/plugins/main/ptp",
	"github.com/containernetworking/plugins/plugins/ipam/host-local",
	"./coredns",
}

// programDir holds the separate programs.
func programDir() string { return filepath.Join(harness.Repository(), "build", "bench") }

// payloadDir holds the programs that Kombi's file carries and that both sides
// run for pods.
func payloadDir() string { return filepath.Join(harness.Repository(), "build") }

// buildUpstream builds the separate programs from the module in upstream.
func buildUpstream() error {
	if err := os.MkdirAll(programDir(), 0o755); err != nil {
		return err
	}
	for _, p := range upstreamPackages {
		args := []string{"build", "-C", filepath.Join(harness.Repository(), "tests", "bench", "upstream"), "-ldflags", "-s -w", "-o", programDir() + "/"}
		if os.Getenv("GOFLAGS") == "" {
			args = append(args, "-buildvcs=false", "-trimpath", buildTags)
		}
		if out, err := exec.Command("go", append(args, p)...).CombinedOutput(); err != nil {
			return fmt.Errorf("building %s failed: %w\n%s", p, err, out)
		}
	}
	return nil
}

// testImages builds the images of the end-to-end tests, or finds them in the cache.
func testImages() ([]string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	cache := os.Getenv("KOMBI_TEST_IMAGES")
	if cache == "" {
		dir, err := os.UserCacheDir()
		if err != nil {
			dir = os.TempDir()
		}
		cache = filepath.Join(dir, "kombi-testimages")
	}
	return testimages.Ensure(ctx, cache)
}

// archive finds the archive of one recipe of the test images.
func (o options) archive(recipe string) (found []string) {
	for _, path := range o.Archives {
		if strings.HasPrefix(filepath.Base(path), recipe+"-") {
			found = append(found, path)
		}
	}
	return found
}
