package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/kombi-k8s/kombi/tests/e2e/harness"
	"github.com/kombi-k8s/kombi/tests/images/recipe"
	"github.com/kombi-k8s/kombi/tests/images/suiteimages"
)

// buildTags are those of the Makefile: with others the compiler would build
// everything again.
const buildTags = "-tags=netgo,osusergo,sqlite_omit_load_extension,grpcnotrace,no_btrfs,no_devmapper,no_zfs"

// build builds the suite, its runner and its images, or finds them as they were.
func build(o *options) error {
	dir := filepath.Join(harness.Repository(), "build", "conformance")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	o.Ginkgo = filepath.Join(dir, "ginkgo")
	if err := compile("build", o.Ginkgo, "github.com/onsi/ginkgo/v2/ginkgo"); err != nil {
		return err
	}
	o.Suite = filepath.Join(dir, "e2e.test")
	if _, err := os.Stat(o.Suite); err != nil {
		fmt.Println("building the suite: this takes minutes")
	}
	if err := compile("test", o.Suite, "k8s.io/kubernetes/test/e2e"); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Hour)
	defer cancel()
	archives, err := recipe.Ensure(ctx, filepath.Join(dir, "images"), suiteimages.Recipes()...)
	o.Archives = archives
	return err
}

// compile runs go build or go test -c in the suite's module.
func compile(verb, out, pkg string) error {
	args := []string{verb, "-C", filepath.Join(harness.Repository(), "tools", "e2e"), "-ldflags=-s -w", "-o", out}
	if verb == "test" {
		args = append(args, "-c")
	}
	if os.Getenv("GOFLAGS") == "" {
		args = append(args, "-buildvcs=false", "-trimpath", buildTags)
	}
	began := time.Now()
	if text, err := exec.Command("go", append(args, pkg)...).CombinedOutput(); err != nil {
		return fmt.Errorf("building %s failed: %w\n%s", pkg, err, text)
	}
	if took := time.Since(began); took > 20*time.Second {
		fmt.Printf("%s: built in %s\n", pkg, took.Round(time.Second))
	}
	return nil
}
