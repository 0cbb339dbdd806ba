package e2e

import (
	"context"
	"os"
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

// images builds the images of the tests, or finds them in the cache.
func images() (archives []string, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	return testimages.Ensure(ctx, imageCache())
}
