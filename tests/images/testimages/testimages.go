// Package testimages builds the images that the tests run, from Go sources of
// this repository and from Debian packages, without a registry.
package testimages

import (
	"context"

	"github.com/kombi-k8s/kombi/tests/images/recipe"
)

// The names of the images.
const (
	WebV1   = "kombi.test/web:v1"
	WebV2   = "kombi.test/web:v2"
	Busybox = "kombi.test/busybox:1"
	Redis   = "kombi.test/redis:7"
)

// Ensure returns one archive for each recipe, in the folder cache, building what
// is missing there. Several processes may call it at once.
func Ensure(ctx context.Context, cache string) (archives []string, err error) {
	return recipe.Ensure(ctx, cache,
		recipe.Recipe{Name: "busybox", Inputs: inputs(), Build: buildBusybox},
		recipe.Recipe{Name: "redis", Inputs: inputs(), Build: buildRedis},
		recipe.Recipe{Name: "web", Inputs: inputs("tests/images/web"), Build: buildWeb},
	)
}

// inputs are this package and the paths given.
func inputs(more ...string) func(*recipe.Builder) ([]byte, error) {
	return func(b *recipe.Builder) ([]byte, error) {
		return b.Common(append(more, "tests/images/testimages")...)
	}
}
