package e2e

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/kombi-k8s/kombi/tests/e2e/harness"
)

// testNetworkPolicy lets a pod in and shuts it out by labels, under both kinds of policy.
func testNetworkPolicy(t *testing.T, k *harness.Kombi) {
	ns := k.Namespace(t, "policy", nil)
	k.Kubectl(t, "-n", ns, "apply", "-f", "testdata/tools.yaml")
	k.WaitPod(t, ns, "tool")
	web := k.WaitPod(t, ns, "web")
	manifest, err := os.ReadFile("testdata/networkpolicy.yaml")
	if err != nil {
		t.Fatal(err)
	}
	k.KubectlIn(t, strings.ReplaceAll(string(manifest), "kubernetes.io/metadata.name: policy}", "kubernetes.io/metadata.name: "+ns+"}"),
		"-n", ns, "apply", "-f", "-")
	t.Cleanup(func() { _, _ = k.TryKubectl("delete", "clusternetworkpolicy", "no-outside", "--ignore-not-found") })

	try := func(command, want string, comes bool) {
		t.Helper()
		harness.Eventually(t, 20*time.Second, command, func(context.Context) error {
			out, err := k.TryKubectl("-n", ns, "exec", "tool", "--", "sh", "-c", "timeout 1 "+command)
			if strings.Contains(out, want) != comes {
				return fmt.Errorf("%q came: %v; want %v: %q %w", want, !comes, comes, out, err)
			}
			return nil
		})
	}
	service, pod := "wget -q -O - http://web/version", "wget -q -O - http://"+web.Status.PodIP+":8080/version"
	try(service, "v1", false)
	try(pod, "v1", false)
	k.Kubectl(t, "-n", ns, "label", "pod", "tool", "till=yes")
	try(service, "v1", true)
	try(pod, "v1", true)
	// The node's probes still reach the pod, which may send nothing but questions about names.
	if out := k.Kubectl(t, "-n", ns, "get", "pod", "web", "-o", "jsonpath={.status.containerStatuses[0].ready}"); out != "true" {
		t.Errorf("the web pod is ready: %s", out)
	}

	outside := "wget -q -O - http://outside.test/"
	try(outside, harness.MachineIP, true)
	k.Kubectl(t, "-n", ns, "label", "pod", "tool", "outside=no")
	try(outside, harness.MachineIP, false)
	k.Kubectl(t, "delete", "clusternetworkpolicy", "no-outside")
	try(outside, harness.MachineIP, true)
}
