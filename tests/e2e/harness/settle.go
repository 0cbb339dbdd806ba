package harness

import (
	"context"
	"fmt"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// newForKubelet is how young a container may be for a kubelet that starts to
// take it as new: it then counts as not ready until its readiness probe has
// answered, and its Service leaves it out for that moment. The kubelet's own
// figure is 10 s (prober.kubeletRestartGracePeriod); start times have a
// resolution of one second.
const newForKubelet = 12 * time.Second

// WaitSettled waits until no container of the namespace is new, so that a
// restart of Kombi finds an application that has been running for a while.
func (k *Kombi) WaitSettled(t testing.TB, ns string) {
	t.Helper()
	Eventually(t, time.Minute, "containers that are not new", func(ctx context.Context) error {
		pods, err := k.Client.CoreV1().Pods(ns).List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		for _, p := range pods.Items {
			for _, c := range p.Status.ContainerStatuses {
				if r := c.State.Running; r != nil && time.Since(r.StartedAt.Time) < newForKubelet {
					return fmt.Errorf("%s/%s started at %s", p.Name, c.Name, r.StartedAt.Format(time.TimeOnly))
				}
			}
		}
		return nil
	})
}
