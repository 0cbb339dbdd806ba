package e2e

import (
	"context"
	"fmt"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kombi-k8s/kombi/tests/e2e/harness"
)

// testAutoscaler burns CPU until the autoscaler adds pods.
func testAutoscaler(t *testing.T, k *harness.Kombi) {
	ns := k.Namespace(t, "hpa", nil)
	k.Kubectl(t, "-n", ns, "apply", "-f", "testdata/hpa.yaml")
	k.Kubectl(t, "-n", ns, "rollout", "status", "deployment/burner", "--timeout=90s")
	url := "http://" + clusterIP(t, k, ns, "burner")
	// 20 ms of work in each 200 ms: five times the request of 20m, and little for the machine.
	load := harness.StartLoad(t, harness.MachineClient(), url+"/burn?for=20ms", 200*time.Millisecond)
	harness.Eventually(t, 150*time.Second, "more than one replica", func(ctx context.Context) error {
		hpa, err := k.Client.AutoscalingV2().HorizontalPodAutoscalers(ns).Get(ctx, "burner", metav1.GetOptions{})
		if err != nil {
			return err
		}
		if hpa.Status.DesiredReplicas < 2 {
			return fmt.Errorf("desired %d, metrics %v, conditions %v", hpa.Status.DesiredReplicas, hpa.Status.CurrentMetrics, hpa.Status.Conditions)
		}
		d, err := k.Client.AppsV1().Deployments(ns).Get(ctx, "burner", metav1.GetOptions{})
		if err != nil {
			return err
		}
		if d.Status.ReadyReplicas < 2 {
			return fmt.Errorf("%d replicas are ready", d.Status.ReadyReplicas)
		}
		return nil
	})
	if n, _, failures := load.Stop(); len(failures) > 0 {
		t.Errorf("%d of %d requests failed: %s", len(failures), n, failures[0])
	}
}
