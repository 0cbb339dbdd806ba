package e2e

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kombi-k8s/kombi/tests/e2e/harness"
)

// TestDualStack runs a cluster with both families on a machine that has both.
// Its networks are others than those of TestCluster, whose pods may be there yet.
func TestDualStack(t *testing.T) {
	harness.AddIPv6(t)
	k := startWith(t, "ds", "--cluster-cidr", "10.52.0.0/16,fd52::/56", "--service-cidr", "10.53.0.0/16,fd53::/112")
	if out := k.Kubectl(t, "get", "nodes", "-o", "wide"); !strings.Contains(out, " Ready ") || !strings.Contains(out, harness.MachineIP) {
		t.Errorf("kubectl get nodes -o wide:\n%s", out)
	}
	node, err := k.Client.CoreV1().Nodes().Get(context.Background(), harness.HostName, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if got := internalIPs(node); !slices.Equal(got, []string{harness.MachineIP, harness.MachineIP6}) {
		t.Errorf("addresses of the node: %v", got)
	}
	if got := node.Spec.PodCIDRs; !slices.Equal(got, []string{"10.52.0.0/24", "fd52::/64"}) {
		t.Errorf("ranges of the node: %v", got)
	}

	ns := k.Namespace(t, "dual", nil)
	k.Kubectl(t, "-n", ns, "apply", "-f", "testdata/tools.yaml")
	k.KubectlIn(t, `{"apiVersion":"v1","kind":"Service","metadata":{"name":"both"},"spec":{"type":"NodePort","ipFamilyPolicy":"RequireDualStack","selector":{"app":"web"},"ports":[{"port":80,"targetPort":8080}]}}`,
		"-n", ns, "apply", "-f", "-")
	k.WaitPod(t, ns, "tool")
	web := k.WaitPod(t, ns, "web")
	pod := podIPs(web)
	if len(pod) != 2 || !netip.MustParsePrefix("10.52.0.0/24").Contains(pod[0]) || !netip.MustParsePrefix("fd52::/64").Contains(pod[1]) {
		t.Fatalf("addresses of the pod: %v", pod)
	}
	both, err := k.Client.CoreV1().Services(ns).Get(context.Background(), "both", metav1.GetOptions{})
	if err != nil || len(both.Spec.ClusterIPs) != 2 {
		t.Fatalf("addresses of the service: %v, %v", both.Spec.ClusterIPs, err)
	}
	four, six, name := both.Spec.ClusterIPs[0], both.Spec.ClusterIPs[1], "both."+ns+".svc.cluster.local"
	tryInPod(t, k, ns, []trial{
		{"the service by IPv4", "timeout 5 wget -q -O - http://" + four + "/version", "v1"},
		{"the service by IPv6", "timeout 5 wget -q -O - http://[" + six + "]/version", "v1"},
		{"the pod by IPv6", "timeout 5 wget -q -O - http://[" + pod[1].String() + "]:8080/version", "v1"},
		{"A", "nslookup -type=a " + name, four},
		{"AAAA", "nslookup -type=aaaa " + name, six},
		{"PTR of IPv6", "nslookup " + six, name},
		{"DNS by IPv6", "nslookup -type=aaaa " + name + " fd53::a", six},
		{"both resolvers", "tr '\\n' ' ' < /etc/resolv.conf", "nameserver 10.53.0.10 nameserver fd53::a"},
		{"the outside sees the node's IPv4 address", "timeout 5 wget -q -O - http://" + harness.OutsideIP + "/", harness.MachineIP},
		{"the outside sees the node's IPv6 address", "timeout 5 wget -q -O - http://outside6.test/", harness.MachineIP6},
	})
	port := both.Spec.Ports[0].NodePort
	for _, host := range []string{harness.MachineIP, "[" + harness.MachineIP6 + "]"} {
		if answer, err := harness.Get(harness.OutsideClient(), fmt.Sprintf("http://%s:%d/version", host, port)); err != nil || !strings.Contains(answer, "v1") {
			t.Errorf("node port at %s: %q, %v", host, answer, err)
		}
	}
	for _, host := range []string{four, "[" + six + "]"} {
		if answer, err := harness.Get(harness.MachineClient(), "http://"+host+"/version"); err != nil || !strings.Contains(answer, "v1") {
			t.Errorf("the service at %s from the node: %q, %v", host, answer, err)
		}
	}
	if out := k.Kubectl(t, "--server", "https://["+harness.MachineIP6+"]:6443", "get", "--raw", "/readyz"); out != "ok" {
		t.Errorf("the API by IPv6: %q", out)
	}
	dns, err := k.Client.CoreV1().Services("kube-system").Get(context.Background(), "kube-dns", metav1.GetOptions{})
	if err != nil || !slices.Equal(dns.Spec.ClusterIPs, []string{"10.53.0.10", "fd53::a"}) {
		t.Errorf("addresses of the DNS service: %v, %v", dns.Spec.ClusterIPs, err)
	}
}

// TestIPv6Only runs a cluster without IPv4 on a machine without IPv4.
func TestIPv6Only(t *testing.T) {
	harness.AddIPv6(t)
	harness.RemoveIPv4(t)
	k := startWith(t, "v6", "--cluster-cidr", "fd62::/56", "--service-cidr", "fd63::/112")
	node, err := k.Client.CoreV1().Nodes().Get(context.Background(), harness.HostName, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if got := internalIPs(node); !slices.Equal(got, []string{harness.MachineIP6}) {
		t.Errorf("addresses of the node: %v", got)
	}
	ns := k.Namespace(t, "six", nil)
	k.Kubectl(t, "-n", ns, "apply", "-f", "testdata/tools.yaml")
	k.WaitPod(t, ns, "tool")
	web := k.WaitPod(t, ns, "web")
	if got := podIPs(web); len(got) != 1 || !netip.MustParsePrefix("fd62::/64").Contains(got[0]) {
		t.Errorf("addresses of the pod: %v", got)
	}
	tryInPod(t, k, ns, []trial{
		{"the service by its name", "timeout 5 wget -q -O - http://web." + ns + "/version", "v1"},
		{"AAAA", "nslookup -type=aaaa web." + ns + ".svc.cluster.local", clusterIP(t, k, ns, "web")},
		{"the API server's address", "nslookup -type=aaaa kubernetes.default.svc.cluster.local", "fd63::1"},
		{"the API server", "timeout 5 nc fd63::1 443 < /dev/null && echo connected", "connected"},
		{"the outside sees the node's address", "timeout 5 wget -q -O - http://outside6.test/", harness.MachineIP6},
	})

	k.Stop(t)
	k.Start(t)
	k.WaitReady(t)
	everythingIsReady(t, k)
	tryInPod(t, k, ns, []trial{{"the service after a restart", "timeout 5 wget -q -O - http://web." + ns + "/version", "v1"}})
}

// startWith runs a server of its own until the end of the test.
func startWith(t *testing.T, name string, args ...string) *harness.Kombi {
	t.Helper()
	archives, err := images()
	if err != nil {
		t.Fatal(err)
	}
	harness.ServeOutside(t)
	k := harness.New(t, harness.Options{Name: name, Args: args, Archives: archives})
	k.Start(t)
	t.Logf("node Ready after %s", k.WaitReady(t).Round(time.Millisecond))
	everythingIsReady(t, k)
	return k
}

func everythingIsReady(t *testing.T, k *harness.Kombi) {
	t.Helper()
	if out, errOut, err := k.Run(context.Background(), "", "kombi", "status", "--data-dir", k.DataDir, "--wait", "20s"); err != nil {
		t.Errorf("kombi status: %v\n%s%s", err, out, errOut)
	}
}

func internalIPs(node *corev1.Node) (out []string) {
	for _, a := range node.Status.Addresses {
		if a.Type == corev1.NodeInternalIP {
			out = append(out, a.Address)
		}
	}
	return out
}

func podIPs(pod *corev1.Pod) (out []netip.Addr) {
	for _, ip := range pod.Status.PodIPs {
		out = append(out, netip.MustParseAddr(ip.IP))
	}
	return out
}

// trial is a command in the pod "tool" that prints want sooner or later.
type trial struct{ name, command, want string }

func tryInPod(t *testing.T, k *harness.Kombi, ns string, trials []trial) {
	for _, tc := range trials {
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
}
