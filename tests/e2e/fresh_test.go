package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kombi-k8s/kombi/tests/e2e/harness"
	"github.com/kombi-k8s/kombi/tests/images/testimages"
)

// testFresh looks at a cluster on which nothing was done yet.
func testFresh(t *testing.T, k *harness.Kombi) {
	t.Run("no system pods", func(t *testing.T) {
		pods, err := k.Client.CoreV1().Pods("").List(context.Background(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range pods.Items {
			t.Errorf("pod %s/%s", p.Namespace, p.Name)
		}
	})
	t.Run("node", func(t *testing.T) {
		out := k.Kubectl(t, "get", "nodes")
		if !strings.Contains(out, harness.HostName) || !strings.Contains(out, "Ready") || !strings.Contains(out, "v1.37.2") {
			t.Errorf("kubectl get nodes:\n%s", out)
		}
	})
	t.Run("every component is ready", func(t *testing.T) {
		if out := k.Kubectl(t, "get", "--raw", "/readyz?verbose"); !strings.Contains(out, "readyz check passed") {
			t.Errorf("/readyz:\n%s", out)
		}
		harness.Eventually(t, 30*time.Second, "aggregated APIs", func(context.Context) error {
			out, err := k.TryKubectl("get", "apiservices")
			if err != nil || strings.Contains(out, "False") {
				return fmt.Errorf("%w\n%s", err, out)
			}
			return nil
		})
	})
	t.Run("default storage class", func(t *testing.T) {
		harness.Eventually(t, 30*time.Second, "storage class", func(context.Context) error {
			out, err := k.TryKubectl("get", "storageclass")
			if err != nil || !strings.Contains(out, "local (default)") {
				return fmt.Errorf("%w\n%s", err, out)
			}
			return nil
		})
	})
	t.Run("images of the folder", func(t *testing.T) {
		harness.Eventually(t, 60*time.Second, "imported images", func(ctx context.Context) error {
			out, errOut, err := k.Run(ctx, "", "kombi", "image", "list", "--data-dir", k.DataDir)
			if err != nil {
				return fmt.Errorf("%w: %s", err, errOut)
			}
			for _, name := range []string{testimages.WebV1, testimages.WebV2, testimages.Busybox, testimages.Redis} {
				if !strings.Contains(out, name) {
					return fmt.Errorf("%s is missing:\n%s", name, out)
				}
			}
			return nil
		})
	})
}
