// Package e2e runs a real application on a real node: the program as it is
// shipped, in namespaces of its own.
package e2e

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/kombi-k8s/kombi/tests/e2e/harness"
)

// test is one test that shares the cluster with the others.
type test struct {
	name string
	run  func(t *testing.T, k *harness.Kombi)
}

// TestCluster starts one server and runs everything on it: first what wants a
// fresh cluster, then all that can share it at the same time, and last what
// stops and kills the server.
func TestCluster(t *testing.T) {
	archives, err := images() // from the cache: TestMain built them
	if err != nil {
		t.Fatal(err)
	}
	harness.ServeOutside(t)
	k := harness.New(t, harness.Options{Name: "a", Archives: archives})
	k.Start(t)
	t.Logf("node Ready after %s", k.WaitReady(t).Round(time.Millisecond))

	for _, tc := range freshTests() {
		t.Run(tc.name, func(t *testing.T) { tc.run(t, k) })
	}
	t.Run("Shared", func(t *testing.T) {
		for _, tc := range sharedTests() {
			t.Run(tc.name, func(t *testing.T) {
				t.Parallel()
				tc.run(t, k)
			})
		}
	})
	for _, tc := range lastTests() {
		t.Run(tc.name, func(t *testing.T) { tc.run(t, k) })
	}
}

func freshTests() []test {
	return []test{
		{"Fresh", testFresh},
	}
}

func sharedTests() []test {
	return []test{
		{"Shop", testShop},
		{"Autoscaler", testAutoscaler},
		{"Kubectl", testKubectl},
		{"Network", testNetwork},
		{"NetworkPolicy", testNetworkPolicy},
		{"Resize", testResize},
		{"PodSecurity", testPodSecurity},
		{"Secrets", testSecrets},
		{"Tutorial", testTutorial},
	}
}

func lastTests() []test {
	return []test{
		{"Restart", testRestart},
	}
}

// imageCache is where test images are kept between runs.
func imageCache() string {
	if dir := os.Getenv("KOMBI_TEST_IMAGES"); dir != "" {
		return dir
	}
	if dir, err := os.UserCacheDir(); err == nil {
		return filepath.Join(dir, "kombi-testimages")
	}
	return filepath.Join(os.TempDir(), "kombi-testimages")
}
