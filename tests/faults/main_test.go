// Package faults breaks a running Kombi: it is killed under a write load, its
// disk fills up, loses power, its datastore is damaged. What was acknowledged
// has to be there afterwards, and pods must not notice.
//
// The server runs in the namespaces of the end-to-end tests.
package faults

import (
	"context"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/kombi-k8s/kombi/tests/e2e/harness"
	"github.com/kombi-k8s/kombi/tests/images/testimages"
)

func TestMain(m *testing.M) {
	os.Exit(harness.Main(m, func() error {
		_, err := images()
		return err
	}))
}

// rounds is how often a fault is repeated. The acceptance run sets
// KOMBI_FAULT_ROUNDS=50; a few rounds keep `make test` short.
func rounds(t *testing.T) int {
	t.Helper()
	value := os.Getenv("KOMBI_FAULT_ROUNDS")
	if value == "" {
		return 5
	}
	n, err := strconv.Atoi(value)
	if err != nil || n < 1 {
		t.Fatalf("KOMBI_FAULT_ROUNDS=%s is not a number above 0", value)
	}
	return n
}

// images builds the test images that are used here, or finds them in the cache.
func images() ([]string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	all, err := testimages.Ensure(ctx, imageCache())
	if err != nil {
		return nil, err
	}
	var used []string
	for _, archive := range all {
		if name := filepath.Base(archive); strings.HasPrefix(name, "busybox-") || strings.HasPrefix(name, "web-") {
			used = append(used, archive)
		}
	}
	return used, nil
}

func imageCache() string {
	if dir := os.Getenv("KOMBI_TEST_IMAGES"); dir != "" {
		return dir
	}
	if dir, err := os.UserCacheDir(); err == nil {
		return filepath.Join(dir, "kombi-testimages")
	}
	return filepath.Join(os.TempDir(), "kombi-testimages")
}

// newServer prepares a server that is removed without a trace after the test,
// so that the next one finds the machine as it was. KOMBI_FAULT_LOGS names a
// folder in which its log is kept.
func newServer(t *testing.T, name string, args ...string) *harness.Kombi {
	t.Helper()
	archives, err := images()
	if err != nil {
		t.Fatal(err)
	}
	var k *harness.Kombi
	// Registered first, it runs after the harness has ended the server.
	t.Cleanup(func() {
		if k == nil {
			return
		}
		if dir := os.Getenv("KOMBI_FAULT_LOGS"); dir != "" {
			copyFile(t, k.Log, filepath.Join(dir, name+".log"))
		}
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		out, errOut, err := k.Run(ctx, "", "kombi", "uninstall", "--yes", "--data-dir", k.DataDir, "--cgroup-root", cgroupRoot(name))
		if err != nil {
			t.Errorf("kombi uninstall: %v\n%s%s", err, out, errOut)
		}
	})
	k = harness.New(t, harness.Options{Name: name, Args: args, Archives: archives})
	return k
}

// cgroupRoot is where the harness puts the pods of a server.
func cgroupRoot(name string) string { return "/kombi-e2e-" + name }

// dataDir is where the harness puts the data directory of a server.
func dataDir(name string) string { return filepath.Join(harness.Dir(), name, "d") }

// start starts a server and waits until the node is Ready.
func start(t *testing.T, k *harness.Kombi) time.Duration {
	t.Helper()
	k.Start(t)
	return k.WaitReady(t)
}
