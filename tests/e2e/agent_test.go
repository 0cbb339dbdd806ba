package e2e

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kombi-k8s/kombi/tests/e2e/harness"
)

// TestTwoNodes joins a second machine, on another network, and lets pods of both reach
// each other.
func TestTwoNodes(t *testing.T) {
	archives, err := images()
	if err != nil {
		t.Fatal(err)
	}
	k := startWith(t, "two", "--cluster-cidr", "10.62.0.0/16", "--service-cidr", "10.63.0.0/16")
	agent := harness.NewAgent(t, archives)
	token := k.Token(t)

	agent.Start(t, token[:len(token)-1]+"x")
	if said := agent.WaitEnd(t); !strings.Contains(said, "the token is wrong") {
		t.Errorf("a wrong token: %s", said)
	}
	agent.Kill(t)
	agent.Start(t, token, "--node-name", harness.HostName)
	if said := agent.WaitEnd(t); !strings.Contains(said, "another machine is the node "+harness.HostName) {
		t.Errorf("a name that is taken: %s", said)
	}
	agent.Kill(t)

	agent.Start(t, token)
	waitNode(t, k, harness.AgentName)
	ns := k.Namespace(t, "two", nil)
	k.Kubectl(t, "-n", ns, "apply", "-f", "testdata/nodes.yaml")
	var pods []*corev1.Pod
	for _, name := range []string{"tool", "fartool", "web", "farweb"} {
		pods = append(pods, k.WaitPod(t, ns, name))
	}
	web, farweb := pods[2], pods[3]

	from := func(pod, what, command, want string) {
		t.Helper()
		harness.Eventually(t, 20*time.Second, what, func(context.Context) error {
			out, err := k.TryKubectl("-n", ns, "exec", pod, "--", "sh", "-c", "timeout 5 "+command)
			if !strings.Contains(out, want) {
				return fmt.Errorf("%s: %q is not in %q: %w", what, want, out, err)
			}
			return nil
		})
	}
	reach := func(when string) {
		t.Helper()
		from("tool", when+", a pod of the other node", "wget -q -O - http://"+farweb.Status.PodIP+":8080/version", "v1")
		from("fartool", when+", back", "wget -q -O - http://"+web.Status.PodIP+":8080/version", "v1")
		from("tool", when+", a service by its name", "wget -q -O - http://farweb/version", "v1")
		from("fartool", when+", a service by its name on its own node", "wget -q -O - http://farweb/version", "v1")
	}
	reach("at first")
	from("fartool", "the API from the other node", "nslookup kubernetes.default.svc.cluster.local", "10.63.0.1")
	from("fartool", "the outside sees the other node's address", "wget -q -O - http://outside.test/", harness.AgentIP)
	if out := k.Kubectl(t, "-n", ns, "logs", "fartool"); !strings.Contains(out, "far away") {
		t.Errorf("logs of a pod of the other node: %q", out)
	}

	services := k.Client.CoreV1().Services(ns)
	service, err := services.Get(context.Background(), "farweb", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	outside := func(what, url string) {
		t.Helper()
		harness.Eventually(t, 20*time.Second, what, func(context.Context) error {
			answer, err := harness.Get(harness.OutsideClient(), url)
			if err != nil || !strings.Contains(answer, "v1") {
				return fmt.Errorf("%s: %q, %w", what, answer, err)
			}
			return nil
		})
	}
	for _, node := range []string{harness.MachineIP, harness.AgentIP} {
		outside("the node port at "+node, fmt.Sprintf("http://%s:%d/version", node, service.Spec.Ports[0].NodePort))
	}
	harness.Eventually(t, 20*time.Second, "addresses of the load balancer", func(ctx context.Context) error {
		s, err := services.Get(ctx, "balanced", metav1.GetOptions{})
		if err != nil {
			return err
		}
		var got []string
		for _, i := range s.Status.LoadBalancer.Ingress {
			got = append(got, i.IP)
		}
		if !slices.Equal(got, []string{harness.MachineIP, harness.AgentIP}) {
			return fmt.Errorf("it has %v", got)
		}
		return nil
	})
	for _, node := range []string{harness.MachineIP, harness.AgentIP} {
		outside("the load balancer at "+node, fmt.Sprintf("http://%s:8088/version", node))
	}

	agent.Kill(t)
	reachPods := "wget -q -O - http://" + farweb.Status.PodIP + ":8080/version"
	from("tool", "a pod whose node has no Kombi for now", reachPods, "v1")
	agent.Start(t, token)
	harness.Eventually(t, 30*time.Second, "the agent is back", func(ctx context.Context) error {
		if out, err := k.TryKubectl("-n", ns, "exec", "fartool", "--", "true"); err != nil {
			return fmt.Errorf("%s: %w", out, err)
		}
		return nil
	})
	reach("after a restart of the agent")
	pod, err := k.Client.CoreV1().Pods(ns).Get(context.Background(), "farweb", metav1.GetOptions{})
	if err != nil || pod.Status.ContainerStatuses[0].RestartCount != 0 {
		t.Errorf("the pod was restarted: %v, %v", pod.Status.ContainerStatuses, err)
	}

	k.KubectlIn(t, `{"apiVersion":"networking.k8s.io/v1","kind":"NetworkPolicy","metadata":{"name":"far"},"spec":{"podSelector":{"matchLabels":{"app":"farweb"}},"ingress":[{"from":[{"podSelector":{"matchLabels":{"app":"fartool"}}}]}]}}`,
		"-n", ns, "apply", "-f", "-")
	from("fartool", "policy lets a pod in", reachPods, "v1")
	harness.Eventually(t, 20*time.Second, "policy keeps a pod of the other node out", func(context.Context) error {
		if out, err := k.TryKubectl("-n", ns, "exec", "tool", "--", "sh", "-c", "timeout 1 "+reachPods); err == nil {
			return fmt.Errorf("it came: %q", out)
		}
		return nil
	})
}

func waitNode(t *testing.T, k *harness.Kombi, name string) {
	t.Helper()
	harness.Eventually(t, 60*time.Second, "node "+name+" is Ready", func(ctx context.Context) error {
		node, err := k.Client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, c := range node.Status.Conditions {
			if c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue {
				return nil
			}
		}
		return errors.New("not yet")
	})
}
