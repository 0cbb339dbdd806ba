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

// testRestart stops and kills the server under a running application. Pods
// serve on without it, and it finds them again.
func testRestart(t *testing.T, k *harness.Kombi) {
	ns := k.Namespace(t, "restart", nil)
	k.Kubectl(t, "-n", ns, "apply", "-f", "testdata/tools.yaml")
	for _, name := range []string{"tool", "parrot"} {
		k.WaitPod(t, ns, name)
	}
	web := k.WaitPod(t, ns, "web")
	service := "http://" + clusterIP(t, k, ns, "web")

	state := func() map[string]string {
		pods, err := k.Client.CoreV1().Pods(ns).List(context.Background(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		containers := map[string]string{}
		for _, p := range pods.Items {
			for _, c := range p.Status.ContainerStatuses {
				containers[p.Name+"/"+c.Name] = fmt.Sprintf("%s restarted %d", c.ContainerID, c.RestartCount)
			}
		}
		return containers
	}
	k.WaitSettled(t, ns)
	before := state()
	for _, how := range []struct {
		name string
		end  func(testing.TB)
	}{
		{"stop", k.Stop}, {"kill -9", k.Kill}, {"kill -9 again", k.Kill},
	} {
		t.Run(how.name, func(t *testing.T) {
			marker := strings.ReplaceAll(how.name, " ", "")
			k.Kubectl(t, "-n", ns, "create", "configmap", marker)
			podLoad := harness.StartLoad(t, harness.MachineClient(), "http://"+web.Status.PodIP+":8080/version", 20*time.Millisecond)
			serviceLoad := harness.StartLoad(t, harness.MachineClient(), service+"/version", 20*time.Millisecond)
			how.end(t)
			if _, err := harness.Get(harness.MachineClient(), service+"/version"); err != nil {
				t.Errorf("the service does not answer while kombi is down: %v", err)
			}
			k.Start(t)
			t.Logf("node Ready again after %s", k.WaitReady(t).Round(time.Millisecond))
			k.Kubectl(t, "-n", ns, "get", "configmap", marker)
			harness.Eventually(t, 30*time.Second, "exec after the restart", func(context.Context) error {
				out, err := k.TryKubectl("-n", ns, "exec", "tool", "--", "echo", "alive")
				if err != nil || out != "alive\n" {
					return fmt.Errorf("%q, %w", out, err)
				}
				return nil
			})
			for name, load := range map[string]*harness.Load{"pod": podLoad, "service": serviceLoad} {
				if n, _, failures := load.Stop(); len(failures) > 0 {
					t.Errorf("%s: %d of %d requests failed:\n%s", name, len(failures), n, strings.Join(failures[:min(5, len(failures))], "\n"))
				}
			}
			after := state()
			for name, was := range before {
				if after[name] != was {
					t.Errorf("%s: %s, now %s", name, was, after[name])
				}
			}
		})
	}
}
