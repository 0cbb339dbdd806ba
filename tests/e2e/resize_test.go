package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kombi-k8s/kombi/tests/e2e/harness"
)

// testResize changes the CPU and memory of a running container up and down, and
// finds the new limits in its cgroup, without a restart.
func testResize(t *testing.T, k *harness.Kombi) {
	ns := k.Namespace(t, "resize", nil)
	k.Kubectl(t, "-n", ns, "apply", "-f", "testdata/resize.yaml")
	k.WaitPod(t, ns, "api")
	ctx := context.Background()
	id := func() string {
		pod, err := k.Client.CoreV1().Pods(ns).Get(ctx, "api", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return pod.Status.ContainerStatuses[0].ContainerID
	}
	before := id()
	for _, step := range []struct {
		name, patch string
		container   string
		millis, mib int
	}{
		{"up", `[{"op":"replace","path":"/spec/containers/0/resources/requests/cpu","value":"100m"},
			{"op":"replace","path":"/spec/containers/0/resources/limits/cpu","value":"200m"},
			{"op":"replace","path":"/spec/containers/0/resources/requests/memory","value":"32Mi"},
			{"op":"replace","path":"/spec/containers/0/resources/limits/memory","value":"64Mi"}]`, "api", 200, 64},
		// Since 1.35 memory limits go down in place, too.
		{"down", `[{"op":"replace","path":"/spec/containers/0/resources/requests/cpu","value":"20m"},
			{"op":"replace","path":"/spec/containers/0/resources/limits/cpu","value":"50m"},
			{"op":"replace","path":"/spec/containers/0/resources/requests/memory","value":"12Mi"},
			{"op":"replace","path":"/spec/containers/0/resources/limits/memory","value":"24Mi"}]`, "api", 50, 24},
		{"sidecar up", `[{"op":"replace","path":"/spec/initContainers/0/resources/limits/cpu","value":"150m"},
			{"op":"replace","path":"/spec/initContainers/0/resources/limits/memory","value":"40Mi"}]`, "side", 150, 40},
	} {
		t.Run(step.name, func(t *testing.T) {
			k.Kubectl(t, "-n", ns, "patch", "pod", "api", "--subresource=resize", "--type=json", "-p", step.patch)
			harness.Eventually(t, 60*time.Second, fmt.Sprintf("%dm and %dMi in the cgroup of %s", step.millis, step.mib, step.container), func(context.Context) error {
				out, err := k.TryKubectl("-n", ns, "exec", "api", "-c", step.container, "--", "sh", "-c",
					"cat /sys/fs/cgroup/cpu/cpu.cfs_quota_us /sys/fs/cgroup/memory/memory.limit_in_bytes 2>/dev/null || cat /sys/fs/cgroup/cpu.max /sys/fs/cgroup/memory.max")
				if err != nil {
					return fmt.Errorf("%w: %s", err, out)
				}
				f := strings.Fields(out)
				quota, memory := fmt.Sprint(step.millis*100), fmt.Sprint(step.mib<<20)
				if len(f) < 2 || f[0] != quota || f[len(f)-1] != memory {
					return fmt.Errorf("cgroup says %q, want quota %s and memory %s", out, quota, memory)
				}
				return nil
			})
			harness.Eventually(t, 30*time.Second, "the status shows it", func(ctx context.Context) error {
				pod, err := k.Client.CoreV1().Pods(ns).Get(ctx, "api", metav1.GetOptions{})
				if err != nil {
					return err
				}
				for _, c := range append(pod.Status.ContainerStatuses, pod.Status.InitContainerStatuses...) {
					if c.Name != step.container {
						continue
					}
					if c.Resources == nil || c.Resources.Limits.Cpu().MilliValue() != int64(step.millis) || c.Resources.Limits.Memory().Value() != int64(step.mib)<<20 {
						return fmt.Errorf("status says %v", c.Resources)
					}
				}
				return nil
			})
		})
	}
	if after := id(); after != before {
		t.Errorf("the container was replaced: %s, %s", before, after)
	}
}
