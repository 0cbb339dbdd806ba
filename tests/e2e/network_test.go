package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/kombi-k8s/kombi/tests/e2e/harness"
)

// testNetwork looks up names and goes outside from a pod.
func testNetwork(t *testing.T, k *harness.Kombi) {
	ns := k.Namespace(t, "net", nil)
	k.Kubectl(t, "-n", ns, "apply", "-f", "testdata/tools.yaml")
	k.WaitPod(t, ns, "tool")
	web := k.WaitPod(t, ns, "web")
	service := clusterIP(t, k, ns, "web")
	k.KubectlIn(t, `{"apiVersion":"v1","kind":"Service","metadata":{"name":"headless"},"spec":{"clusterIP":"None","selector":{"app":"web"},"ports":[{"name":"http","port":8080}]}}`,
		"-n", ns, "apply", "-f", "-")
	k.KubectlIn(t, `{"apiVersion":"v1","kind":"Service","metadata":{"name":"alias"},"spec":{"type":"ExternalName","externalName":"outside.test"}}`,
		"-n", ns, "apply", "-f", "-")

	for _, tc := range []struct{ name, command, want string }{
		{"service by short name", "nslookup web", service},
		// busybox's nslookup does not search for names with a dot; the C library does.
		{"service in a namespace", "timeout 5 wget -q -O - http://web." + ns + "/version", "v1"},
		{"service in full", "nslookup web." + ns + ".svc.cluster.local", service},
		{"headless service", "nslookup headless." + ns + ".svc.cluster.local", web.Status.PodIP},
		{"the API server", "nslookup kubernetes.default.svc.cluster.local", "10.43.0.1"},
		{"SRV", "nslookup -type=srv _http._tcp.headless." + ns + ".svc.cluster.local", "8080"},
		{"PTR", "nslookup " + service, "web." + ns + ".svc.cluster.local"},
		{"a name of the outside", "nslookup outside.test", harness.OutsideIP},
		{"ExternalName", "nslookup alias." + ns + ".svc.cluster.local", "outside.test"},
		{"the resolver", "cat /etc/resolv.conf", "nameserver 10.43.0.10"},
		{"service answers", "timeout 5 wget -q -O - http://web/version", "v1"},
		{"pod answers", "timeout 5 wget -q -O - http://" + web.Status.PodIP + ":8080/version", "v1"},
		{"the outside sees the node's address", "timeout 5 wget -q -O - http://outside.test/", harness.MachineIP},
	} {
		t.Run(tc.name, func(t *testing.T) {
			harness.Eventually(t, 20*time.Second, tc.command, func(context.Context) error {
				out, err := k.TryKubectl("-n", ns, "exec", "tool", "--", "sh", "-c", tc.command)
				if !strings.Contains(out, tc.want) {
					return fmt.Errorf("%q is not in %q (%w)", tc.want, out, err)
				}
				return nil
			})
		})
	}
	k.WaitPod(t, ns, "host")
	t.Run("a pod of the host's network reaches a service", func(t *testing.T) {
		for _, url := range []string{"http://" + service + "/version", "http://web." + ns + ".svc.cluster.local/version"} {
			harness.Eventually(t, 20*time.Second, url, func(context.Context) error {
				out, err := k.TryKubectl("-n", ns, "exec", "host", "--", "sh", "-c", "timeout 5 wget -q -O - "+url)
				if !strings.Contains(out, "v1") {
					return fmt.Errorf("%q (%w)", out, err)
				}
				return nil
			})
		}
	})
	t.Run("a name that does not exist", func(t *testing.T) {
		start := time.Now()
		out, err := k.TryKubectl("-n", ns, "exec", "tool", "--", "nslookup", "nobody.test")
		if err == nil || !strings.Contains(out, "NXDOMAIN") || time.Since(start) > 4*time.Second {
			t.Errorf("after %s: %q, %v", time.Since(start), out, err)
		}
	})
}
