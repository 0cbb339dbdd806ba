package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kombi-k8s/kombi/tests/e2e/harness"
	"github.com/kombi-k8s/kombi/tests/images/suiteimages"
)

// cluster is what the suite runs against.
type cluster struct {
	// nodes begin with the one that has the control plane.
	nodes []*harness.Kombi
}

// startCluster starts the nodes and returns when they are Ready and have the images.
func startCluster(t testing.TB, o options) *cluster {
	c := new(cluster)
	images, err := openRegistry(o.Archives)
	if err != nil {
		t.Fatal(err)
	}
	addr, err := images.serve()
	if err != nil {
		t.Fatal(err)
	}
	for i := range o.Nodes {
		k := harness.New(t, harness.Options{Name: fmt.Sprintf("n%d", i), Archives: o.Archives})
		if err := mirror(k.DataDir, "registry.k8s.io", addr); err != nil {
			t.Fatal(err)
		}
		k.Start(t)
		fmt.Printf("node %d of %d: Ready after %s\n", i+1, o.Nodes, k.WaitReady(t).Round(time.Millisecond))
		c.nodes = append(c.nodes, k)
	}
	for _, k := range c.nodes {
		harness.Eventually(t, 10*time.Minute, "import of the images", func(ctx context.Context) error {
			out, errOut, err := k.Run(ctx, "", "kombi", "image", "list", "-o", "name", "--data-dir", k.DataDir)
			if err != nil {
				return fmt.Errorf("%w: %s", err, errOut)
			}
			return missing(suiteimages.Names(), strings.Fields(out))
		})
	}
	return c
}

// missing is an error that names what of want is not in have.
func missing(want, have []string) error {
	lack := slices.DeleteFunc(slices.Clone(want), func(name string) bool { return slices.Contains(have, name) })
	if len(lack) > 0 {
		return fmt.Errorf("missing: %s", strings.Join(lack, ", "))
	}
	return nil
}

// server is the node with the control plane.
func (c *cluster) server() *harness.Kombi { return c.nodes[0] }

// failure tells whether a node ended by itself.
func (c *cluster) failure() error {
	for i, k := range c.nodes {
		if !k.Running() {
			return fmt.Errorf("kombi of node %d ended by itself: see kombi.log", i)
		}
	}
	return nil
}
